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

from jobd.cli.board import size
from jobd.cli.show import bar, one_line
from jobd.cli.table import ago
from jobd.cli.times import lasting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import JustifyMethod, RenderableType

    from jobd.cli.top.rates import Rates, Snapshot, SnapshotHistory
    from jobd.client import DeadLetter, HeldJob, QueueObject, Worker
    from jobd.wire.board import BoardObject

#: Columns of the terminal from which on the extra columns of each table are shown.
WIDE = 110
#: Lines above the tables.
HEAD_LINES = 6
#: Width of a bar in columns.
BAR_CELLS = 12
#: Width of the first column of every table on a wide terminal, so that the columns align: that of a job id.
ID_CELLS = 36


class TableSection(NamedTuple):
    #: Title and whether it is a number, of each column.
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[RenderableType]]
    #: Shown when there are no rows.
    nothing: str


def frame(history: SnapshotHistory, width: int, height: int, interval_s: float | None) -> Group:
    """`interval_s` None: there will be no other."""
    head = [_title(history, width, interval_s), _state(history, width)]
    if history.last is None:
        return Group(*head)
    is_wide = width >= WIDE
    sections = [
        _queues(history, history.last),
        _running(history.last, is_wide),
        _workers(history.last),
        _letters(history.last, is_wide),
    ]
    room = height - HEAD_LINES - sum(2 for _ in sections) + 1  # the last has no empty line behind it
    shares = shared_out(room, [max(1, len(section.rows)) for section in sections])
    parts: list[RenderableType] = [*head, _totals(history, history.last), _board(history.last.board, width), Text()]
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


def _title(history: SnapshotHistory, width: int, interval_s: float | None) -> Text:
    left = f" jobd top  {history.url}"
    every = "" if interval_s is None else f"  every {interval_s:g} s  q leaves "
    right = f"{time.strftime('%H:%M:%S')}{every}"
    return Text(f"{left}{' ' * max(1, width - len(left) - len(right))}{right}", style="reverse", no_wrap=True)


def _state(history: SnapshotHistory, width: int) -> Text:
    if history.away_s is not None:
        known = "" if history.last is None else "; below is how it was"
        text, style = f"jobd is AWAY for {lasting(history.away_s)}, trying again{known} ({history.trouble})", "bold red"
    elif history.was_away_s is not None:
        text, style = f"jobd is back; it was away for {lasting(history.was_away_s)}", "bold green"
    elif history.last is None:
        text, style = "asking jobd", "dim"
    elif history.last.stats.degraded:
        text, style = "up, but Redis is away: jobs run all the same, live events come late", "yellow"
    else:
        text, style = "up", "green"
    return Text(f" {one_line(text)}"[:width], style=style, no_wrap=True)


def _totals(history: SnapshotHistory, last: Snapshot) -> Text:
    totals, stats = last.stats.totals, last.stats
    colours = {"queued": "cyan", "running": "blue", "done": "green", "error": "red", "canceled": "yellow"}
    text = Text(no_wrap=True)
    for name, colour in colours.items():
        text.append(f" {name} ").append(f"{getattr(totals, name)} ", style=f"bold {colour}")
    came, ended, failed = _rate_texts(history.rates())
    text.append(f"\n in {came}/s   out {ended}/s   failed {failed}/s   untold commits {stats.outbox_depth}")
    return text


def _board(board: BoardObject | None, width: int) -> Text:
    """One line: the hottest zone, power, GPUs, memory, and what slows the board down."""
    if board is None or board.taken_ts is None:
        return Text(" board not measured", style="dim")
    heat = board.heat
    words = [] if heat.celsius is None else [f"{heat.zone} {heat.celsius:.0f} C"]
    words += [f"{rail.watts:.1f} W" for rail in board.rails if rail.is_total][:1]
    words += [f"{gpu.gpu} {gpu.load:.0%}" for gpu in board.gpus if gpu.load is not None]
    if board.memory is not None:
        memory = board.memory
        words.append(f"{size(memory.available_bytes)} of {size(memory.total_bytes)} free")
        words += [f"{size(memory.reserved_bytes)} reserved"] if memory.reserved_bytes else []
    words += [f"heat {heat.level}"] if heat.level != "none" else []
    words += [f"slowed down: {', '.join(board.throttled_by)}"] if board.throttled_by else []
    style = "red" if heat.level == "hard" else "yellow" if heat.level == "soft" or board.throttled_by else ""
    return Text(f" board {one_line('   '.join(words))}"[:width], style=style, no_wrap=True)


