"""The scheduler: every TICKET_READY event becomes a work order, or ends with the reason why not (see `schedule`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.tickets.pollers.claims import ClaimKeeper
from jobd.tickets.pollers.poller import PAGE, Poller
from jobd.tickets.pollers.schedule import find_ready_events, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.config.model import Config
    from jobd.store.leader import OwnerNames
    from jobd.store.postgres import Database
    from jobd.tickets.pollers.claims import Claim
    from jobd.tickets.wakeups import Wakeups


class SchedulerPoller(Poller):
    claims: ClaimKeeper

    def __init__(self, database: Database, config: Callable[[], Config], wakeups: Wakeups, owners: OwnerNames) -> None:
        super().__init__("scheduler", database, config, wakeups, wakeups.scheduler)
        self.claims = ClaimKeeper(database, "EVENT", owners.of(self.name), config)

    async def run_once(self) -> bool:
        event_ids = await find_ready_events(self._database, most=PAGE)
        claims = await self.claims.acquire(event_ids) if event_ids else []
        if claims:
            await self._apart(claims, self._schedule)
            self._wakeups.runner.set()
            self._wakeups.changed.set()
        return len(event_ids) == PAGE

    async def _schedule(self, claims: Sequence[Claim]) -> None:
        held = [claim.record for claim in claims if not claim.is_lost]
        ended = await schedule(self._database, held)
        self.claims.let_go(*claims)
        # An event that another node ended before it was claimed here: no statement deletes its lease, so release it.
        await self.claims.release([claim for claim in claims if claim.resource_id not in ended])
