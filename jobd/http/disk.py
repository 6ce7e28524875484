"""Refuses new jobs while the disk is nearly full: what is left is for finishing the jobs that are there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Config

#: Seconds between two checks of the free space.
CHECK_S = 1.0


class Disk:
    def __init__(self, free_bytes: Callable[[], int], config: Callable[[], Config]) -> None:
        #: Free where jobs are kept, as it is now.
        self.free_bytes = free_bytes
        self._config = config
        self._next_check = 0.0
        self._free = 0

    def is_low(self) -> bool:
        floor_mb = self._config().limits.min_free_mb
        if floor_mb and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + CHECK_S
            self._free = self.free_bytes()
        return self._free < floor_mb << 20

    def check(self) -> None:
        if self.is_low():
            floor_mb = self._config().limits.min_free_mb
            raise ApiError(
                "disk_low",
                f"{self._free >> 20} MB are free where jobs are kept, and limits.min_free_mb is {floor_mb};"
                " no new jobs are taken until there is more",
                headers={"Retry-After": "30"},
            )
