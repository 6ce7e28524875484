"""Keeps the leases of the jobs that run in this process: all renewed together, one statement for all of them.

A holder is told at once when its lease is lost, when it could not be renewed in time by this process's own clock (see
`lease_timer.py`), or when its job is to be canceled. While jobd drains this is among the last to stop: who finishes a
job needs its lease.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

import anyio

from jobd.config.task_settings import heartbeat_s, lease_ttl_s, shortest_heartbeat_s
from jobd.job.model import LeaseLost
from jobd.leases.timer import MARGIN, Lease, LeaseTimer
from jobd.lifecycle.heartbeat import Beat, Renewal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from jobd.config.model import Config, Leases
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.report import Held
    from jobd.supervise.service import Handle

#: How often it looks for leases to renew, as a part of the heartbeat: a renewal is at most this much late.
LOOK = 0.25


class Hold(Lease):
    """A claimed job in the hands of a holder in this process."""

    def __init__(self, job: ClaimedJob, ttl_s: float) -> None:
        super().__init__(job.sent_at, ttl_s)
        self.job = job
        #: Set when the lease is lost: stop at once and write nothing more.
        self.lost = anyio.Event()
        #: Set when the job is to be canceled.
        self.cancel = anyio.Event()
        #: Called when either is set: whoever runs the job need not wait for both.
        self.on_stop: Callable[[], None] = _nothing

    @property
    def held(self) -> Held:
        return self.job.held

    def ttl_s(self, leases: Leases) -> float:
        return lease_ttl_s(leases, self.job.lease_ttl_s)

    def heartbeat_s(self, leases: Leases) -> float:
        return heartbeat_s(leases, self.job.lease_ttl_s)

    def is_due(self, now: float, leases: Leases) -> bool:
        """Whether to renew it now rather than with the next look."""
        return now - self.renewed_at > self.heartbeat_s(leases) * (1 - LOOK)

    def lose(self) -> None:
        self.lost.set()
        self.on_stop()

    def stop(self) -> None:
        """The job is to be canceled."""
        self.cancel.set()
        self.on_stop()


def _nothing() -> None:
    pass


class Renewer(Protocol):
    """Where leases are renewed: the engine, or a jobd elsewhere."""

    async def heartbeat(self, beats: Sequence[Beat]) -> Sequence[Renewal | LeaseLost | Exception]: ...


class LeaseKeeper:
    def __init__(self, engine: Renewer, config: Callable[[], Config]) -> None:
        self._engine = engine
        self._config = config
        self._holds: dict[UUID, Hold] = {}
        self._timer = LeaseTimer(self._kept, Hold.lose)
        #: Around the pause between two looks.
        self._pause = anyio.CancelScope()

    def hold(self, job: ClaimedJob) -> Hold:
        """Keep this job's lease alive until it is let go."""
        hold = Hold(job, lease_ttl_s(self._config().leases, job.lease_ttl_s))
        self._holds[job.attempt_id] = hold
        self._timer.watch(hold)
        # Its lease may be shorter than any that was known when the present pause began.
        look_at = anyio.current_time() + hold.heartbeat_s(self._config().leases) * LOOK
        if look_at < self._pause.deadline:
            self._pause.deadline = look_at
        return hold

    def let_go(self, hold: Hold) -> None:
        self._holds.pop(hold.job.attempt_id, None)

    def holds(self) -> list[Hold]:
        """All of them; may be asked from any thread."""
        return list(self._holds.values())

    def _kept(self) -> list[Hold]:
        return [hold for hold in self._holds.values() if not hold.lost.is_set()]

    def cancel(self, job_id: UUID) -> None:
        """Tell the holder of this job at once, if it is in this process; others hear of it when they renew."""
        for hold in self.holds():
            if hold.job.job_id == job_id:
                hold.stop()

    async def run(self, handle: Handle) -> None:
        handle.ready()
        while not handle.stop.is_set():
            config = self._config()
            with anyio.move_on_after(shortest_heartbeat_s(config) * LOOK) as self._pause:
                await handle.stop.wait()
            handle.beat()
            now, leases = time.monotonic(), config.leases
            due = [hold for hold in self._kept() if hold.is_due(now, leases)]
            if due:
                await self._renew(due, leases)

    async def _renew(self, holds: Sequence[Hold], leases: Leases) -> None:
        """One renewal for all. One that hangs is given up early enough for another try."""
        sent_at = time.monotonic()
        beats = [Beat(job_id=hold.job.job_id, lease_token=hold.job.lease_token) for hold in holds]
        answers: Sequence[Renewal | LeaseLost | Exception] = []
        with anyio.move_on_after(min(hold.ttl_s(leases) for hold in holds) * (1 - MARGIN) / 2):
            answers = await self._engine.heartbeat(beats)
        for hold, answer in zip(holds, answers, strict=False):
            if isinstance(answer, Renewal):
                hold.grant(sent_at, lease_ttl_s(leases, answer.lease_ttl_s))
                if answer.cancel_requested and not hold.cancel.is_set():
                    hold.stop()
            elif isinstance(answer, LeaseLost):
                hold.lose()
