"""How often the kernel has ended a process of this service for want of memory: the count of its own cgroup."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills() -> int:
    """The number of OOM kills so far; 0 where the kernel does not count them."""
    try:
        file = _own_file()
        return count_in(file.read_text()) if file else 0
    except OSError:
        return 0


def count_in(text: str) -> int:
    match = _COUNT.search(text)
    return int(match[1]) if match else 0


def counting_file(cgroup: str, root: Path) -> Path | None:
    """Where the count stands, given /proc/PID/cgroup: in `memory.events`, or in cgroup v1 `memory.oom_control`."""
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            file = root / "memory" / path.lstrip("/") / "memory.oom_control"
        else:
            file = root / path.lstrip("/") / "memory.events"
        if file.is_file():
            return file
    return None


@lru_cache(maxsize=1)
def _own_file() -> Path | None:
    return counting_file(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"))
