"""Jobs for the slots of this machine, claimed from jobd by long poll.

One call for each queue is under way while jobs of it are wanted, and asks for all of them at once; what it brings is
handed over at once too. A job that nobody wants any more when it arrives is handed back uncharged. Slots that want
more jobs than they could begin at once, since they end many, get what is there: a call for that many does not wait, or
it would keep jobs from other workers that come much later.

To stop, a call that has only just begun gets a moment to bring what it may already have claimed: who hangs up on it
would leave that job to wait for the end of its lease. One that has waited for longer most likely has nothing.
"""

from __future__ import annotations

import logging
import math
import random
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec
from msgspec import UNSET

from jobd.client import ClientError, Denied
from jobd.config.model import Leases
from jobd.errors import ServerRefused, TokenRefused
from jobd.host.logs import job_fields
from jobd.job.inputs import Input
from jobd.lifecycle.claim import ClaimedJob
from jobd.stream.keys import stream_of
from jobd.supervise.wakeup import Wakeup
from jobd.wire import worker as wire
from jobd.worker.session import is_about_the_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

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
#: Most jobs that one claim asks for from an older jobd, which does not take reports in batches.
OLD_MAX_CLAIMED = 100
#: Bytes of payloads that one claim should bring: it asks for as many jobs as have that many, by those it brought last.
CLAIM_BYTES = 4 << 20
#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0


class JobTaker(Protocol):
    """Those who want jobs of one queue."""

    def take_over(self, jobs: Sequence[ClaimedJob], asked: int | None = None) -> None:
        """Jobs were claimed for them, of this many that were asked for."""
        ...


class _QueueClaims:
    """How many jobs of a queue are wanted, by whom, and the request that is under way for them."""

    def __init__(self, slots: float) -> None:
        #: Jobs that can begin at once; more are wanted only if they are there already.
        self.slots = slots
        #: Who takes them over; None: nobody yet, and none are wanted.
        self.sink: JobTaker | None = None
        self.wanted = 0
        #: Average size of a payload in the last answer.
        self.payload_bytes = 1
        self.called = Wakeup()
        #: When the request under way was sent, by `time.monotonic()`; None: there is none.
        self.calling_since: float | None = None

    def want(self, number: int) -> None:
        self.wanted = number
        if number:
            self.called.set()


