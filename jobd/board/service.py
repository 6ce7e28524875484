"""Measures the board now and then, decides what its heat means, and keeps the last figures for all who ask.

Sensors are read in a thread of their own: one on a slow bus takes a millisecond, and one that hangs must stop nothing
else. Then the last figures stay, with their time.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from jobd.board.files import KeptFiles
from jobd.board.heat import HeatSettings, decide_heat
from jobd.board.memory import BoardMemory
from jobd.board.sampler import Sampler
from jobd.wire.board import BoardObject, HeatObject, MemoryObject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from jobd.board.ledger import MemoryLedger
    from jobd.board.memory import MemoryFigures
    from jobd.board.sampler import BoardSample
    from jobd.config.model import Config
    from jobd.supervise.service import Handle
    from jobd.wire.board import HeatLevel

log = logging.getLogger(__name__)

#: Seconds after which a measurement that does not end is not waited for any longer.
PATIENCE_S = 5.0

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryProbe:
    """What the kernel says of memory at the moment; for the event loop."""

    def __init__(self, config: Config) -> None:
        self._memory = BoardMemory(KeptFiles(config.board.prefix)) if config.board.enabled else None
        if self._memory is not None:
            self._memory.discover()

    def __call__(self) -> MemoryFigures | None:
        return None if self._memory is None else self._memory.read()


class Throttled:
    """Since when, and by what, the board has been slowed down; attempts that ran meanwhile are marked."""

    def __init__(self) -> None:
        #: When that was last seen, by time.monotonic().
        self.seen_at = -math.inf
        self.by: list[str] = []

    def see(self, words: list[str], now: float) -> None:
        if words:
            self.seen_at, self.by = now, words


class BoardService:
    def __init__(
        self,
        config: Callable[[], Config],
        ledger: MemoryLedger,
        *,
        on_heat: Callable[[HeatLevel], None] = lambda level: None,
        on_sample: Callable[[], None] = lambda: None,
        processes: Callable[[], Mapping[UUID, int]] = dict,
    ) -> None:
        """`processes`: the process of each job that runs in one, by lease token."""
        self._config = config
        self._ledger = ledger
        self._on_heat = on_heat
        self._on_sample = on_sample
        self._processes = processes
        self._sampler = Sampler(config().board.prefix)
        self._limiter = anyio.CapacityLimiter(1)
        self._is_measuring = False
        self._sample: BoardSample | None = None
        self._levels: Mapping[str, HeatLevel] = {}
        self.heat = HeatObject()
        self.throttled = Throttled()

    # -- what is known -----------------------------------------------------------------------------------------------

    def read(self) -> BoardObject:
        sample = self._sample
        if sample is None:
            return BoardObject()
        return BoardObject(
            taken_ts=int(sample.taken_at * 1000),
            model=sample.identity.model,
            kind=sample.identity.kind,
            release=sample.identity.release,
            power_mode=sample.power_mode,
            zones=sample.zones,
            rails=sample.rails,
            gpus=sample.gpus,
            memory=self._memory(sample),
            disks=sample.disks,
            throttled_by=sample.throttled_by,
            heat=self.heat,
        )

    def _memory(self, sample: BoardSample) -> MemoryObject | None:
        if sample.memory is None:
            return None
        return MemoryObject(
            total_bytes=sample.memory.total,
            available_bytes=sample.memory.available,
            swap_total_bytes=sample.memory.swap_total,
            swap_free_bytes=sample.memory.swap_free,
            pressure=sample.pressure,
            reserved_bytes=self._ledger.reserved_bytes,
            floor_bytes=self._ledger.floor_bytes,
            free_bytes=self._ledger.free_of(sample.memory.available),
        )

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        if self._config().board.enabled:
            await self.run_once()
        handle.ready()
        while not handle.stop.is_set():
            with anyio.move_on_after(self._config().board.period_s):
                await handle.stop.wait()
            if self._config().board.enabled and not handle.stop.is_set():
                await self.run_once()
            handle.beat()

    async def run_once(self) -> None:
        """Measure once; nothing changes if that takes too long."""
        if self._is_measuring:
            return
        self._is_measuring = True
        with anyio.move_on_after(PATIENCE_S):
            sample = await anyio.to_thread.run_sync(self._measure, abandon_on_cancel=True, limiter=self._limiter)
            self._take_over(sample)

    def _measure(self) -> BoardSample:
        try:
            return self._sampler.sample()
        finally:
            self._is_measuring = False

    def _take_over(self, sample: BoardSample) -> None:
        self._sample = sample
        self.throttled.see(sample.throttled_by, time.monotonic())
        board, before = self._config().board, self.heat
        decision = decide_heat(self._levels, sample.zones, HeatSettings(board.soft_c, board.hard_c, board.hysteresis_c))
        self._levels, self.heat = decision.levels, decision.heat
        if before.level != self.heat.level:
            self._say_heat()
            self._on_heat(self.heat.level)
        if self._ledger.is_used:
            resident = {token: resident_bytes(pid) for token, pid in self._processes().items()}
            self._ledger.measured(resident)
            self._on_sample()

    def _say_heat(self) -> None:
        heat = self.heat
        meaning = {
            "none": "all slots of hot queues start jobs",
            "soft": "half of the slots of hot queues start jobs",
            "hard": "no slot of a hot queue starts a job",
        }[heat.level]
        level = logging.INFO if heat.level == "none" else logging.WARNING
        log.log(level, "%s has %.1f degrees: %s", heat.zone or "the board", heat.celsius or 0.0, meaning)


def resident_bytes(pid: int) -> int:
    """Of one process; 0: it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
