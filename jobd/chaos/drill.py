"""The drill: a board under load, one fault after the other, then rest, and the check of everything that happened."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobd.chaos.board import DrillBoard
from jobd.chaos.check import check
from jobd.chaos.disk import LoopDisk
from jobd.chaos.faults import FAULTS, LEASE_S, PLAN, Scene
from jobd.chaos.load import TASK, Load
from jobd.chaos.read import completed
from jobd.chaos.report import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobd.chaos.records import History
    from jobd.chaos.report import DrillReport

#: Longest time in seconds between two faults: each comes at another moment of what the board does.
CALM_S = 0.8
#: Seconds after the last fault within which all jobs must have ended.
REST_S = 300.0
#: Jobs of other queues are left alone, and nothing is deleted by retention. The bound of interruptions is out of reach:
#: no board is interrupted as often. Attempts are few, so that one which a fault costs shows as a dead letter.
CONFIG = """
[leases]
ttl_s = {lease_s}
heartbeat_s = 0.5
[retry]
max_attempts = 2
max_interruptions = 1000
base_s = 0.05
cap_s = 0.5
[limits]
min_free_mb = {min_free_mb}
[retention]
jobs_s = 315360000
tickets_s = 315360000
[tickets]
enabled = false
[queues.default]
slots = 0
[queues.{queue}]
slots = 8
[tasks.{task}]
run = "python"
handler = "jobd.chaos.handlers:work"
queue = "{queue}"
"""
#: Free MB below which submits are refused, on the disk of a drill.
MIN_FREE_MB = 30


class DrillOptions(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int = len(PLAN)
    #: Faults to choose from, in turn; empty: all.
    only: tuple[str, ...] = ()
    seed: int | None = None
    #: A data directory to work on; None: one that is made and thrown away.
    data_dir: Path | None = None


def run(options: DrillOptions, tell: Callable[[str], None] = lambda _: None) -> DrillReport:
    """Everything, from a new board to the report."""
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    with _stage(options) as (board, disk, queue, why_not):
        started = time.monotonic()
        names, skipped = _plan(options, why_not)
        faults: Counter[str] = Counter()
        ready_s: list[float] = []
        scene = Scene(board, disk, random.Random(seed))
        board.start()
        board.until_ready()
        with Load(board, queue) as load:
            for number, name in enumerate(names, 1):
                tell(f"round {number} of {len(names)}: {FAULTS[name].text}; {load.accepted} jobs accepted")
                time.sleep(scene.chance.random() * CALM_S)
                took_s = FAULTS[name].inflict(scene)
                faults[name] += 1
                if took_s is not None:
                    ready_s.append(took_s)
        tell("the last jobs end")
        history = _stopped(board, history_of(board, queue, load))
        tell("")
        return summary(
            history,
            check(history),
            seed=seed,
            seconds=time.monotonic() - started,
            faults=faults,
            skipped=skipped,
            unanswered=load.unanswered,
            ready_s=ready_s,
        )


def history_of(board: DrillBoard, queue: str, load: Load) -> History:
    url = board.addresses()["DATABASE_URL"]
    return completed(url, queue, load.sent(), board.runs, load.groups, REST_S)


def _stopped(board: DrillBoard, history: History) -> History:
    return msgspec.structs.replace(history, exit_code=board.stop(), left=tuple(board.all_pids()))


def _plan(options: DrillOptions, why_not: str | None) -> tuple[list[str], dict[str, str]]:
    """The fault of each round, and why others are left out."""
    wanted = [name for name in PLAN if not options.only or name in options.only]
    skipped = {name: why_not for name in wanted if why_not is not None and FAULTS[name].needs_disk}
    possible = [name for name in wanted if name not in skipped]
    return list(itertools.islice(itertools.cycle(possible), options.rounds if possible else 0)), skipped


@contextlib.contextmanager
def _stage(options: DrillOptions) -> Iterator[tuple[DrillBoard, LoopDisk | None, str, str | None]]:
    """A board that does not run yet, its disk or None, its queue, and why it has no disk."""
    folder = Path(tempfile.mkdtemp(prefix="jobd-chaos-"))
    folder.chmod(0o755)  # the servers may run as another user
    queue = f"chaos-{folder.name[-8:].lower()}"
    needs_disk = any(FAULTS[name].needs_disk for name in options.only or PLAN)
    why_not = "a given data directory is not put on another disk" if options.data_dir else LoopDisk.why_not()
    disk = LoopDisk(folder) if needs_disk and why_not is None else None
    try:
        if disk is not None:
            disk.make()
        data_dir = options.data_dir or (folder if disk is None else disk.path) / "data"
        config = CONFIG.format(lease_s=LEASE_S, min_free_mb=MIN_FREE_MB if disk else 100, queue=queue, task=TASK)
        board = DrillBoard(folder, data_dir, config)
        try:
            yield board, disk, queue, why_not
        finally:
            _end(board, is_own=options.data_dir is None)
    finally:
        if disk is not None:
            disk.throw_away()
        shutil.rmtree(folder, ignore_errors=True)


def _end(board: DrillBoard, *, is_own: bool) -> None:
    """A given data directory is left as after a clean stop."""
    if not is_own and board.is_running:
        board.stop()
    board.clear_away()
