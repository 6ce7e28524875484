"""What a service is: a name, a place in the tree, and one coroutine that returns only when it was asked to stop.

A service reports when it is up (`handle.ready()`), shows that its loop still turns (`handle.beat()`), watches
`handle.stop`, and knows nothing of restarts: it raises, and the supervisor decides.
"""

from __future__ import annotations

import time
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


class Phase(IntEnum):
    """The order in which a drain stops services; within a phase, the last in the tree stops first."""

    INTAKE = 0  # what takes on new work
    WORK = 1  # what carries it out
    EDGE = 2  # what answers clients
    FLUSH = 3  # what still writes down the outcome
    SERVERS = 4  # what all of these stand on


class State(str, Enum):
    WAITING = "waiting"  # for a service that it needs, or for its next try
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"


class Handle:
    """One run of a service, seen from both sides."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        #: Set when the service shall finish what it has in hand and return.
        self.stop = anyio.Event()
        #: Set with `stop` when there is no time to finish anything.
        self.hurry = False
        self.beat_at = time.monotonic()
        #: What it is while it is ready, if there is more to say than that.
        self.note = ""
        #: It is ready, and yet what it stands for is not done.
        self.is_impaired = False
        self._on_ready = on_ready

    def ready(self) -> None:
        self.beat()
        self._on_ready()

    def beat(self) -> None:
        self.beat_at = time.monotonic()

    def tell(self, note: str, *, is_impaired: bool = False) -> None:
        self.note, self.is_impaired = note, is_impaired


class Service(Protocol):
    async def run(self, handle: Handle) -> None: ...


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the tree."""

    name: str
    service: Service
    phase: Phase
    #: Names of the services that must be ready before this one starts, and whose end ends this one.
    needs: tuple[str, ...] = ()
    #: Whether jobd is of no use without it. One that is not needed is tried again for ever and makes jobd degraded.
    needed: bool = True
    #: Seconds without a beat after which a ready service counts as stuck.
    stall_s: float = 30.0
