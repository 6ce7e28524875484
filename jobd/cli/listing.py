"""`jobd list`, `queues`, `workers`, `pause` and `resume`: what there is, as a table, as lines or as JSON."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_queues, complete_tasks
from jobd.cli.payload import read_labels
from jobd.cli.show import moment, note
from jobd.cli.table import Column, ago, is_terminal, show_rows
from jobd.cli.target import client_options
from jobd.cli.times import lasting, read_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from jobd import Client
    from jobd.client import JobSummary

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
    Column("STARTS IN", is_number=True, is_extra=True),
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
@click.option("--error", metavar="CODE", help="Only jobs that ended in an error with this code.")
@click.option("--text", metavar="TEXT", help="Only jobs that ended in an error with this in its message.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=read_labels,
    metavar="NAME=VALUE",
    help="Only jobs with this label. May be repeated: all must fit.",
)
@click.option("--owner", metavar="TOKEN", help="Only jobs that the token of this name has sent.")
@click.option("--schedule", metavar="NAME", help="Only jobs that this schedule has made.")
@click.option("--group", metavar="GROUP", help="Only members of this group.")
@click.option("--since", callback=read_time, metavar="TIME", help="Only jobs made at this time or later.")
@click.option("--until", callback=read_time, metavar="TIME", help="Only jobs made before this time.")
@limit_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def list_jobs(client: Client, limit: int, as_json: bool, **filters: Any) -> None:
    """List jobs, newest first: a table on a terminal, else one job a line, with tabs between its values.

    \b
    Examples:
      jobd list --status running
      jobd list --task chat --limit 1000 --json | jq -r .job_id
      jobd list --status queued --queue slow | cut -f 1 | xargs jobd cancel
      jobd list --label team=vision --label run=7 --owner ci
      jobd list --error timeout --since 2h
      jobd list --text "out of memory" --since 2026-11-01T08:00

    \b
    STARTS IN is about how long a queued job still waits, by how long jobs of its queue run; - if that is not known.

    \b
    A time is a moment such as 2026-11-01 or 2026-11-01T08:00, of this machine's time zone unless it names one, or how
    long ago: 90s, 15m, 2h, 3d.
    """
    jobs = pages(client.list, "jobs", limit, **filters)
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
            _starts_in(job),
        )
        for job in jobs
    )
    show_rows(JOB_COLUMNS, rows, nothing="no such jobs" if any(filters.values()) else "no jobs yet")


def _starts_in(job: JobSummary) -> str | None:
    return None if job.waiting is None or job.waiting.eta_s is None else f"~{lasting(job.waiting.eta_s)}"


def pages(read: Callable[..., Any], name: str, limit: int, **filters: Any) -> Iterator[Any]:
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
    answer = client.queues()
    if as_json:
        show_json(answer)
        return
    rows = (
        (
            *(queue.name, "paused" if queue.paused else "open", queue.slots),
            *(queue.queued, queue.running, queue.done, queue.error, queue.canceled),
            *(None if queue.head_waits_s is None else lasting(queue.head_waits_s), queue.drain_per_s),
        )
        for queue in answer
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
    page = client.workers(limit=limit)
    if as_json:
        show_json(page.workers)
        return
    is_table = is_terminal()
    when = ago if is_table else moment
    rows = (
        (worker.kind, worker.jobs, when(worker.oldest_lease_ts), when(worker.last_heartbeat_ts), worker.worker_id)
        for worker in page.workers
    )
    show_rows(WORKER_COLUMNS, rows, nothing="nobody holds a job now")
    if page.total > len(page.workers):
        note(f"{page.total - len(page.workers)} more are not shown; --limit {min(page.total, 1000)} shows more")


def _paused_things(function: Callable[..., None]) -> Callable[..., None]:
    """The argument and options that say what is paused or resumed."""
    function = click.option("--all", "everything", is_flag=True, help="All jobs, on every node.")(function)
    function = click.option(
        "--task", "tasks", multiple=True, metavar="NAME", shell_complete=complete_tasks, help="A task. May be repeated."
    )(function)
    return click.argument("names", metavar="[QUEUE]...", nargs=-1, shell_complete=complete_queues)(function)


def _check_named(names: Sequence[str], tasks: Sequence[str], *, everything: bool) -> None:
    if not (names or tasks or everything):
        raise click.UsageError("name a queue, a task with --task, or --all")


@click.command()
@_paused_things
@client_options
def pause(client: Client, names: Sequence[str], tasks: Sequence[str], everything: bool) -> None:
    """Start no more jobs of a queue, of a task, or none at all. What runs goes on, and new jobs are taken in.

    \b
    Examples:
      jobd pause default
      jobd pause --task chat
      jobd pause --all
    """
    _check_named(names, tasks, everything=everything)
    for name in names:
        click.echo(f"queue {client.pause(name).name} is paused")
    for task in tasks:
        click.echo(f"task {client.pause_task(task).name} is paused")
    if everything:
        client.pause_all()
        click.echo("everything is paused")


@click.command()
@_paused_things
@client_options
def resume(client: Client, names: Sequence[str], tasks: Sequence[str], everything: bool) -> None:
    """Start jobs of a paused queue or task again, or of all that is not paused by itself.

    \b
    Examples:
      jobd resume default
      jobd resume --task chat
      jobd resume --all
    """
    _check_named(names, tasks, everything=everything)
    for name in names:
        click.echo(f"queue {client.resume(name).name} goes on")
    for task in tasks:
        click.echo(f"task {client.resume_task(task).name} goes on")
    if everything:
        client.resume_all()
        click.echo("jobs are started again")
