"""`jobd submit`, `get`, `cancel` and `retry`: jobs from a shell, over HTTP by `jobd.Client`.

What a program reads goes to standard output, what a person should know to standard error.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_jobs, complete_queues, complete_tasks
from jobd.cli.follow import INTERRUPTED, OUTCOMES, Followed, leave, show_outcome
from jobd.cli.payload import merged, read_id, read_ids, read_labels, read_payload, read_values
from jobd.cli.show import job_lines, note
from jobd.cli.table import is_terminal
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd import Client

#: Seconds for which `submit --wait` waits in the call that submits.
QUICK_S = 0.2


@click.command()
@click.argument("task", shell_complete=complete_tasks)
@click.option("--payload", default="{}", callback=read_payload, metavar="JSON|@FILE|-", help="A JSON object; -: stdin.")
@click.option(
    "--set",
    "values",
    multiple=True,
    callback=read_values,
    metavar="KEY=TEXT",
    help="Put a text into the payload; KEY=@FILE: that of a file, KEY:=JSON: any value. May be repeated.",
)
@click.option("--queue", metavar="NAME", help="Default: the task's own.", shell_complete=complete_queues)
@click.option("--priority", type=int, metavar="N", help="Higher goes first; a point is worth a minute of waiting.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=read_labels,
    metavar="NAME=VALUE",
    help="A label, to find the job again with `jobd list --label`. May be repeated.",
)
@click.option(
    "--expires-in",
    "expires_in_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Cancel the job if it has not started in S seconds.",
)
@click.option("--limit-key", metavar="KEY", help="Jobs of the queue with the same key share its limits and turns.")
@click.option(
    *("--after", "after"),
    multiple=True,
    callback=read_ids,
    metavar="JOB",
    help="Run only when this job is done; if it fails, the new job is canceled. May be repeated.",
)
@click.option(
    *("--after-any", "after_any"),
    multiple=True,
    callback=read_ids,
    metavar="JOB",
    help="Run only when this job has ended, however it did. May be repeated.",
)
@click.option("--group", callback=read_id, metavar="GROUP", help="The group that the job enters; see `jobd group`.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="With --wait: wait at most S seconds.")
@click.option("--follow", is_flag=True, help="Print tokens, progress and log lines as they come, and wait for the end.")
@click.option("--cancel-on-interrupt", is_flag=True, help="With --wait or --follow: Ctrl-C cancels the job.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as a JSON object; --follow: each event, too.")
@client_options
def submit(
    client: Client,
    task: str,
    payload: msgspec.Raw,
    values: dict[str, msgspec.Raw],
    queue: str | None,
    priority: int | None,
    labels: dict[str, str],
    expires_in_s: float | None,
    limit_key: str | None,
    after: list[UUID],
    after_any: list[UUID],
    group: UUID | None,
    wait: bool,
    timeout: float | None,
    follow: bool,
    cancel_on_interrupt: bool,
    as_json: bool,
) -> None:
    """Submit a job and print its id.

    With --wait or --follow the result is printed instead, and the exit code tells the outcome. Ctrl-C then ends the
    command, not the job, unless --cancel-on-interrupt is given.

    \b
    Examples:
      jobd submit chat --set text=hello --follow
      jobd submit chat --set text=@prompt.txt --set temperature:=0.2 --follow --cancel-on-interrupt
      jobd submit chat --payload '{"text": "hello"}' --wait
      jobd submit embed --payload @document.json --queue fast --priority 10
      jobd submit embed --payload @document.json --label team=vision --label run=7
      jobd submit chat --set text=hello --expires-in 30 --limit-key ann
      id=$(produce | jobd submit tool --payload -)
      jobd submit chat --after "$id" --set text='Explain {{inputs.'"$id"'}}' --follow
      jobd submit tool --wait --timeout 60 --json | jq .result

    \b
    Exit codes:
      0    submitted; with --wait or --follow: done
      1    the job ended in error
      2    wrong usage of the command line
      3    the job was canceled
      4    the job goes on after --timeout
      5    jobd refused the job
      69   jobd does not answer or is too busy
      77   a token is missing, wrong or not enough
      130  Ctrl-C; a job that was submitted goes on, or was canceled if that was asked for
    """
    if timeout is not None and (follow or not wait):
        raise click.UsageError("--timeout goes with --wait, and not with --follow")
    if cancel_on_interrupt and not (wait or follow):
        raise click.UsageError("--cancel-on-interrupt goes with --wait or --follow")
    given = {
        **{"queue": queue, "priority": priority, "labels": labels or None, "expires_in_s": expires_in_s},
        **{"limit_key": limit_key, "group": group},
        "depends_on": [*after, *({"job": job_id, "on": "any"} for job_id in after_any)] or None,
    }
    options: Any = {name: value for name, value in given.items() if value is not None}
    # A short job is waited for by the call that submits it. The id of a longer one is printed meanwhile, and a Ctrl-C
    # that is to cancel a job has to know it from the start.
    hold_s = QUICK_S if wait and timeout is None and not (follow or cancel_on_interrupt) else 0.0
    try:
        job = client.submit(task, merged(payload, values), hold_s=hold_s, **options)
    except KeyboardInterrupt:
        note("interrupted before jobd had answered; the job may have been submitted")
        sys.exit(INTERRUPTED)
    if not wait and not follow:
        click.echo(msgspec.json.encode(job) if as_json else str(job.job_id))
        return
    followed = Followed(as_json=as_json)
    try:
        note(f"job {job.job_id}")
        if follow:
            followed.follow(client, job.job_id)
        if not job.is_final:
            job = client.wait(job.job_id, timeout)
    except KeyboardInterrupt:
        leave(client, job.job_id, followed.last, cancel=cancel_on_interrupt)
    show_outcome(client, job, as_json=as_json, was_shown=followed.has_text)
    sys.exit(OUTCOMES[job.status])


@click.command("get")
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs())
@click.option("--result", "only_result", is_flag=True, help="Only the result, as JSON, however large it is.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@client_options
def get_job(client: Client, job_id: str, only_result: bool, as_json: bool) -> None:
    """Show a job: where it stands, why it waits, its attempts, its result or error.

    \b
    Examples:
      jobd get 01890a5d-ac96-774b-bcce-b302099a8057
      jobd get 01890a5d-ac96-774b-bcce-b302099a8057 --json | jq -r .status
      jobd get 01890a5d-ac96-774b-bcce-b302099a8057 --result > result.json
    """
    if only_result:
        click.echo(bytes(client.result_json(job_id)))
        return
    job = client.get(job_id)
    click.echo(msgspec.json.encode(job) if as_json else "\n".join(job_lines(job)))


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs("queued", "running"))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object a job.")
@client_options
def cancel(client: Client, job_ids: Sequence[str], as_json: bool) -> None:
    """Cancel jobs: at once if they wait, by way of their worker if they run. Exit code 5 if one has ended already.

    \b
    Examples:
      jobd cancel 01890a5d-ac96-774b-bcce-b302099a8057
      jobd list --status queued --task chat | cut -f 1 | xargs jobd cancel
    """

    def cancel_one(job_id: str) -> None:
        answer = client.cancel(job_id)
        asked = "asked to stop; its worker hears of it at its next heartbeat"
        text = "canceled" if answer.status == "canceled" else asked
        click.echo(msgspec.json.encode(answer) if as_json else f"job {answer.job_id}: {text}")

    for_each(job_ids, cancel_one)


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs("error"))
@click.option("--json", "as_json", is_flag=True, help="As one JSON object a new job.")
@client_options
def retry(client: Client, job_ids: Sequence[str], as_json: bool) -> None:
    """Run jobs that ended in error again, each as a new job, and print the new ids. Exit code 5 if one did not end so.

    Each call makes new jobs; `jobd dlq retry` runs a job again only once.

    \b
    Examples:
      jobd retry 01890a5d-ac96-774b-bcce-b302099a8057
      jobd watch $(jobd retry 01890a5d-ac96-774b-bcce-b302099a8057)
    """

    def retry_one(job_id: str) -> None:
        job = client.retry(job_id)
        words = f"{job_id} -> {job.job_id}" if is_terminal() else str(job.job_id)
        click.echo(msgspec.json.encode(job) if as_json else words)

    for_each(job_ids, retry_one)


def for_each(job_ids: Sequence[str], do: Callable[[str], None]) -> None:
    """What jobd refuses for one job does not keep it from the next; the exit code is that of the last refusal."""
    from jobd.client import Denied, Refused

    exit_code = 0
    for job_id in job_ids:
        try:
            do(job_id)
        except Denied:
            raise
        except Refused as refused:
            note(str(refused))
            exit_code = refused.exit_code
    sys.exit(exit_code)
