"""`jobd schedule`: make jobs at certain times, and see what became of them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
import msgspec

from jobd.cli.completion import complete_queues, complete_schedules, complete_tasks
from jobd.cli.listing import show_json
from jobd.cli.payload import read_labels, read_payload
from jobd.cli.show import compact, moment, note, one_line
from jobd.cli.table import Column, is_terminal, show_rows
from jobd.cli.target import client_options
from jobd.cli.times import lasting, read_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobd import Client
    from jobd.client import Schedule

#: Schedules of one page of the API.
PAGE = 200

COLUMNS = (
    Column("SCHEDULE"),
    Column("STATE"),
    Column("WHEN"),
    Column("NEXT"),
    Column("TASK"),
    *(Column(name, is_number=True, is_extra=True) for name in ("STARTED", "SKIPPED", "MISSED")),
    Column("ORIGIN", is_extra=True),
)
#: Where `--none NAME` takes a setting away.
REMOVABLE = ("start", "end", "queue", "timeout_s", "max_attempts")

json_option = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
name_argument = click.argument("name", shell_complete=complete_schedules)


def definition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `create` and `edit` share."""
    for option in reversed(
        (
            click.option("--cron", metavar="EXPR", help="Five fields, or @hourly, @daily, @weekly, @monthly, @yearly."),
            click.option("--every", metavar="TIME", help="An interval instead: 90s, 15m, 6h, 1d, 1h30m."),
            click.option("--timezone", metavar="ZONE", help="In which --cron is read (default: UTC)."),
            click.option("--start", callback=read_time, metavar="TIME", help="No occurrence is earlier."),
            click.option("--end", callback=read_time, metavar="TIME", help="No occurrence is later."),
            click.option("--jitter", "jitter_s", type=float, metavar="S", help="Each is due up to S seconds later."),
            click.option("--payload", callback=_read_payload, metavar="JSON|@FILE|-", help="Of each job; -: stdin."),
            click.option("--queue", metavar="NAME", help="Default: the task's own.", shell_complete=complete_queues),
            click.option("--priority", type=int, metavar="N", help="Higher goes first."),
            click.option("--timeout", "timeout_s", type=float, metavar="S", help="Seconds that one attempt may take."),
            click.option("--max-attempts", type=int, metavar="N", help="Attempts, the first included."),
            click.option(
                "--label", "labels", multiple=True, callback=read_labels, metavar="NAME=VALUE", help="May be repeated."
            ),
            click.option(
                "--overlap",
                type=click.Choice(["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]),
                help="What becomes of an occurrence while jobs of the schedule have not ended.",
            ),
            click.option(
                "--catch-up",
                type=click.Choice(["one", "none", "all"]),
                help="Which late occurrences start after an outage: the latest, none, the newest 100.",
            ),
            click.option(
                "--catch-up-window", "catch_up_window_s", type=int, metavar="S", help="Older ones are missed."
            ),
            click.option(
                "--pause-after-failures", type=int, metavar="N", help="Pause after N failed jobs in a row; 0: never."
            ),
        )
    ):
        command = option(command)
    return command


def _read_payload(ctx: click.Context, parameter: click.Parameter, text: str | None) -> msgspec.Raw | None:
    return None if text is None else read_payload(ctx, parameter, text)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != {}}


@click.group()
def schedule() -> None:
    """Make jobs at certain times, and see what became of them."""


@schedule.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@client_options
def schedule_list(client: Client, as_json: bool) -> None:
    """List all schedules, by name.

    \b
    Examples:
      jobd schedule list
      jobd schedule list --json | jq -r 'select(.missed_count > 0) | .name'
    """
    found = _all(client)
    if as_json:
        show_json(found)
        return
    rows = (
        (
            one.name,
            "paused" if one.paused else "ended" if one.next_ts is None else "active",
            _when(one),
            _ahead(one.next_ts),
            one.task,
            one.started_count,
            one.skipped_count,
            one.missed_count,
            one.origin,
        )
        for one in found
    )
    show_rows(COLUMNS, rows, nothing="no schedules; see `jobd schedule create --help`")


def _all(client: Client) -> Iterator[Schedule]:
    after = None
    while True:
        page = client.schedules(limit=PAGE, after=after)
        yield from page.schedules
        after = page.next
        if after is None:
            return


def _when(one: Schedule) -> str:
    return f"every {one.every}" if one.every else f"{one.cron} {one.timezone}"


def _ahead(ts: int | None) -> str | None:
    """How long until then on a terminal, else the moment."""
    if ts is None or not is_terminal():
        return None if ts is None else moment(ts)
    return f"in {lasting(ts / 1000 - datetime.now(timezone.utc).timestamp())}"


@schedule.command("show")
@name_argument
@json_option
@client_options
def schedule_show(client: Client, name: str, as_json: bool) -> None:
    """Show a schedule: its settings, the next five times, its counters, and what was missed, skipped or delayed.

    \b
    Examples:
      jobd schedule show nightly
      jobd schedule show nightly --json | jq .events
    """
    _show(client.schedule(name), as_json)


def _show(one: Schedule, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(one))
        return
    for line in _lines(one):
        click.echo(one_line(line))


def _lines(one: Schedule) -> Iterator[str]:
    yield f"schedule   {one.name} ({one.origin})" + (f", paused: {one.paused_why or 'by hand'}" if one.paused else "")
    yield f"when       {_when(one)}" + (f", up to {one.jitter_s:g} s later" if one.jitter_s else "")
    yield from (f"{name:10} {value.isoformat()}" for name, value in (("start", one.start), ("end", one.end)) if value)
    yield f"task       {one.task}, queue {one.queue or 'of the task'}, priority {one.priority}"
    yield f"payload    {compact(one.payload)}"
    yield f"policies   overlap {one.overlap}, catch_up {one.catch_up} within {lasting(one.catch_up_window_s)}"
    for number, ts in enumerate(one.upcoming_ts):
        yield f"{'' if number else 'next':10} {moment(ts)}"
    yield (
        f"so far     {one.started_count} started, {one.skipped_count} skipped, {one.missed_count} missed,"
        f" {len(one.buffered_ts)} waiting, {one.failures} failures in a row"
    )
    for event in one.events:
        yield f"{moment(event.at_ts)}  {event.kind} {event.number}: {event.detail}"


@schedule.command("create")
@click.argument("name")
@click.argument("task", shell_complete=complete_tasks)
@definition_options
@click.option("--paused", is_flag=True, help="Make it paused.")
@json_option
@client_options
def schedule_create(client: Client, name: str, task: str, paused: bool, as_json: bool, **options: Any) -> None:
    """Make a schedule, either by --cron or by --every.

    "{{scheduled_at}}" in a string of the payload becomes the time of the occurrence.

    \b
    Examples:
      jobd schedule create nightly chat --cron "0 3 * * *" --timezone Europe/Berlin
      jobd schedule create poll embed --every 15m --payload '{"at": "{{scheduled_at}}"}' --overlap buffer_one
      jobd schedule create report chat --cron "0 9 * * MON#1" --catch-up all --overlap allow_all --label team=a
    """
    made = client.create_schedule(name, task, options.pop("payload"), paused=paused, **_given(options))
    _show(made, as_json)


@schedule.command("edit")
@name_argument
@click.option("--task", metavar="NAME", help="Task of its jobs.", shell_complete=complete_tasks)
@definition_options
@click.option("--none", "removed", multiple=True, type=click.Choice(REMOVABLE), help="Take this setting away.")
@json_option
@client_options
def schedule_edit(client: Client, name: str, removed: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Change what is given; the rest stays. A new --cron or --every plans the next time from now and starts nothing.

    \b
    Examples:
      jobd schedule edit nightly --cron "30 2 * * *"
      jobd schedule edit poll --every 5m --none queue
    """
    changes: Any = {**_given(options), **dict.fromkeys(removed)}
    if not changes:
        raise click.UsageError("say what is to be changed; see --help")
    _show(client.edit_schedule(name, **changes), as_json)


@schedule.command("pause")
@name_argument
@json_option
@client_options
def schedule_pause(client: Client, name: str, as_json: bool) -> None:
    """Start no more jobs of a schedule, until it is resumed.

    \b
    Examples:
      jobd schedule pause nightly
    """
    _tell(client.pause_schedule(name), f"schedule {name} is paused", as_json)


@schedule.command("resume")
@name_argument
@json_option
@client_options
def schedule_resume(client: Client, name: str, as_json: bool) -> None:
    """Go on with a paused schedule, with the first occurrence from now.

    \b
    Examples:
      jobd schedule resume nightly
    """
    _tell(client.resume_schedule(name), f"schedule {name} goes on", as_json)


def _tell(answer: object, text: str, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(answer))
    else:
        note(text)


@schedule.command("run")
@name_argument
@json_option
@client_options
def schedule_run(client: Client, name: str, as_json: bool) -> None:
    """Make a job of a schedule now, also if it is paused, and print the id of the job.

    \b
    Examples:
      jobd watch "$(jobd schedule run nightly)"
    """
    job_id = client.run_schedule(name)
    click.echo(msgspec.json.encode({"job_id": job_id}) if as_json else str(job_id))


@schedule.command("backfill")
@name_argument
@click.option("--from", "since", required=True, callback=read_time, metavar="TIME", help="The first time.")
@click.option("--to", "until", callback=read_time, metavar="TIME", help="The last time (default: now).")
@json_option
@client_options
def schedule_backfill(client: Client, name: str, since: datetime, until: datetime | None, as_json: bool) -> None:
    """Make jobs of the occurrences between two times, at most 100, that have none.

    \b
    Examples:
      jobd schedule backfill nightly --from 7d
      jobd schedule backfill nightly --from 2026-11-01 --to 2026-11-08
    """
    answer = client.backfill_schedule(name, since, until or datetime.now(timezone.utc))
    if as_json:
        click.echo(msgspec.json.encode(answer))
        return
    for job_id in answer.started:
        click.echo(str(job_id))
    note(f"{len(answer.started)} jobs made, {answer.buffered} wait for others, {answer.existing} were there already")


@schedule.command("next")
@name_argument
@click.option("-n", "number", type=click.IntRange(1, 100), default=5, show_default=True, help="How many.")
@json_option
@client_options
def schedule_next(client: Client, name: str, number: int, as_json: bool) -> None:
    """Print the next times of a schedule, in its own time zone.

    \b
    Examples:
      jobd schedule next nightly -n 10
    """
    answer = client.schedule_next(name, n=number)
    if as_json:
        click.echo(msgspec.json.encode(answer))
        return
    for occurrence in answer.occurrences:
        click.echo(occurrence.local)


@schedule.command("delete")
@name_argument
@json_option
@client_options
def schedule_delete(client: Client, name: str, as_json: bool) -> None:
    """Delete a schedule. Its jobs stay.

    \b
    Examples:
      jobd schedule delete nightly
    """
    _tell(client.delete_schedule(name), f"schedule {name} is deleted; its jobs stay", as_json)
