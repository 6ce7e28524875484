"""The reaper: finds expired leases and ends their attempts, a page at a time: requeue or dead letter. It also cancels
jobs that have not started by their `expires_at`.

Every node runs one. They skip rows that another has locked (SKIP LOCKED), and the statement checks the lease again in
its write, so several reapers do no harm. After an outage or a step of the clock it waits for one lease time (see
jobd/store/clock_eras.py).
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.config.task_settings import retry_policies, retry_policy, shortest_lease_s
from jobd.host.logs import job_fields
from jobd.lifecycle.expire import expire
from jobd.lifecycle.notices import EXPIRED, REAPED, Changes
from jobd.lifecycle.reap import ReapCounts, counted, reap
from jobd.store.clock_eras import Watch, may_reap, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.config.model import Config
    from jobd.lifecycle.tally import Tally
    from jobd.maintenance.incarnations import Owners
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Expired leases that are reaped in one commit.
PAGE = 500
#: Shortest pause between two rounds in seconds. The pause is a tenth of the shortest lease time, within these bounds
#: and with jitter, so that a lease is reaped soon after it has expired.
SHORTEST_PAUSE_S = 0.2
#: Longest pause between two rounds in seconds.
LONGEST_PAUSE_S = 5.0
#: Jobs of a page that have a log line of their own; the total has one in any case.
SHOWN = 20
#: Seconds by which a reaped lease may have expired, beyond two pauses and a lease time, before a warning is logged.
LAG_S = 10.0


class Reaper:
    def __init__(
        self,
        database: Database,
        config: Callable[[], Config],
        on_commit: Callable[[], None] = lambda: None,
        owners: Owners | None = None,
        on_changes: Callable[[Changes], None] = lambda _: None,
        tally: Tally | None = None,
    ) -> None:
        self._database = database
        self._config = config
        self._on_commit = on_commit
        self._on_changes = on_changes
        self._tally = tally
        self._watch: Watch | None = None
        #: Earlier runs of this node: only this node knows that they are dead.
        self._owners = owners

    async def run(self, handle: Handle) -> None:
        self._watch = None
        await self._take_back()
        handle.ready()
        while not handle.stop.is_set():
            counts = await self.run_once()
            if counts.total or counts.expired:
                self._on_commit()
            self._tell(counts)
            handle.beat()
            if max(counts.total, counts.expired) < PAGE:
                with anyio.move_on_after(self._pause_s() * random.uniform(0.8, 1.2)):
                    await handle.stop.wait()

    async def _take_back(self) -> None:
        """Requeue at once what a killed jobd of this data directory held, instead of when its leases expire."""
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
        """Reap one page, if both clocks have been healthy for a lease time."""
        config, seen = self._config(), await self._database.clock.check()
        held_back = self._watch is None or not may_reap(self._watch, config.leases.ttl_s)
        self._watch = observe(self._watch, mono=seen.boot_s, wall=seen.wall, pause_s=self._pause_s())
        if not may_reap(self._watch, config.leases.ttl_s):
            return ReapCounts()
        if held_back:
            log.debug("the reaper has seen one healthy lease time and begins")
        return msgspec.structs.replace(await self._reap(), expired=await self._expire())

    async def _expire(self) -> int:
        """Cancel one page of jobs that have not started in time."""
        expired = await expire(self._database, most=PAGE, tally=self._tally)
        if expired:
            self._on_changes(Changes(EXPIRED, expired, expired))
        return len(expired)

    async def _reap(self, dead_owners: Sequence[str] | None = None) -> ReapCounts:
        config = self._config()
        reaped = await reap(
            self._database,
            policy=retry_policy(config),
            task_policies=retry_policies(config),
            most=PAGE,
            dead_owners=dead_owners,
            tally=self._tally,
        )
        for job in reaped[:SHOWN]:
            fields = job_fields(job.job_id, job.attempt, job.traceparent)
            why = "stopped and interrupted its job" if job.interrupted else "fell silent: its attempt has ended"
            log.info("%s %s, the job is %s", job.owner_id, why, job.status, extra=fields)
        if reaped:
            self._on_changes(Changes(REAPED, reaped, reaped))
        return counted(reaped)

    def _pause_s(self) -> float:
        return min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, shortest_lease_s(self._config()) / 10))

    def _tell(self, counts: ReapCounts) -> None:
        if counts.total:
            log.info(
                "ended %d attempts whose workers fell silent (%d interrupted by the stop of their node):"
                " %d requeued, %d dead-lettered, %d canceled",
                counts.total,
                counts.interrupted,
                counts.requeued,
                counts.dead_lettered,
                counts.canceled,
            )
        if counts.expired:
            log.info("canceled %d jobs that had not started by their expires_at", counts.expired)
        if counts.late_s > LAG_S + 2 * self._pause_s() + self._config().leases.ttl_s:
            log.warning("the reaper is behind: a lease was %.0f s past its end", counts.late_s)
