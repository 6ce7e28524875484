"""The reaper: looks for leases whose holders fell silent, and ends their attempts in pages.

Every node runs one; they pass over what another is just working on, and the statement repeats its guard in the write,
so a second reaper is only a waste. It holds back after an outage or a step of the clock (see jobd/store/clock_eras.py).
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import anyio

from jobd.config.task_settings import retry_policies, retry_policy, shortest_lease_s
from jobd.lifecycle.reap import ReapCounts, reap
from jobd.store.clock_eras import Watch, look, may_reap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.config.model import Config
    from jobd.maintenance.incarnations import Owners
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Expired leases that are reaped in one commit.
PAGE = 500
#: The pause is a tenth of the shortest lease, within bounds: a silent holder is noticed soon after its lease ends.
SHORTEST_PAUSE_S = 0.2
#: Longest pause between two rounds in seconds.
LONGEST_PAUSE_S = 5.0
#: Seconds after the end of a lease, beyond the reaper's pauses, from which on it counts as unable to keep up.
LAG_S = 10.0


class Reaper:
    def __init__(
        self,
        database: Database,
        config: Callable[[], Config],
        on_commit: Callable[[], None] = lambda: None,
        owners: Owners | None = None,
    ) -> None:
        self._database = database
        self._config = config
        self._on_commit = on_commit
        self._watch: Watch | None = None
        #: Who this node was before: nobody else can know so soon that they are dead.
        self._owners = owners

    async def run(self, handle: Handle) -> None:
        self._watch = None
        await self._take_back()
        handle.ready()
        while not handle.stop.is_set():
            counts = await self.run_once()
            if counts.total:
                self._on_commit()
            self._tell(counts)
            handle.beat()
            if counts.total < PAGE:
                with anyio.move_on_after(self._pause_s() * random.uniform(0.8, 1.2)):
                    await handle.stop.wait()

    async def _take_back(self) -> None:
        """What a killed jobd of this data directory held is queued again at once, not when its leases end."""
        dead = self._owners.dead() if self._owners is not None else []
        while dead:
            counts = await self._reap(dead)
            self._tell(counts)
            if counts.total < PAGE:
                break
        if self._owners is not None:
            self._on_commit()
            self._owners.bury()

    async def run_once(self) -> ReapCounts:
        """Look once and reap one page, if what it sees can be believed."""
        config, seen = self._config(), await self._database.clock.look()
        held_back = self._watch is None or not may_reap(self._watch, config.leases.ttl_s)
        self._watch = look(self._watch, mono=seen.boot_s, wall=seen.wall, pause_s=self._pause_s())
        if not may_reap(self._watch, config.leases.ttl_s):
            return ReapCounts()
        if held_back:
            log.debug("the reaper has seen one healthy lease time and begins")
        return await self._reap()

    async def _reap(self, dead_owners: Sequence[str] | None = None) -> ReapCounts:
        config = self._config()
        return await reap(
            self._database,
            policy=retry_policy(config),
            task_policies=retry_policies(config),
            most=PAGE,
            dead_owners=dead_owners,
        )

    def _pause_s(self) -> float:
        return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, shortest_lease_s(self._config()) / 10))

    def _tell(self, counts: ReapCounts) -> None:
        if counts.total:
            log.info(
                "ended %d attempts whose workers fell silent: %d requeued, %d dead-lettered, %d canceled",
                counts.total,
                counts.requeued,
                counts.dead_lettered,
                counts.canceled,
            )
        if counts.late_s > LAG_S + 2 * self._pause_s() + self._config().leases.ttl_s:
            log.warning("the reaper is behind: a lease was %.0f s past its end", counts.late_s)
