"""When a lease ends by this process's own clock, and the timer that stops its holder before that.

A lease counts from when the claim, or the newest renewal that was granted, was *sent*: Postgres cannot have counted
from an earlier time, however late the answer came. The timer waits for nothing but the clock: neither a renewal that
hangs nor a service that is being restarted delays it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from jobd.leases.flag import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jobd.config.model import Leases
    from jobd.lifecycle.heartbeat import Renewal

#: Part of the lease time by which a holder stops before its lease ends: its clock may run slower than that of Postgres.
MARGIN = 0.1


class Lease:
    """What its holder knows of a lease. Times are those of time.monotonic()."""

    def __init__(self, sent_at: float, ttl_s: float) -> None:
        #: Set when the lease is lost: its holder stops at once and writes nothing more.
        self.lost = Flag()
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


class EarliestTimer:
    """One timer of the event loop for many deadlines, set to the earliest of them."""

    def __init__(self, end_due: Callable[[], Iterable[float]]) -> None:
        """`end_due` is called at the deadline, stops what is due and returns the deadlines that are still to come."""
        self._end_due = end_due
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def watch(self, at: float) -> None:
        if self._timer is None or at < self._fires_at:
            self._set(at)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        if left := list(self._end_due()):
            self._set(min(left))
