"""The leases of the jobs that run in this process; renewed by the engine, or by a jobd elsewhere.

While jobd drains this is among the last to stop: who finishes a job needs its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

from jobd.config.task_settings import heartbeat_s, lease_ttl_s
from jobd.leases.keeper import LeaseKeeper
from jobd.leases.timer import Lease
from jobd.lifecycle.heartbeat import Beat

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
        self.cancel = anyio.Event()

    @property
    def held(self) -> Held:
        return self.job.held

    @property
    def beat(self) -> Beat:
        """No version is shown: the event loop and the watchdog's thread may both renew it."""
        return Beat(job_id=self.job.job_id, lease_token=self.job.lease_token)

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

    async def heartbeat(self, beats: Sequence[Beat]) -> Sequence[Renewal | LeaseLost | Exception]: ...


class JobLeases(LeaseKeeper[Hold]):
    def __init__(self, engine: Renewer, config: Callable[[], Config]) -> None:
        super().__init__(self._heartbeat, config)
        self._engine = engine

    async def _heartbeat(self, holds: Sequence[Hold]) -> Sequence[Renewal | LeaseLost | Exception]:
        return await self._engine.heartbeat([hold.beat for hold in holds])

    def hold(self, job: ClaimedJob) -> Hold:
        """Keep this job's lease alive until it is let go."""
        hold = Hold(job, lease_ttl_s(self._config().leases, job.lease_ttl_s))
        self.keep(hold)
        return hold

    def cancel(self, job_id: UUID) -> None:
        """Stop the holder of this job at once, if it is in this process; others hear of it when they renew."""
        for hold in self.all():
            if hold.job.job_id == job_id:
                hold.stop()

    async def run(self, handle: Handle) -> None:
        handle.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.keep_renewing, handle.beat)
            await handle.stop.wait()
            tasks.cancel_scope.cancel()
