"""Room on a disk and in memory, as the kernel counts it. Both calls may block, if the disk hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

MEMINFO = Path("/proc/meminfo")


class FreeSpace(NamedTuple):
    """In bytes; free is what an unprivileged process may take."""

    free: int
    total: int


def disk_space(path: Path) -> FreeSpace:
    """Of the file system that the path is on, or would be on."""
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    info = os.statvfs(nearest)
    return FreeSpace(info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize)


def memory_space(meminfo: Path = MEMINFO) -> FreeSpace | None:
    """Memory that can be had without swapping, and all of it; None where there is no /proc."""
    try:
        lines = meminfo.read_text().splitlines()
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return FreeSpace(kilobytes["MemAvailable"] << 10, kilobytes["MemTotal"] << 10)
    except (OSError, LookupError, ValueError):
        return None
