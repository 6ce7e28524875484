"""`jobd dlq`: jobs that ended in error, and running many of them again.

Letters are walked from the newest to the oldest, so a job that runs again and fails again is not met on the way.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING

import click
import msgspec

from jobd.cli.completion import complete_jobs, complete_queues, complete_tasks
from jobd.cli.listing import limit_option, pages, show_json
from jobd.cli.running import show_progress
from jobd.cli.show import moment, note
from jobd.cli.table import Column, ago, is_terminal, show_rows
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobd import Client
    from jobd.client import Redriven

#: Dead letters retried by one request; small, so that progress shows early.
BATCH = 200
#: Dead letters counted before the confirmation prompt; beyond that it says "and perhaps more".
COUNTED = 1_000
#: On a terminal, retried jobs listed one by one; beyond that only their number is printed.
LISTED = 20

LETTER_COLUMNS = (
    Column("JOB"),
    Column("TASK"),
    Column("QUEUE"),
    Column("ENDED", is_number=True),
    Column("REASON"),
    Column("RUNS AGAIN AS", is_extra=True),
)
GROUP_COLUMNS = (
    Column("ERROR"),
    Column("TASK"),
    Column("JOBS", is_number=True),
    Column("OPEN", is_number=True),
    Column("LAST", is_number=True),
    Column("EXAMPLE", is_extra=True),
    Column("MESSAGE", is_extra=True),
)


@click.group()
def dlq() -> None:
    """Look at jobs that ended in error, and run them again."""


@dlq.command("list")
@click.option("--task", metavar="NAME", help="Only jobs of this task.", shell_complete=complete_tasks)
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.", shell_complete=complete_queues)
@limit_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def dlq_list(client: Client, task: str | None, queue: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, newest first.

    \b
    Examples:
      jobd dlq list --task chat
      jobd dlq list --limit 1000 --json | jq -r 'select(.redriven_to == null) | .job_id'
    """
    letters = pages(client.dead_letters, "letters", limit, task=task, queue=queue)
    if as_json:
        show_json(letters)
        return
    when = ago if is_terminal() else moment
    rows = (
        (letter.job_id, letter.task, letter.queue, when(letter.at_ts), letter.reason, letter.redriven_to)
        for letter in letters
    )
    show_rows(LETTER_COLUMNS, rows, nothing="no dead letters")


@dlq.command("groups")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def dlq_groups(client: Client, as_json: bool) -> None:
    """Show dead letters by error and task, each group with its newest message.

    \b
    Examples:
      jobd dlq groups
      jobd dlq groups --json | jq -r 'select(.open > 100) | .error'
    """
    found = client.dead_letter_groups()
    if as_json:
        show_json(iter(found.groups))
        return
    when = ago if is_terminal() else moment
    rows = (
        (group.error or "-", group.task, group.count, group.open, when(group.last_ts), group.example_id, group.message)
        for group in found.groups
    )
    show_rows(GROUP_COLUMNS, rows, nothing="no dead letters")
    if not found.exact:
        note("there are more; only the newest 10 000 dead letters were looked at")


@dlq.command("retry")
@click.argument("job_ids", metavar="[JOB...]", nargs=-1, shell_complete=complete_jobs("error"))
@click.option("--all", "every", is_flag=True, help="All that do not run again yet.")
@click.option("--task", metavar="NAME", help="With --all: only jobs of this task.", shell_complete=complete_tasks)
@click.option("--queue", metavar="NAME", help="With --all: only jobs of this queue.", shell_complete=complete_queues)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help='One JSON object a line: {"from": OLD, "to": NEW}.')
@client_options
def dlq_retry(
    client: Client,
    job_ids: Sequence[str],
    every: bool,
    task: str | None,
    queue: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Run dead letters again, each as a new job and each only once. Needs a token with the scope admin, if any.

    On a terminal, --all asks first. Exit code 1 if one of the jobs that were named does not run again by this: it is no
    dead letter, or runs again already.

    \b
    Examples:
      jobd dlq retry 01890a5d-ac96-774b-bcce-b302099a8057
      jobd dlq retry --all --task chat
      jobd dlq retry --all --queue slow --yes
    """
    if bool(job_ids) == every or ((task or queue) and not every):
        raise click.UsageError("name jobs, or give --all, to which --task and --queue may be added")
    if every and not yes and sys.stdin.isatty() and not _is_wanted(client, task, queue):
        note("nothing was done")
        sys.exit(1)
    retried = list(_shown(_retry_all(client, task, queue) if every else _retry(client, job_ids), as_json))
    if every and is_terminal() and not as_json:
        click.echo(f"{len(retried)} jobs run again" if retried else "there is nothing to run again")
    done = {str(job.old) for job in retried}
    if left := [job_id for job_id in job_ids if job_id.lower() not in done]:
        note(f"no dead letter, or runs again already: {', '.join(left)}; `jobd retry` runs one again all the same")
        sys.exit(1)


def _is_wanted(client: Client, task: str | None, queue: str | None) -> bool:
    letters = pages(client.dead_letters, "letters", COUNTED + 1, task=task, queue=queue)
    waiting = sum(1 for letter in islice(letters, COUNTED) if letter.redriven_to is None)
    more = " and perhaps more" if next(letters, None) is not None else ""
    which = "".join(f" of {kind} {name}" for kind, name in (("task", task), ("queue", queue)) if name)
    if not waiting and not more:
        return True  # which then says that there is nothing
    return click.confirm(f"Run {waiting} dead letters{which}{more} again?", err=True)


def _retry(client: Client, job_ids: Sequence[str]) -> Iterator[Redriven]:
    for start in range(0, len(job_ids), BATCH):
        yield from client.retry_dead_letters(ids=job_ids[start : start + BATCH]).retried


def _retry_all(client: Client, task: str | None, queue: str | None) -> Iterator[Redriven]:
    before, number = None, 0
    try:
        while True:
            answer = client.retry_dead_letters(task=task, queue=queue, limit=BATCH, before=before)
            yield from answer.retried
            number += len(answer.retried)
            before = answer.next
            if before is None:
                return
            show_progress(f"{number} jobs run again so far")
    finally:
        show_progress("")


def _shown(retried: Iterator[Redriven], as_json: bool) -> Iterator[Redriven]:
    for number, job in enumerate(retried):
        if as_json:
            click.echo(msgspec.json.encode(job))
        elif not is_terminal():
            click.echo(f"{job.old}\t{job.new}")
        elif number < LISTED:
            click.echo(f"{job.old} -> {job.new}")
        yield job
