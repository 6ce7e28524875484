"""Readiness: writes a TICKET_READY event each time a ticket becomes TODO, and polls for the work of all pollers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobd.tickets.pollers.find_work import find_work
from jobd.tickets.pollers.free_claims import free_claims
from jobd.tickets.pollers.mark_ready import mark_ready
from jobd.tickets.pollers.poller import PAGE, Poller

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Config
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle
    from jobd.tickets.wakeups import Wakeups

#: Seconds between two deletions of claims that a crash left on a finished event or work order.
SWEEP_S = 600.0


class ReadinessPoller(Poller):
    def __init__(self, database: Database, config: Callable[[], Config], wakeups: Wakeups) -> None:
        super().__init__("readiness", database, config, wakeups, wakeups.readiness)
        self._swept_at = time.monotonic()
        self._poll_at = 0.0

    async def _wait(self, handle: Handle) -> None:
        """Poll for all four when it is time, however often this poller is woken meanwhile."""
        woken = False
        while not woken and not handle.stop.is_set():
            woken = await self._wait_for_wakeup(handle, self._poll_at - time.monotonic())
            if time.monotonic() >= self._poll_at:
                await self.poll()
                self._poll_at = time.monotonic() + self._poll_s()
                handle.beat()

    async def poll(self) -> None:
        """Wake each poller that would find something to do."""
        work, wakeups = await find_work(self._database), self._wakeups
        for has_work, wakeup in (
            (work.readiness, wakeups.readiness),
            (work.scheduler, wakeups.scheduler),
            (work.runner, wakeups.runner),
            (work.gate, wakeups.gate),
        ):
            if has_work:
                wakeup.set()
        if time.monotonic() - self._swept_at > SWEEP_S:
            self._swept_at = time.monotonic()
            await free_claims(self._database, ())

    async def run_once(self) -> bool:
        done = await mark_ready(self._database, most=PAGE)
        if done.ready:
            self._wakeups.scheduler.set()
        if done.ready or done.returned:
            self._wakeups.changed.set()
        return done.ready == PAGE or done.returned > 0
