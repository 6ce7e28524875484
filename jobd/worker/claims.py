"""Jobs for the slots of this machine, claimed from jobd by long poll.

One call for each queue is under way while slots of it wait, and asks for as many jobs as there are of them. A job that
nobody wants any more when it arrives is handed back uncharged.

To stop, a call that has only just begun gets a moment to bring what it may already have claimed: who hangs up on it
would leave that job to wait for the end of its lease. One that has waited for longer most likely has nothing.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import anyio
from msgspec import UNSET

from jobd.client import ClientError, Denied
from jobd.config.model import Leases
from jobd.errors import ServerRefused, TokenRefused
from jobd.lifecycle.claim import ClaimedJob
from jobd.stream.keys import stream_of
from jobd.wire import worker as wire
from jobd.worker.session import is_about_the_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from jobd.lifecycle.report import Held
    from jobd.supervise.service import Handle
    from jobd.worker.session import WorkerSession

log = logging.getLogger(__name__)

#: Seconds of one long poll for jobs; proxies tend to cut a request after 60 s.
WAIT_S = 30.0
#: Seconds that a claim request which has just begun may still take when the worker stops.
GRACE_S = 0.5
#: Upper bound of the random pause, in seconds, after a long poll that jobd ended early, as it does while it stops.
SHORT_S = 2.0
#: Pause in seconds on a busy queue, so that more slots become free and one request claims for all of them.
GATHER_S = 0.002
#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0


class _Waiter:
    def __init__(self) -> None:
        self.job: ClaimedJob | None = None
        self.served = anyio.Event()


class _QueueCall:
    """The waiting slots of one queue, and the request that is under way for them."""

    def __init__(self) -> None:
        self.waiters: deque[_Waiter] = deque()
        self.called = anyio.Event()
        #: When the request under way was sent, by `time.monotonic()`; None: there is none.
        self.calling_since: float | None = None


class RemoteClaims:
    def __init__(
        self,
        session: WorkerSession,
        worker_id: str,
        queues: Iterable[str],
        *,
        release: Callable[[Held], Awaitable[object]],
        must_answer: bool = False,
    ) -> None:
        self._session = session
        self._worker_id = worker_id
        self._calls = {queue: _QueueCall() for queue in queues}
        self._release = release
        #: Whether to give up if jobd does not answer at the start.
        self._must_answer = must_answer
        #: The shortest lease and heartbeat interval that jobd has granted; every claimed job names them.
        self.leases: Leases | None = None

    async def take(self, queues: Sequence[str], owner_id: str) -> list[ClaimedJob]:
        """Wait for a job of this queue. There is one queue: slots are of one each."""
        (queue,) = queues
        call, waiter = self._calls[queue], _Waiter()
        call.waiters.append(waiter)
        call.called.set()
        try:
            await waiter.served.wait()
        except anyio.get_cancelled_exc_class():
            if waiter.job is None:
                call.waiters.remove(waiter)
            else:
                await self._give_back([waiter.job])
            raise
        return [waiter.job] if waiter.job is not None else []

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        async with anyio.create_task_group() as tasks:
            for queue in self._calls:
                tasks.start_soon(self._serve, queue, handle)
            handle.ready()
            while not handle.stop.is_set():
                with anyio.move_on_after(BEAT_S):
                    await handle.stop.wait()
                handle.beat()
            while any(self._has_just_begun(call) for call in self._calls.values()):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    def _has_just_begun(self, call: _QueueCall) -> bool:
        return call.calling_since is not None and time.monotonic() - call.calling_since < GRACE_S

    async def _serve(self, queue: str, handle: Handle) -> None:
        call = self._calls[queue]
        while not handle.stop.is_set():
            if not call.waiters:
                call.called = anyio.Event()
                await call.called.wait()
                continue
            wanted = len(call.waiters)
            jobs = await self._claim(queue, call)
            is_busy = len(jobs) == wanted
            await self._hand_out(call, jobs)
            if is_busy:
                await anyio.sleep(GATHER_S)

    async def _hand_out(self, call: _QueueCall, jobs: list[ClaimedJob]) -> None:
        while jobs and call.waiters:
            waiter = call.waiters.popleft()
            waiter.job = jobs.pop(0)
            waiter.served.set()
        await self._give_back(jobs)

    async def _give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            with anyio.move_on_after(GRACE_S, shield=True):
                try:
                    await self._release(job.held)
                except ClientError as error:
                    log.debug("job %s was not handed back (%s); its lease will end", job.job_id, error)

    # -- claiming ----------------------------------------------------------------------------------------------

    async def _claim(self, queue: str, call: _QueueCall) -> list[ClaimedJob]:
        """What there is; none when the time is up, or jobd is away. The first call only looks, to know soon."""
        wait_s = WAIT_S if self._session.is_up else 0.0
        request = wire.ClaimRequest(
            worker_id=self._worker_id,
            streams=[stream_of(queue)],
            max_wait_ms=int(wait_s * 1000),
            max_jobs=min(len(call.waiters), wire.MAX_CLAIMED),
        )
        call.calling_since = called_at = await self._session.turn()
        try:
            answer = await self._session.post("claim", request, wire.ClaimAnswer, wait_s)
        except ClientError as error:
            self._raise_if_final(error)
            return []
        finally:
            call.calling_since = None
        sent_at = time.monotonic()  # a jobd that does not say when it claimed leaves us no better guess
        if answer.claimed_after_ms is not UNSET:
            sent_at = min(sent_at, called_at + max(0, answer.claimed_after_ms) / 1000)
        jobs = [] if answer.jobs is UNSET else [self._claimed(queue, job, sent_at) for job in answer.jobs]
        if not jobs and time.monotonic() - called_at < wait_s / 2:
            await anyio.sleep(random.uniform(0, SHORT_S))
        return jobs

    def _raise_if_final(self, error: ClientError) -> None:
        if isinstance(error, Denied):
            raise TokenRefused(f"jobd at {self._session.url} does not let this worker in: {error}") from error
        if is_about_the_body(error):
            raise ServerRefused(f"jobd at {self._session.url} does not take this worker: {error}") from error
        if self._must_answer and not self._session.was_up:
            raise ServerRefused(f"no jobd at {self._session.url}: {error}") from error

    def _claimed(self, queue: str, job: wire.ClaimedJob, sent_at: float) -> ClaimedJob:
        self._note_lease(Leases(ttl_s=job.lease_ttl_seconds, heartbeat_s=job.heartbeat_interval_seconds))
        return ClaimedJob(
            job_id=job.job_id,
            task=job.task,
            queue=queue,
            payload=bytes(job.payload).decode(),
            enqueue_id=job.enqueue_id,
            attempt_id=job.attempt_id,
            attempt_no=job.attempt,
            attempt_count=job.attempt,
            max_attempts=job.max_attempts,
            lease_token=job.lease_token,
            lease_expires_at=datetime.now(timezone.utc),
            timeout_s=job.timeout_s,
            ttl_s=0,
            owner_id=self._worker_id,
            stream=job.stream,
            message_id=job.message_id,
            lease_ttl_s=job.lease_ttl_seconds,
            sent_at=sent_at,
        )

    def _note_lease(self, granted: Leases) -> None:
        known = self.leases or granted
        self.leases = Leases(
            ttl_s=min(granted.ttl_s, known.ttl_s), heartbeat_s=min(granted.heartbeat_s, known.heartbeat_s)
        )
        self._session.lease_s = min(self._session.lease_s, granted.ttl_s)
