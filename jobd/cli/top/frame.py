"""One frame of `jobd top`, for any size from 80x24 up: head, totals, queues, running jobs, workers, dead letters.

What jobs and workers call themselves is untrusted: it is put in as plain text, never as markup.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from jobd.cli.show import bar, one_line
from jobd.cli.table import ago, lasting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import JustifyMethod, RenderableType

    from jobd.cli.top.rates import Look, Rates, Seen
    from jobd.client import DeadLetter, HeldJob, QueueObject, Worker

#: From here on there is room for what is good to know.
WIDE = 110
HEAD_LINES = 5
BAR_CELLS = 12
#: The first columns of all sections are as wide, where there is room, so that the rest stands in line.
ID_CELLS = 36


class Section(NamedTuple):
    #: Title and whether it is a number, of each column.
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[RenderableType]]
    #: Said when there are no rows.
    nothing: str


def frame(seen: Seen, width: int, height: int, interval_s: float | None) -> Group:
    """`interval_s` None: there will be no other."""
    head = [_title(seen, width, interval_s), _state(seen, width)]
    if seen.last is None:
        return Group(*head)
    is_wide = width >= WIDE
    sections = [
        _queues(seen, seen.last),
        _running(seen.last, is_wide),
        _workers(seen.last),
        _letters(seen.last, is_wide),
    ]
    room = height - HEAD_LINES - sum(2 for _ in sections) + 1  # the last has no empty line behind it
    shares = shared_out(room, [max(1, len(section.rows)) for section in sections])
    parts: list[RenderableType] = [*head, _totals(seen, seen.last), Text()]
    for section, share in zip(sections, shares, strict=True):
        parts += [_table(section, share, is_wide), Text()]
    return Group(*parts[:-1])


def shared_out(room: int, wants: Sequence[int]) -> list[int]:
    """Lines for each section: one at least, then in turn to those that want more."""
    shares = [1] * len(wants)
    while sum(shares) < room and shares != list(wants):
        for n, want in enumerate(wants):
            if shares[n] < want and sum(shares) < room:
                shares[n] += 1
    return shares


def _title(seen: Seen, width: int, interval_s: float | None) -> Text:
    left = f" jobd top  {seen.url}"
    every = "" if interval_s is None else f"  every {interval_s:g} s  q leaves "
    right = f"{time.strftime('%H:%M:%S')}{every}"
    return Text(f"{left}{' ' * max(1, width - len(left) - len(right))}{right}", style="reverse", no_wrap=True)


def _state(seen: Seen, width: int) -> Text:
    if seen.away_s is not None:
        known = "" if seen.last is None else "; below is how it was"
        text, style = f"jobd is AWAY for {lasting(seen.away_s)}, trying again{known} ({seen.trouble})", "bold red"
    elif seen.was_away_s is not None:
        text, style = f"jobd is back; it was away for {lasting(seen.was_away_s)}", "bold green"
    elif seen.last is None:
        text, style = "asking jobd", "dim"
    elif seen.last.stats.degraded:
        text, style = "up, but Redis is away: jobs run all the same, live events come late", "yellow"
    else:
        text, style = "up", "green"
    return Text(f" {one_line(text)}"[:width], style=style, no_wrap=True)


def _totals(seen: Seen, last: Look) -> Text:
    totals, stats = last.stats.totals, last.stats
    colours = {"queued": "cyan", "running": "blue", "done": "green", "error": "red", "canceled": "yellow"}
    text = Text(no_wrap=True)
    for name, colour in colours.items():
        text.append(f" {name} ").append(f"{getattr(totals, name)} ", style=f"bold {colour}")
    came, ended, failed = _rate_texts(seen.rates())
    text.append(f"\n in {came}/s   out {ended}/s   failed {failed}/s   untold commits {stats.outbox_depth}")
    return text


def _rate_texts(rates: Rates | None) -> tuple[str, str, str]:
    if rates is None:
        return "-", "-", "-"
    return f"{rates.came:.1f}", f"{rates.ended:.1f}", f"{rates.failed:.1f}"


def _queues(seen: Seen, last: Look) -> Section:
    columns = (
        *(("QUEUE", False), ("STATE", False), ("SLOTS", True), ("QUEUED", True), ("RUNNING", True)),
        *(("IN/S", True), ("OUT/S", True), ("ERROR", True), ("WAITS", True)),
    )
    busiest = sorted(last.stats.queues, key=lambda one: (-(one.queued + one.running), one.name))
    return Section(columns, [_queue_row(seen, one) for one in busiest], "no queues")


def _queue_row(seen: Seen, one: QueueObject) -> list[RenderableType]:
    came, ended, _ = _rate_texts(seen.queue_rates(one.name))
    return [
        _plain(one.name),
        Text("paused", style="yellow") if one.paused else Text("open"),
        Text("-" if one.slots is None else str(one.slots)),
        Text(str(one.queued), style="cyan" if one.queued else ""),
        Text(str(one.running), style="blue" if one.running else ""),
        Text(came),
        Text(ended),
        Text(str(one.error), style="red" if one.error else ""),
        Text("-" if one.head_waits_s is None else lasting(one.head_waits_s)),
    ]


def _running(last: Look, is_wide: bool) -> Section:
    more = (("QUEUE", False), ("STEP", False)) if is_wide else ()
    columns = (("RUNNING JOB", False), ("TASK", False), ("FOR", True), ("PROGRESS", False), *more)
    return Section(columns, [_running_row(one, is_wide) for one in last.workers.held], "nothing runs")


def _running_row(one: HeldJob, is_wide: bool) -> list[RenderableType]:
    how_far = Text("stopping", style="yellow") if one.cancel_requested else _bar(one.progress)
    row: list[RenderableType] = [Text(str(one.job_id)), _plain(one.task), Text(ago(one.started_ts) or ""), how_far]
    return [*row, _plain(one.queue), _plain(one.step)] if is_wide else row


def _bar(progress: float | None) -> Text:
    return Text("-") if progress is None else Text(bar(progress, BAR_CELLS, sys.stdout.encoding), style="blue")


def _workers(last: Look) -> Section:
    columns = (("WORKER", False), ("KIND", False), ("JOBS", True), ("LONGEST", True), ("HEARTBEAT", True))
    return Section(columns, [_worker_row(one) for one in last.workers.workers], "nobody holds a job now")


def _worker_row(one: Worker) -> list[RenderableType]:
    times = (ago(one.oldest_lease_ts), ago(one.last_heartbeat_ts))
    return [_plain(one.worker_id), _plain(one.kind), Text(str(one.jobs)), *(Text(each or "") for each in times)]


def _letters(last: Look, is_wide: bool) -> Section:
    more = (("QUEUE", False), ("RUNS AGAIN AS", False)) if is_wide else ()
    columns = (("DEAD LETTER", False), ("TASK", False), ("ENDED", True), ("REASON", False), *more)
    waiting = [one for one in last.letters.letters if one.redriven_to is None or is_wide]
    return Section(columns, [_letter_row(one, is_wide) for one in waiting], "no dead letters")


def _letter_row(one: DeadLetter, is_wide: bool) -> list[RenderableType]:
    row: list[RenderableType] = [
        Text(str(one.job_id), style="red"),
        _plain(one.task),
        Text(ago(one.at_ts) or ""),
        _plain(one.reason),
    ]
    return [*row, _plain(one.queue), Text(str(one.redriven_to or "-"))] if is_wide else row


def _table(section: Section, most: int, is_wide: bool) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=True, header_style="bold", show_edge=False)
    for n, (title, is_number) in enumerate(section.columns):
        least = ID_CELLS if n == 0 and is_wide else None
        side: JustifyMethod = "right" if is_number else "left"
        table.add_column(title, justify=side, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in section.rows[:most]:
        table.add_row(*row)
    if not section.rows:
        table.add_row(Text(section.nothing, style="dim"))
    return table


def _plain(text: str) -> Text:
    return Text(one_line(text))
