"""The engine as slots see it, when it is a jobd elsewhere: renewals, events and reports become calls.

One call renews all leases of this worker, and one sends the events of all its jobs, up to CALL_BYTES. Each
report is a call of its own. An error that is raised means that nothing is known or nothing has changed: the same may be
sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio import to_thread
from msgspec import UNSET, Raw

from jobd.client import ApiProblem, ClientError
from jobd.job.history import Cursor
from jobd.job.model import Completed, Conflicting, LeaseLost, Superseded
from jobd.job.status import AttemptOutcome
from jobd.lifecycle.events import Kept, OutOfStep
from jobd.lifecycle.heartbeat import Renewal
from jobd.tasks.runner import TaskFailed
from jobd.wire import events as wire_events
from jobd.wire import worker as wire
from jobd.worker.session import is_about_the_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobd.lifecycle.complete import Completion
    from jobd.lifecycle.events import Answer, EventBatch
    from jobd.lifecycle.fail import Failure
    from jobd.lifecycle.heartbeat import Beat
    from jobd.lifecycle.report import Held
    from jobd.worker.session import WorkerSession

#: Most bytes of events in one call, below the limit of the gateway; one chunk of a single job always fits.
CALL_BYTES = 3 << 20
#: Most bytes that type, step and time add to the data of an event.
EVENT_BYTES = 1400
#: Seconds added to the timeout for each byte of a result, which has to be sent, checked and written to a disk.
HOLD_S_PER_BYTE = 1e-6
#: Large results encoded at once; each is in memory whole.
LARGE_RESULTS = 2


class _Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    worker_id: str
    job_id: Any
    attempt_id: Any
    lease_token: Any
    #: Encoded JSON.
    result: Raw | None = None
    error: Raw | None = None


class SentResults:
    """Results of any size go to jobd with their report; it puts the large ones into files."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(LARGE_RESULTS)

    async def keep(self, job: Held, result: bytes) -> str | None:
        return None

    async def keep_pieces(self, job: Held, pieces: Iterator[bytes]) -> bytes:
        return await to_thread.run_sync(b"".join, pieces, limiter=self._limiter)


class RemoteEngine:
    def __init__(self, session: WorkerSession, worker_id: str) -> None:
        self._session = session
        self._worker_id = worker_id
        self.completed = self.failed = self.released = 0

    # -- leases ------------------------------------------------------------------------------------------------

    async def heartbeat(self, beats: Sequence[Beat]) -> list[Renewal | LeaseLost | Exception]:
        answers: list[Renewal | LeaseLost | Exception] = []
        for start in range(0, len(beats), wire.MAX_JOBS):
            part = beats[start : start + wire.MAX_JOBS]
            request = heartbeat_request(self._worker_id, part)
            try:
                answer = await self._session.post("heartbeat", request, wire.HeartbeatAnswer, is_urgent=True)
                answers += renewals_in(answer)
            except ClientError as error:
                answers += [error] * len(part)
        return answers

    # -- events ------------------------------------------------------------------------------------------------

    async def emit_many(self, batches: Sequence[EventBatch]) -> list[Answer | Exception]:
        answers: list[Answer | Exception] = []
        for part in _parts(batches):
            answers += await self._emit(part)
        return answers

    async def _emit(self, batches: Sequence[EventBatch]) -> list[Answer | Exception]:
        request = {"worker_id": self._worker_id, "jobs": [_as_sent(batch) for batch in batches]}
        try:
            answer = await self._session.post("events/batch", request, wire_events.EventsBatchAnswer)
        except ClientError as error:
            if not is_about_the_body(error):
                return [error] * len(batches)
            if len(batches) > 1:  # one of them is to blame, and the others shall not suffer
                return [answer for batch in batches for answer in await self._emit([batch])]
            return [ValueError(str(error))]
        return [_kept(job) for job in answer.jobs]

    # -- reports -----------------------------------------------------------------------------------------------

    async def complete(self, report: Completion) -> Completed | Conflicting | Superseded:
        """Raises TaskFailed for a result that jobd does not take: that is what to report instead."""
        assert report.result is not None, "results go with their report"
        result = report.result.encode()
        body = self._report(report, result=Raw(result))
        try:
            hold_s = len(result) * HOLD_S_PER_BYTE
            answer = await self._session.post("complete", body, wire.CompleteAnswer, hold_s)
        except ApiProblem as error:
            if is_about_the_body(error):
                raise _not_taken(error, len(result)) from error
            raise
        self.completed += answer.ok
        return Completed() if answer.ok else _refusal(answer.reason)

    async def fail(self, report: Failure) -> object:
        body = self._report(report, error=Raw(report.error.encode()))
        answer = await self._session.post("fail", body, wire.FailAnswer)
        self.failed += answer.ok
        return answer if answer.ok else _refusal(answer.reason)

    async def release(self, holder: Held) -> object:
        answer = await self._session.post("release", self._report(holder), wire.ReleaseAnswer)
        self.released += answer.ok
        return answer if answer.ok else _refusal(answer.reason)

    def _report(self, held: Held, **more: Raw) -> _Report:
        return _Report(
            worker_id=self._worker_id,
            job_id=held.job_id,
            attempt_id=held.attempt_id,
            lease_token=held.lease_token,
            **more,
        )


