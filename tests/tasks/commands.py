"""What the tests of commands share: a context that remembers what it was told, and the programs."""

from __future__ import annotations

import gc
import os
import resource
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobd.config.model import Task
from jobd.tasks.runner import Context

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROGRAMS = Path(__file__).parent / "programs"
JOB_ID = UUID("01890000-0000-7000-8000-000000000001")


class Notes:
    """Collects the events of one attempt."""

    def __init__(self, timeout_s: float = 30) -> None:
        self.events: list[tuple[str, str, Mapping[str, Any]]] = []
        self.context = Context(
            job_id=JOB_ID,
            task="t",
            attempt=2,
            max_attempts=3,
            timeout_s=timeout_s,
            emit=lambda kind, step, data: self.events.append((kind, step, data)),
        )

    @property
    def lines(self) -> list[str]:
        return [data["line"] for kind, _, data in self.events if kind == "log"]


def command(program: str, *arguments: str, **settings: Any) -> Task:
    """A task that runs one of the programs; `-I -S` halves what it costs to start."""
    argv = (sys.executable, "-I", "-S", str(PROGRAMS / program), *arguments)
    return Task(run="command", argv=argv, **settings)


def children() -> dict[int, str]:
    """Every child of this process with its state, zombies included."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == os.getpid():
                found[int(name)] = state
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Before:
    """What this process had before a test. What others left behind may go meanwhile; nothing may be added."""

    def __init__(self) -> None:
        gc.collect()
        self._children, self._descriptors = set(children()), descriptors()

    @property
    def added(self) -> tuple[dict[int, str], int]:
        """New children with their states, and how many more descriptors there are."""
        new = {pid: state for pid, state in children().items() if pid not in self._children}
        return new, max(0, descriptors() - self._descriptors)

    def has_nothing_new(self) -> bool:
        return self.added == ({}, 0)


@contextmanager
def room_for_descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] <= highest:  # the limit is about numbers, so none below may be free
        fillers.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
