"""Memory: what the kernel has left, less if a cgroup limits this process, and how much others wait for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from jobd.wire.board import MemoryPressure

if TYPE_CHECKING:
    from jobd.board.files import KeptFiles

MEMINFO, PRESSURE, OWN_CGROUP, CGROUPS = "/proc/meminfo", "/proc/pressure/memory", "/proc/self/cgroup", "/sys/fs/cgroup"

_LINE = re.compile(r"^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s*(\d+) kB$", re.MULTILINE)
_SHARE = re.compile(r"^(some|full) avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
_INACTIVE = re.compile(r"^inactive_file (\d+)$", re.MULTILINE)


class MemoryFigures(NamedTuple):
    """In bytes."""

    total: int
    available: int
    swap_total: int = 0
    swap_free: int = 0


class BoardMemory:
    def __init__(self, files: KeptFiles) -> None:
        self._files = files
        #: The folders of this process's cgroup (v2) and those above it that have a limit of memory.
        self._cgroups: list[str] = []

    def discover(self) -> None:
        own = re.search(r"^0::(/.*)$", self._files.once(OWN_CGROUP) or "", re.MULTILINE)
        parts = own[1].strip("/").split("/") if own else []
        folders = ["/".join((CGROUPS, *parts[:number])).rstrip("/") for number in range(len(parts) + 1)]
        self._cgroups = [folder for folder in dict.fromkeys(folders) if self._limit(folder) is not None]

    def read(self) -> MemoryFigures | None:
        """None: the kernel does not say."""
        kilobytes = {name: int(number) for name, number in _LINE.findall(self._files.read(MEMINFO) or "")}
        if not {"MemTotal", "MemAvailable"} <= kilobytes.keys():
            return None
        total, available = kilobytes["MemTotal"] << 10, kilobytes["MemAvailable"] << 10
        for folder in self._cgroups:
            limit, used = self._limit(folder), self._files.number(f"{folder}/memory.current")
            if limit is not None and used is not None:
                total, available = min(total, limit), min(available, limit - used + self._cache(folder))
        return MemoryFigures(
            total, max(0, available), kilobytes.get("SwapTotal", 0) << 10, kilobytes.get("SwapFree", 0) << 10
        )

    def pressure(self) -> MemoryPressure | None:
        shares = {name: float(share) / 100 for name, share in _SHARE.findall(self._files.read(PRESSURE) or "")}
        if "some" not in shares:
            return None
        return MemoryPressure(some=shares["some"], full=shares.get("full", 0.0))

    def _limit(self, folder: str) -> int | None:
        return self._files.number(f"{folder}/memory.max")  # the word `max` is no number: no limit

    def _cache(self, folder: str) -> int:
        """Page cache that the kernel gives up when the cgroup is full."""
        found = _INACTIVE.search(self._files.read(f"{folder}/memory.stat") or "")
        return int(found[1]) if found else 0