class RemoteClaims:
    def __init__(
        self,
        session: WorkerSession,
        worker_id: str,
        queues: Iterable[str],
        *,
        release: Callable[[Held], Awaitable[object]],
        slots: Mapping[str, int] | None = None,
        must_answer: bool = False,
    ) -> None:
        """`slots`: how many jobs of a queue can begin at once; without it, all that are wanted."""
        self._session = session
        self._worker_id = worker_id
        self._queues = {queue: _QueueClaims((slots or {}).get(queue, math.inf)) for queue in queues}
        self._release = release
        #: Whether to give up if jobd does not answer at the start.
        self._must_answer = must_answer
        #: Most jobs of one claim; an older jobd takes fewer.
        self._most = wire.MAX_CLAIMED
        #: The shortest lease and heartbeat interval that jobd has granted; every claimed job names them.
        self.leases: Leases | None = None

    def open(self, queue: str, owner_id: str, sink: JobTaker) -> Callable[[int, bool], None]:
        """Bring jobs of the queue to the sink. What is returned says how many more are wanted; whether reports are
        about to be written makes no difference here.
        """
        claims = self._queues[queue]
        claims.sink = sink
        return lambda number, is_reporting: claims.want(number)

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        async with anyio.create_task_group() as tasks:
            for queue in self._queues:
                tasks.start_soon(self._serve, queue, handle)
            handle.ready()
            while not handle.stop.is_set():
                with anyio.move_on_after(BEAT_S):
                    await handle.stop.wait()
                handle.beat()
            while any(self._has_just_begun(claims) for claims in self._queues.values()):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    def _has_just_begun(self, claims: _QueueClaims) -> bool:
        return claims.calling_since is not None and time.monotonic() - claims.calling_since < GRACE_S

    async def _serve(self, queue: str, handle: Handle) -> None:
        claims = self._queues[queue]
        while not handle.stop.is_set():
            if not claims.wanted:
                await claims.called.wait(math.inf)
                continue
            asked = min(claims.wanted, self._most, max(1, CLAIM_BYTES // claims.payload_bytes))
            is_ahead = asked > claims.slots
            jobs = await self._claim(queue, claims, asked, 0.0 if is_ahead else WAIT_S)
            wanted = min(len(jobs), claims.wanted)
            if wanted or is_ahead:  # an empty answer counts too: it ends taking ahead
                claims.wanted -= wanted  # the slots that take them over say what is wanted then
                assert claims.sink is not None  # nobody else wants jobs
                claims.sink.take_over(jobs[:wanted], asked)
            if wanted < len(jobs):
                await self._give_back(jobs[wanted:])
            if len(jobs) >= asked:
                await anyio.sleep(GATHER_S)

    async def _give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        with anyio.move_on_after(GRACE_S, shield=True):
            async with anyio.create_task_group() as tasks:
                for job in jobs:
                    tasks.start_soon(self._give_back_one, job)

    async def _give_back_one(self, job: ClaimedJob) -> None:
        try:
            await self._release(job.held)
        except ClientError as error:
            fields = job_fields(job.job_id, job.attempt_no, job.traceparent)
            log.debug("a job was not handed back (%s); its lease will end", error, extra=fields)

    # -- claiming ----------------------------------------------------------------------------------------------

    async def _claim(self, queue: str, claims: _QueueClaims, most: int, wait_s: float) -> list[ClaimedJob]:
        """The jobs that were claimed; none after `wait_s`, or while jobd is away. Until jobd answers, no call waits."""
        wait_s = wait_s if self._session.is_up else 0.0
        request = wire.ClaimRequest(
            worker_id=self._worker_id,
            streams=[stream_of(queue)],
            max_wait_ms=int(wait_s * 1000),
            max_jobs=most,
        )
        claims.calling_since = called_at = await self._session.turn()
        try:
            answer = await self._session.post("claim", request, wire.ClaimAnswer, wait_s)
        except ClientError as error:
            if most > OLD_MAX_CLAIMED and is_about_the_body(error) and error.code == "invalid":
                self._most = OLD_MAX_CLAIMED
            else:
                self._raise_if_final(error)
            return []
        finally:
            claims.calling_since = None
        sent_at = time.monotonic()  # a jobd that does not say when it claimed leaves us no better guess
        if answer.claimed_after_ms is not UNSET:
            sent_at = min(sent_at, called_at + max(0, answer.claimed_after_ms) / 1000)
        if answer.jobs is not UNSET and answer.jobs:
            claims.payload_bytes = max(1, sum(len(job.payload) for job in answer.jobs) // len(answer.jobs))
            return self._claimed(queue, answer.jobs, sent_at)
        if time.monotonic() - called_at < wait_s / 2:
            await anyio.sleep(random.uniform(0, SHORT_S))
        return []

    def _raise_if_final(self, error: ClientError) -> None:
        if isinstance(error, Denied):
            raise TokenRefused(f"jobd at {self._session.url} does not let this worker in: {error}") from error
        if is_about_the_body(error):
            raise ServerRefused(f"jobd at {self._session.url} does not take this worker: {error}") from error
        if self._must_answer and not self._session.was_up:
            raise ServerRefused(f"no jobd at {self._session.url}: {error}") from error

    def _claimed(self, queue: str, jobs: Sequence[wire.ClaimedJob], sent_at: float) -> list[ClaimedJob]:
        owner_id, now = self._worker_id, datetime.now(timezone.utc)
        for job in jobs:
            self._note_lease(job.lease_ttl_seconds, job.heartbeat_interval_seconds)
        return [
            ClaimedJob(
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
                lease_expires_at=now,  # not known, and not used: the lease counts from `sent_at`
                timeout_s=job.timeout_s,
                ttl_s=0,
                owner_id=owner_id,
                stream=job.stream,
                message_id=job.message_id,
                lease_ttl_s=job.lease_ttl_seconds,
                traceparent=job.traceparent or None,
                tracestate=job.tracestate or None,
                inputs=_inputs(job),
                sent_at=sent_at,
            )
            for job in jobs
        ]

    def _note_lease(self, ttl_s: int, heartbeat_s: float) -> None:
        known = self.leases
        if known is not None and ttl_s >= known.ttl_s and heartbeat_s >= known.heartbeat_s:
            return
        if known is not None:
            ttl_s, heartbeat_s = min(ttl_s, known.ttl_s), min(heartbeat_s, known.heartbeat_s)
        self.leases = Leases(ttl_s=ttl_s, heartbeat_s=heartbeat_s)
        self._session.lease_s = min(self._session.lease_s, ttl_s)


def _inputs(job: wire.ClaimedJob) -> dict[str, Input] | None:
    if job.inputs is UNSET:
        return None
    return {name: Input(**msgspec.structs.asdict(sent)) for name, sent in job.inputs.items()}
