"""What is done to a board in one round. Each fault leaves it ready again, and says how long that took after a start."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, NamedTuple

import redis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from jobd.chaos.board import DrillBoard
    from jobd.chaos.disk import LoopDisk

#: Seconds of a lease on the board under test.
LEASE_S = 2
#: Seconds of a freeze, longer than the lease.
FREEZE_S = 3.0
#: Longest time in seconds after a start at which a jobd that is not ready yet is killed.
EARLY_S = 1.5
#: Seconds that a disk stays full.
FULL_S = 3.0


class Scene(NamedTuple):
    board: DrillBoard
    #: None: the board has no disk of its own.
    disk: LoopDisk | None
    chance: Random


class Fault(NamedTuple):
    name: str
    text: str
    #: Seconds from the start of jobd until it was ready; None: it was not started again.
    inflict: Callable[[Scene], float | None]
    needs_disk: bool = False
    #: Whether it is a kill -9.
    is_kill: bool = False


def kill_jobd(scene: Scene) -> float:
    scene.board.kill(scene.board.pids_of("jobd"))
    return _started(scene.board)


def kill_postgres(scene: Scene) -> None:
    _kill_server(scene.board, "postgres")


def lose_postgres(scene: Scene) -> None:
    """Longer than a lease: jobd gives up what it runs, and then finds leases in Postgres that are its own."""
    board = scene.board
    pids = board.pids_of("postgres")
    board.signal(pids, signal.SIGSTOP)
    try:
        time.sleep(FREEZE_S)
    finally:
        _kill_server(board, "postgres", pids)


def kill_valkey(scene: Scene) -> None:
    _kill_server(scene.board, "valkey")


def _kill_server(board: DrillBoard, name: str, pids: Sequence[int] = ()) -> None:
    board.kill(pids or board.first_of(name))
    board.until_all_run()
    board.until_ready()


def kill_all(scene: Scene) -> float:
    scene.board.kill_all()
    return _started(scene.board)


def kill_early(scene: Scene) -> float:
    """Twice: the second time before it is ready."""
    board = scene.board
    board.kill(board.pids_of("jobd"))
    board.start()
    time.sleep(scene.chance.random() * EARLY_S)
    board.kill(board.pids_of("jobd"))
    return _started(board)


def freeze_jobd(scene: Scene) -> None:
    _freeze(scene.board, scene.board.pids_of("jobd"))


def freeze_all(scene: Scene) -> None:
    _freeze(scene.board, scene.board.all_pids())


def _freeze(board: DrillBoard, pids: Sequence[int]) -> None:
    board.signal(pids, signal.SIGSTOP)
    try:
        time.sleep(FREEZE_S)
    finally:
        board.signal(pids, signal.SIGCONT)
    board.until_ready()


def flush_redis(scene: Scene) -> None:
    with redis.Redis.from_url(scene.board.addresses()["REDIS_URL"]) as client:
        client.flushall()


def fill_disk(scene: Scene) -> None:
    assert scene.disk is not None
    scene.disk.fill()
    time.sleep(FULL_S)
    scene.disk.clear()
    if (
        not scene.board.is_running
    ):  # it gave up, as a service that fails for too long does; systemd would start it again
        scene.board.start()
    scene.board.until_ready()


def cut_power(scene: Scene) -> float:
    """All processes stop, then the disk: a machine without power answers nobody."""
    assert scene.disk is not None
    scene.board.signal(scene.board.all_pids(), signal.SIGSTOP)
    scene.disk.cut()
    scene.board.kill_all()
    scene.disk.unmount()
    scene.disk.mount()
    scene.disk.clear()  # a filler that was deleted just before may be back
    return _started(scene.board)


def _started(board: DrillBoard) -> float:
    since = time.monotonic()
    board.start()
    return board.until_ready(since)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill-jobd", "kill -9 of jobd", kill_jobd, is_kill=True),
        Fault("kill-postgres", "kill -9 of Postgres", kill_postgres, is_kill=True),
        Fault("kill-valkey", "kill -9 of Valkey", kill_valkey, is_kill=True),
        Fault("kill-all", "kill -9 of every process at once", kill_all, is_kill=True),
        Fault("kill-early", "kill -9 of jobd, and again while it starts", kill_early, is_kill=True),
        Fault("freeze-jobd", "jobd stopped (SIGSTOP) for longer than a lease", freeze_jobd),
        Fault("freeze-all", "every process stopped for longer than a lease", freeze_all),
        Fault("lose-postgres", "Postgres stopped for longer than a lease, then killed", lose_postgres, is_kill=True),
        Fault("flush-redis", "FLUSHALL", flush_redis),
        Fault("full-disk", "the disk filled to the last block for a while", fill_disk, needs_disk=True),
        Fault("power-cut", "what was not synced to the disk is gone", cut_power, needs_disk=True),
    )
}
#: One turn of the faults; kills come more often, each time at another moment.
PLAN = (
    *("kill-jobd", "kill-all", "lose-postgres", "kill-postgres", "kill-valkey", "freeze-jobd", "kill-all"),
    *("power-cut", "kill-jobd"),
    *("flush-redis", "kill-early", "full-disk", "kill-all", "kill-postgres", "freeze-all", "kill-jobd", "kill-valkey"),
)
