"""The leases of the jobs that run in this process; renewed by the engine, or by a jobd elsewhere.

While jobd drains this is among the last services to stop: a job that is finished then needs its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

from jobd.config.task_settings import heartbeat_s, lease_ttl_s
from jobd.leases.flag import Flag
from jobd.leases.keeper import LeaseKeeper
from jobd.leases.timer import Lease
from jobd.lifecycle.lease import LeaseProof

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd.config.model import Config, Leases
    from jobd.job.model import LeaseLost
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.heartbeat import Renewal
    from jobd.lifecycle.report import Held
    from jobd.supervise.service import Handle


class Hold(Lease):
    """A claimed job in the hands of a holder in this process."""

    def __init__(self, job: ClaimedJob, ttl_s: float) -> None:
        super().__init__(job.sent_at, ttl_s)
        self.job = job
        #: Set when the job is to be canceled.
        self.cancel = Flag()

    @property
    def held(self) -> Held:
        return self.job.held

    @property
    def beat(self) -> LeaseProof:
        """No version is shown: the event loop and the watchdog's thread may both renew it."""
        return LeaseProof(resource_id=self.job.job_id, lease_token=self.job.lease_token)

    def ttl_s(self, leases: Leases, renewal: Renewal | None = None) -> float:
        return lease_ttl_s(leases, self.job.lease_ttl_s if renewal is None else renewal.lease_ttl_s)

    def heartbeat_s(self, leases: Leases) -> float:
        return heartbeat_s(leases, self.job.lease_ttl_s)

    def renewed(self, renewal: Renewal) -> Callable[[], None] | None:
        return self.stop if renewal.cancel_requested and not self.cancel.is_set() else None

    def stop(self) -> None:
        """The job is to be canceled."""
        self.cancel.set()
        self.on_stop()


class Renewer(Protocol):
    """Where leases are renewed: the engine, or a jobd elsewhere."""

    async def heartbeat(self, beats: Sequence[LeaseProof]) -> Sequence[Renewal | LeaseLost | Exception]: ...


class JobLeases(LeaseKeeper[Hold]):
    def __init__(self, engine: Renewer, config: Callable[[], Config]) -> None:
        super().__init__(self._heartbeat, config)
        self._engine = engine
        #: Tokens of leases that were lost here. Some stand in Postgres until the reaper ends them; none is run again.
        self._lost_tokens: set[UUID] = set()

    async def _heartbeat(self, holds: Sequence[Hold]) -> Sequence[Renewal | LeaseLost | Exception]:
        return await self._engine.heartbeat([hold.beat for hold in holds])

    def hold(self, job: ClaimedJob) -> Hold:
        """Keep this job's lease alive until it is let go."""
        (hold,) = self.hold_all([job])
        return hold

    def hold_all(self, jobs: Sequence[ClaimedJob]) -> list[Hold]:
        """The same for jobs that were taken together."""
        leases = self._config().leases
        holds = [Hold(job, lease_ttl_s(leases, job.lease_ttl_s)) for job in jobs]
        self.keep(*holds)
        return holds

    def let_go(self, *holds: Hold) -> None:
        self._lost_tokens.update(hold.job.lease_token for hold in holds if hold.is_lost)
        super().let_go(*holds)

    def tokens(self) -> list[UUID]:
        """The lease tokens of all jobs that this process holds, or has held and lost."""
        return [*(hold.job.lease_token for hold in self.all()), *self._lost_tokens]

    def cancel(self, job_id: UUID) -> None:
        """Stop the holder of this job at once, if it is in this process; others learn of it by their heartbeat."""
        for hold in self.all():
            if hold.job.job_id == job_id:
                hold.stop()

    async def run(self, handle: Handle) -> None:
        handle.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.keep_renewing, handle.beat)
            await handle.stop.wait()
            tasks.cancel_scope.cancel()