def heartbeat_request(worker_id: str, beats: Sequence[Beat]) -> wire.HeartbeatRequest:
    jobs = [wire.HeartbeatJob(job_id=beat.job_id, lease_token=str(beat.lease_token)) for beat in beats]
    return wire.HeartbeatRequest(worker_id=worker_id, jobs=jobs)


def renewals_in(answer: wire.HeartbeatAnswer) -> list[Renewal | LeaseLost]:
    return [] if answer.jobs is UNSET else [_renewal(job) for job in answer.jobs]


def _renewal(answer: wire.Heartbeat) -> Renewal | LeaseLost:
    if not answer.ok or answer.lease_expires_at is None:
        return LeaseLost()
    return Renewal(
        lease_expires_at=answer.lease_expires_at,
        claim_version=0,
        cancel_requested=answer.cancel,
        lease_ttl_s=answer.lease_ttl_seconds,
    )


def _parts(batches: Sequence[EventBatch]) -> Iterator[list[EventBatch]]:
    """As many in each as one call takes, in their order."""
    part: list[EventBatch] = []
    room = CALL_BYTES
    for batch in batches:
        size = sum(len(bytes(event.data)) + EVENT_BYTES for event in batch.events)
        if part and (size > room or len(part) == wire_events.MAX_TELLINGS):
            yield part
            part, room = [], CALL_BYTES
        part.append(batch)
        room -= size
    if part:
        yield part


def _as_sent(batch: EventBatch) -> dict[str, Any]:
    return {
        "job_id": batch.job_id,
        "lease_token": batch.lease_token,
        "offset": batch.emitted_n,
        "events": batch.events,
    }


def _kept(answer: wire_events.EventsAnswer) -> Answer:
    if answer.ok:
        attempt, _, n = (answer.last_event_id or "0-0").partition("-")
        return Kept(Cursor(int(attempt), int(n)))
    if answer.reason == "out_of_step" and answer.offset is not None:
        return OutOfStep(answer.offset)
    return LeaseLost()


def _refusal(reason: object) -> Conflicting | Superseded:
    return Conflicting(AttemptOutcome.FAILED) if reason == "conflicting_outcome" else Superseded()


def _not_taken(error: ApiProblem, size: int) -> TaskFailed:
    if error.code == "result_not_kept":
        return TaskFailed(error.code, error.detail)
    if error.status == 413:
        message = f"jobd does not take a result of {size} bytes ({error.detail})"
        return TaskFailed("result_too_large", message, retryable=False)
    return TaskFailed("bad_result", f"the result cannot be stored: {error.detail} ({error.code})", retryable=False)
