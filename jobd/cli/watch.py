"""`jobd watch`: the events of a job that is under way or has ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from jobd.cli.completion import complete_jobs
from jobd.cli.follow import OUTCOMES, Followed, leave, show_outcome
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from jobd import Client


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs())
@click.option(
    "--from",
    "since",
    default="start",
    show_default=True,
    metavar="start|now|CURSOR",
    help="Where to begin; a cursor is the id of the last event that is known.",
)
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C cancels the job instead of leaving it.")
@click.option("--json", "as_json", is_flag=True, help="Each event, then the job, as a JSON object a line.")
@client_options
def watch(client: Client, job_id: str, since: str, cancel_on_interrupt: bool, as_json: bool) -> None:
    """Follow a job to its end: its text as it comes, its progress, and what came of it.

    A cut line or a restart of jobd is bridged. The exit code tells the outcome. Ctrl-C ends the command, not the job,
    and says how to go on from there.

    \b
    Examples:
      jobd watch 01890a5d-ac96-774b-bcce-b302099a8057
      jobd watch 01890a5d-ac96-774b-bcce-b302099a8057 --from now
      jobd watch 01890a5d-ac96-774b-bcce-b302099a8057 --from 1-17 --json | jq .data

    \b
    Exit codes:
      0    the job is done
      1    it ended in error
      3    it was canceled
      5    jobd refused, as for a job that it does not know
      69   jobd does not answer
      77   a token is missing, wrong or not enough
      130  Ctrl-C
    """
    followed = Followed(as_json=as_json)
    after = None if since == "start" else since
    try:
        client.get(job_id)  # a jobd that is not there from the start is not waited for as one that went away
        followed.follow(client, job_id, after)
        job = client.wait(job_id)
    except KeyboardInterrupt:
        leave(client, job_id, followed.last or (after if after != "now" else None), cancel=cancel_on_interrupt)
    show_outcome(client, job, as_json=as_json, was_shown=followed.has_text)
    sys.exit(OUTCOMES[job.status])
