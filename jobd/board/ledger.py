"""Memory that is promised to jobs: who may start, and what is left for others.

    free = available - reserved - floor

`available` is asked of the kernel each time; `reserved` is what running jobs of tasks with `needs_memory_mb` were
promised and do not have yet, as far as that can be measured; the floor is `board.memory_floor_mb`. A promise is made
before the statement that takes a job is sent, and all in one event loop, so that two jobs never see the same memory
free. Without a probe no such job starts: a board that swaps itself to death helps nobody.

A process of an isolated task that is idle and has its model loaded has memory that its next job need not be given:
it is taken off the need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from jobd.board.memory import MemoryFigures
    from jobd.config.model import Config

#: Bytes of a megabyte, as `needs_memory_mb` counts.
MB = 1 << 20


class MemoryOffer(NamedTuple):
    """What one statement may start: at most one job that needs memory."""

    #: All tasks that need memory.
    tasks: Sequence[str]
    startable: Sequence[str]
    #: Those that need more than the board has.
    impossible: Sequence[str]
    #: Bytes that are set aside until the offer is settled.
    promised: int


class MemoryShortage(NamedTuple):
    """Why a job does not start now; in bytes."""

    needed: int
    #: None: memory cannot be measured here.
    free: int | None


class _Reservation:
    __slots__ = ("is_seen", "need", "resident", "task")

    def __init__(self, task: str, need: int, resident: int) -> None:
        self.task = task
        self.need = need
        #: What its process has of it: that of a warm one at first, then what was last measured.
        self.resident = resident
        #: Whether its process was measured. Until then the job may not have taken a warm one out of the idle ones yet.
        self.is_seen = False

    @property
    def open(self) -> int:
        return max(0, self.need - self.resident)


class MemoryLedger:
    def __init__(
        self,
        config: Callable[[], Config],
        probe: Callable[[], MemoryFigures | None],
        warm: Callable[[str], Sequence[int]] = lambda task: (),
    ) -> None:
        """`warm`: resident bytes of the idle processes of a task, in the order in which jobs will get them."""
        self._config = config
        self._probe = probe
        self._warm = warm
        self._needs = {name: task.needs_memory_mb * MB for name, task in config().tasks.items() if task.needs_memory_mb}
        #: Queues in which jobs that need memory are expected, or were seen.
        self.queues = {config().tasks[name].queue for name in self._needs}
        #: Called when a promise has ended.
        self.on_freed: Callable[[], None] = lambda: None
        self._held: dict[UUID, _Reservation] = {}
        self._promised = 0

    @property
    def is_used(self) -> bool:
        """Whether any task needs memory; if not, there is nothing to ask here."""
        return bool(self._needs)

    def has_need(self, task: str) -> bool:
        return task in self._needs

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def floor_bytes(self) -> int:
        return self._config().board.memory_floor_mb * MB

    @property
    def reserved_bytes(self) -> int:
        return self._promised + sum(held.open for held in self._held.values())

    def free_bytes(self) -> int | None:
        """None: memory cannot be measured here."""
        figures = self._probe()
        return None if figures is None else self.free_of(figures.available)

    def free_of(self, available: int) -> int:
        return max(0, available - self.reserved_bytes - self.floor_bytes)

    def need_of(self, task: str) -> int:
        """What the next job of the task has to be given; 0: nothing."""
        need = self._needs.get(task, 0)
        return max(0, need - self._warm_bytes(task)) if need else 0

    def _warm_bytes(self, task: str) -> int:
        """Of the idle process that the next job will get. Jobs that were just started may not have taken theirs yet."""
        warm = self._warm(task)
        before = sum(held.task == task and not held.is_seen for held in self._held.values())
        return warm[before] if before < len(warm) else 0

    def shortage(self, task: str) -> MemoryShortage | None:
        """Why a job of the task cannot start now; None: it can, as far as memory is concerned."""
        if task not in self._needs:
            return None
        needed, free = self.need_of(task), self.free_bytes()
        return MemoryShortage(needed, free) if free is None or needed > free else None

    def too_large(self, task: str) -> MemoryShortage | None:
        """Set if a job of the task needs more than the board ever has; `free` is then all of it."""
        need, figures = self._needs.get(task, 0), self._probe() if task in self._needs else None
        most = 0 if figures is None else max(0, figures.total - self.floor_bytes)
        return MemoryShortage(need, most) if figures is not None and need > most else None

    # -- promises ----------------------------------------------------------------------------------------------------

    def offer(self) -> MemoryOffer:
        """What a take may start now; to be settled when it is answered."""
        needs = {task: self.need_of(task) for task in self._needs}
        free = self.free_bytes()
        startable = [task for task, need in needs.items() if free is not None and need <= free]
        impossible = [task for task in needs if task not in startable and self.too_large(task)]
        promised = max((needs[task] for task in startable), default=0)
        self._promised += promised
        return MemoryOffer(list(needs), startable, impossible, promised)

    def settle(self, offer: MemoryOffer, jobs: Iterable[tuple[UUID, str]] = ()) -> None:
        """These jobs, by lease token and task, were taken; what was set aside for others is free again."""
        self._promised -= offer.promised
        self.hold(jobs)

    def hold(self, jobs: Iterable[tuple[UUID, str]]) -> None:
        """Reserve for jobs that run in any case."""
        for token, task in jobs:
            if task in self._needs and token not in self._held:
                resident = self._warm_bytes(task)
                self._held[token] = _Reservation(task, self._needs[task], resident)

    def admit(self, token: UUID, task: str) -> bool:
        """Reserve for a job that was taken without an offer; False: it does not fit."""
        if token in self._held or not self.has_need(task):
            return True
        if self.shortage(task) is not None:
            return False
        self.hold([(token, task)])
        return True

    def measured(self, resident: Mapping[UUID, int]) -> None:
        """What the processes of running jobs have."""
        for token, number in resident.items():
            if (held := self._held.get(token)) is not None:
                held.resident, held.is_seen = number, True

    def let_go(self, tokens: Iterable[UUID]) -> None:
        """These jobs have ended, whether anything was reserved for them or not."""
        before = len(self._held)
        if before:
            for token in tokens:
                self._held.pop(token, None)
            if len(self._held) < before:
                self.on_freed()
