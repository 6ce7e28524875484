"""`jobd list`, `queues`, `workers`, `pause` and `resume`: what there is, as a table, as lines or as JSON."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_queues, complete_tasks
from jobd.cli.show import moment, note
from jobd.cli.table import Column, ago, is_terminal, lasting, show_rows
from jobd.cli.target import client_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jobd import Client

#: Most items of one page of the API.
PAGE = 100

JOB_COLUMNS = (
    Column("JOB"),
    Column("STATUS"),
    Column("TASK"),
    Column("QUEUE"),
    Column("AGE", is_number=True),
    Column("TRIES", is_number=True, is_extra=True),
    Column("PRIORITY", is_number=True, is_extra=True),
)
QUEUE_COLUMNS = (
    Column("QUEUE"),
    Column("STATE"),
    *(Column(name, is_number=True) for name in ("SLOTS", "QUEUED", "RUNNING", "DONE", "ERROR")),
    *(Column(name, is_number=True, is_extra=True) for name in ("CANCELED", "WAITS", "OUT/S")),
)
WORKER_COLUMNS = (
    Column("KIND"),
    Column("JOBS", is_number=True),
    Column("LONGEST", is_number=True),
    Column("HEARTBEAT", is_number=True),
    Column("WORKER"),
)


limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="List at most N."
)


@click.command("list")
@click.option("--status", type=click.Choice(["queued", "running", "done", "error", "canceled"]), help="Only these.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.", shell_complete=complete_tasks)
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.", shell_complete=complete_queues)
@limit_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def list_jobs(
    client: Client, status: str | None, task: str | None, queue: str | None, limit: int, as_json: bool
) -> None:
    """List jobs, newest first: a table on a terminal, else one job a line, with tabs between its values.

    \b
    Examples:
      jobd list --status running
      jobd list --task chat --limit 1000 --json | jq -r .job_id
      jobd list --status queued --queue slow | cut -f 1 | xargs jobd cancel
    """
    jobs = pages(client.list, "jobs", limit, status=status, task=task, queue=queue)
    if as_json:
        show_json(jobs)
        return
    is_table = is_terminal()
    rows = (
        (
            job.job_id,
            job.status,
            job.task,
            job.queue,
            ago(job.created_ts) if is_table else moment(job.created_ts),
            f"{job.attempt_count}/{job.max_attempts}",
            job.priority,
        )
        for job in jobs
    )
    show_rows(JOB_COLUMNS, rows, nothing="no such jobs" if status or task or queue else "no jobs yet")


def pages(read: Callable[..., Any], name: str, limit: int, **filters: str | None) -> Iterator[Any]:
    """What stands under `name` in one page after the other, up to the limit. A page may be empty and not the last."""

    def every() -> Iterator[Any]:
        before = None
        while True:
            page = read(limit=min(limit, PAGE), before=before, **filters)
            yield from getattr(page, name)
            before = page.next
            if before is None:
                return

    return islice(every(), limit)


def show_json(items: Iterable[object]) -> None:
    for item in items:
        click.echo(msgspec.json.encode(item))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def queues(client: Client, as_json: bool) -> None:
    """Show every queue: whether it is paused, how many jobs stand where, and how fast they leave.

    SLOTS are the jobs that jobd itself runs at once; WAITS is how long the first in line could have run already, and
    OUT/S how many jobs left the line each second lately.

    \b
    Examples:
      jobd queues
      jobd queues --json | jq 'select(.queued > 1000) | .name'
    """
    found = client.queues()
    if as_json:
        show_json(found)
        return
    rows = (
        (
            *(queue.name, "paused" if queue.paused else "open", queue.slots),
            *(queue.queued, queue.running, queue.done, queue.error, queue.canceled),
            *(None if queue.head_waits_s is None else lasting(queue.head_waits_s), queue.drain_per_s),
        )
        for queue in found
    )
    show_rows(QUEUE_COLUMNS, rows, nothing="no queues")


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N", help="At most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def workers(client: Client, limit: int, as_json: bool) -> None:
    """Show who holds jobs right now, the longest silent first. One that waits for a job is not listed.

    LONGEST is how long it has held the oldest of its jobs, HEARTBEAT when it was last heard of.

    \b
    Examples:
      jobd workers
      jobd workers --json | jq -r 'select(.kind == "http") | .worker_id'
    """
    found = client.workers(limit=limit)
    if as_json:
        show_json(found.workers)
        return
    is_table = is_terminal()
    when = ago if is_table else moment
    rows = (
        (worker.kind, worker.jobs, when(worker.oldest_lease_ts), when(worker.last_heartbeat_ts), worker.worker_id)
        for worker in found.workers
    )
    show_rows(WORKER_COLUMNS, rows, nothing="nobody holds a job now")
    if found.total > len(found.workers):
        note(f"{found.total - len(found.workers)} more are not shown; --limit {min(found.total, 1000)} shows more")


@click.command()
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@client_options
def pause(client: Client, names: Sequence[str]) -> None:
    """Start no more jobs of a queue. What runs goes on, and new jobs are taken in.

    \b
    Examples:
      jobd pause default
    """
    for name in names:
        click.echo(f"queue {client.pause(name).name} is paused")


@click.command()
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True, shell_complete=complete_queues)
@client_options
def resume(client: Client, names: Sequence[str]) -> None:
    """Start jobs of a paused queue again.

    \b
    Examples:
      jobd resume default
    """
    for name in names:
        click.echo(f"queue {client.resume(name).name} goes on")
