"""All figures of the board at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from jobd.board.disks import Disks
from jobd.board.files import KeptFiles
from jobd.board.gpu import Gpus
from jobd.board.identity import BoardIdentity, read_identity, read_power_mode
from jobd.board.memory import BoardMemory
from jobd.board.power import PowerRails
from jobd.board.temperatures import Temperatures
from jobd.board.throttling import Throttling

if TYPE_CHECKING:
    from jobd.board.memory import MemoryFigures
    from jobd.wire.board import DiskObject, GpuObject, MemoryPressure, RailObject, ZoneObject

#: Seconds between two searches for files: devices come and go, and the power mode changes, but rarely.
DISCOVER_S = 60.0


class BoardSample(NamedTuple):
    #: By time.time().
    taken_at: float
    identity: BoardIdentity
    power_mode: str | None
    zones: list[ZoneObject]
    rails: list[RailObject]
    gpus: list[GpuObject]
    #: None: the kernel does not say.
    memory: MemoryFigures | None
    pressure: MemoryPressure | None
    disks: list[DiskObject]
    #: Why the board is slowed down; empty: it is not.
    throttled_by: list[str]


class Sampler:
    def __init__(self, root: str = "/") -> None:
        self._files = KeptFiles(root)
        self._identity = BoardIdentity(None, "other", None)
        self._power_mode: str | None = None
        self._temperatures = Temperatures(self._files)
        self._rails = PowerRails(self._files)
        self._gpus = Gpus(self._files)
        self._memory = BoardMemory(self._files)
        self._disks = Disks(self._files)
        self._throttling = Throttling(self._files)
        self._discover_at = 0.0

    def sample(self) -> BoardSample:
        """Blocks: some sensors take a millisecond to answer."""
        if time.monotonic() >= self._discover_at:
            self.discover()
        return BoardSample(
            taken_at=time.time(),
            identity=self._identity,
            power_mode=self._power_mode,
            zones=self._temperatures.read(),
            rails=self._rails.read(),
            gpus=self._gpus.read(),
            memory=self._memory.read(),
            pressure=self._memory.pressure(),
            disks=self._disks.read(),
            throttled_by=self._throttling.read(),
        )

    def discover(self) -> None:
        self._discover_at = time.monotonic() + DISCOVER_S
        self._identity = read_identity(self._files)
        self._power_mode = read_power_mode(self._files)
        for part in (self._temperatures, self._rails, self._gpus, self._memory, self._disks, self._throttling):
            part.discover()

    def close(self) -> None:
        self._files.close()