def _rate_texts(rates: Rates | None) -> tuple[str, str, str]:
    if rates is None:
        return "-", "-", "-"
    return f"{rates.came:.1f}", f"{rates.ended:.1f}", f"{rates.failed:.1f}"


def _queues(history: SnapshotHistory, last: Snapshot) -> TableSection:
    columns = (
        *(("QUEUE", False), ("STATE", False), ("SLOTS", True), ("QUEUED", True), ("RUNNING", True)),
        *(("IN/S", True), ("OUT/S", True), ("ERROR", True), ("WAITS", True)),
    )
    busiest = sorted(last.stats.queues, key=lambda queue: (-(queue.queued + queue.running), queue.name))
    return TableSection(columns, [_queue_row(history, queue) for queue in busiest], "no queues")


def _queue_row(history: SnapshotHistory, queue: QueueObject) -> list[RenderableType]:
    came, ended, _ = _rate_texts(history.queue_rates(queue.name))
    return [
        _plain(queue.name),
        Text("paused", style="yellow") if queue.paused else Text("open"),
        Text("-" if queue.slots is None else str(queue.slots)),
        Text(str(queue.queued), style="cyan" if queue.queued else ""),
        Text(str(queue.running), style="blue" if queue.running else ""),
        Text(came),
        Text(ended),
        Text(str(queue.error), style="red" if queue.error else ""),
        Text("-" if queue.head_waits_s is None else lasting(queue.head_waits_s)),
    ]


def _running(last: Snapshot, is_wide: bool) -> TableSection:
    more = (("QUEUE", False), ("STEP", False)) if is_wide else ()
    columns = (("RUNNING JOB", False), ("TASK", False), ("FOR", True), ("PROGRESS", False), *more)
    return TableSection(columns, [_running_row(job, is_wide) for job in last.workers.held], "nothing runs")


def _running_row(job: HeldJob, is_wide: bool) -> list[RenderableType]:
    how_far = Text("stopping", style="yellow") if job.cancel_requested else _bar(job.progress)
    row: list[RenderableType] = [Text(str(job.job_id)), _plain(job.task), Text(ago(job.started_ts) or ""), how_far]
    return [*row, _plain(job.queue), _plain(job.step)] if is_wide else row


def _bar(progress: float | None) -> Text:
    return Text("-") if progress is None else Text(bar(progress, BAR_CELLS, sys.stdout.encoding), style="blue")


def _workers(last: Snapshot) -> TableSection:
    columns = (("WORKER", False), ("KIND", False), ("JOBS", True), ("LONGEST", True), ("HEARTBEAT", True))
    return TableSection(columns, [_worker_row(worker) for worker in last.workers.workers], "nobody holds a job now")


def _worker_row(worker: Worker) -> list[RenderableType]:
    times = (ago(worker.oldest_lease_ts), ago(worker.last_heartbeat_ts))
    return [
        _plain(worker.worker_id),
        _plain(worker.kind),
        Text(str(worker.jobs)),
        *(Text(each or "") for each in times),
    ]


def _letters(last: Snapshot, is_wide: bool) -> TableSection:
    more = (("QUEUE", False), ("RUNS AGAIN AS", False)) if is_wide else ()
    columns = (("DEAD LETTER", False), ("TASK", False), ("ENDED", True), ("REASON", False), *more)
    waiting = [letter for letter in last.letters.letters if letter.redriven_to is None or is_wide]
    return TableSection(columns, [_letter_row(letter, is_wide) for letter in waiting], "no dead letters")


def _letter_row(letter: DeadLetter, is_wide: bool) -> list[RenderableType]:
    row: list[RenderableType] = [
        Text(str(letter.job_id), style="red"),
        _plain(letter.task),
        Text(ago(letter.at_ts) or ""),
        _plain(letter.reason),
    ]
    return [*row, _plain(letter.queue), Text(str(letter.redriven_to or "-"))] if is_wide else row


def _table(section: TableSection, most: int, is_wide: bool) -> Table:
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
