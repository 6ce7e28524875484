"""How much room is left on the disk of the data directory and in memory, measured at most every few seconds.

It is measured in a thread: `statvfs` blocks on a disk that hangs. Then the last known figures are answered, and no
second thread is started.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from jobd.host.space import disk_space, memory_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jobd.host.space import FreeSpace

#: Seconds for which figures are kept: they move slowly, and any number of pages may ask.
FRESH_S = 5.0
#: Seconds to wait for a disk that does not answer.
PATIENCE_S = 1.0


class HostSpace(NamedTuple):
    """None: not known."""

    disk: FreeSpace | None = None
    memory: FreeSpace | None = None


class SpaceGauge:
    def __init__(
        self,
        path: Path,
        measure: Callable[[Path], FreeSpace] = disk_space,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._measure = measure
        self._clock = clock
        self._known = HostSpace()
        self._known_at = -math.inf
        self._is_measuring = False

    async def read(self) -> HostSpace:
        if not self._is_measuring and self._clock() - self._known_at >= FRESH_S:
            self._is_measuring = True
            with anyio.move_on_after(PATIENCE_S):
                await anyio.to_thread.run_sync(self._take, abandon_on_cancel=True)
        return self._known

    def _take(self) -> None:
        try:
            self._known = HostSpace(self._measure(self._path), memory_space())
        except OSError:
            self._known = HostSpace(None, memory_space())
        finally:
            self._known_at = self._clock()
            self._is_measuring = False
