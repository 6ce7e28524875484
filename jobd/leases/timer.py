"""When a lease ends by this process's own clock, and the timer that stops its holder before that.

A lease counts from when the claim, or the newest renewal that was granted, was *sent*: Postgres cannot have counted
from an earlier time, however late the answer came. The timer waits for nothing but the clock: neither a renewal that
hangs nor a service that is being restarted delays it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jobd.config.model import Leases
    from jobd.lifecycle.heartbeat import Renewal

#: The part of a lease, before its end, at which its holder stops: the holder's clock may run slower than Postgres'.
MARGIN = 0.1


class Lease:
    """What its holder knows of a lease. Times are those of time.monotonic()."""

    def __init__(self, sent_at: float, ttl_s: float) -> None:
        #: Set when the lease is lost: its holder stops at once and writes nothing more.
        self.lost = anyio.Event()
        #: Called when the holder is to stop.
        self.on_stop: Callable[[], None] = lambda: None
        #: Called when a renewal was granted; in any thread.
        self.on_grant: Callable[[], None] = lambda: None
        self._count(sent_at, ttl_s)

    # -- what a kind of lease says of itself -----------------------------------------------------------------------

    def ttl_s(self, leases: Leases, renewal: Renewal | None = None) -> float:
        """How long it lasts: after this renewal, or without one."""
        raise NotImplementedError

    def heartbeat_s(self, leases: Leases) -> float:
        """How often it is renewed."""
        raise NotImplementedError

    def renewed(self, renewal: Renewal) -> Callable[[], None] | None:
        """Take note of a renewal, in any thread; what is returned is called in the event loop."""
        return None

    # -- the clock -------------------------------------------------------------------------------------------------

    def grant(self, sent_at: float, ttl_s: float) -> None:
        """A renewal that was sent at that time is granted; may be called from any thread."""
        if sent_at > self.renewed_at:
            self._count(sent_at, ttl_s)
            self.on_grant()

    def _count(self, sent_at: float, ttl_s: float) -> None:
        #: When the newest request that was granted had been sent.
        self.renewed_at = sent_at
        #: When its holder stops.
        self.ends_at = sent_at + ttl_s * (1 - MARGIN)
        #: When another process kills what the holder has started, even if this process stands still.
        self.kill_at = sent_at + ttl_s * (1 - MARGIN / 2)

    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_at

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set()

    def lose(self) -> None:
        self.lost.set()
        self.on_stop()


L = TypeVar("L", bound=Lease)


class LeaseTimer(Generic[L]):
    """One timer for all leases of a keeper, set to the earliest end that was known when it was set."""

    def __init__(self, kept: Callable[[], Iterable[L]], lose: Callable[[L], None]) -> None:
        #: The leases that are neither lost nor let go.
        self._kept = kept
        self._lose = lose
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def watch(self, lease: L) -> None:
        """Lose this lease, which is among those kept, when it is over."""
        if self._timer is None or lease.ends_at < self._fires_at:
            self._set(lease.ends_at)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        for lease in list(self._kept()):
            if lease.is_over():
                self._lose(lease)
        if left := [lease.ends_at for lease in self._kept()]:
            self._set(min(left))
