"""The engine as slots see it, when it is a jobd elsewhere: renewals, events and reports become calls.

One call renews all leases of this worker, one sends the events of all its jobs, up to CALL_BYTES, and one the reports
that have gathered (see `reports`). An error that is raised, or stands in the place of an answer, means that nothing is
known or nothing has changed: the same may be sent again. TaskFailed means that jobd does not take a result: that is
what to report instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from msgspec import UNSET, Raw

from jobd.client import ApiProblem, ClientError
from jobd.job.history import Cursor
from jobd.job.model import Completed, Conflicting, LeaseLost, Superseded
from jobd.job.status import AttemptOutcome
from jobd.lifecycle.events import Kept, OutOfStep
from jobd.lifecycle.heartbeat import Renewal
from jobd.lifecycle.release import Release
from jobd.tasks.runner import TaskFailed
from jobd.wire import events as wire_events
from jobd.wire import worker as wire
from jobd.worker.reports import ReportLine, SentReport
from jobd.worker.session import is_about_the_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobd.lifecycle.complete import Completion
    from jobd.lifecycle.events import Answer, EventBatch
    from jobd.lifecycle.fail import Failure
    from jobd.lifecycle.lease import LeaseProof
    from jobd.lifecycle.report import Held
    from jobd.worker.session import WorkerSession

#: Most bytes of events in one call, below the limit of the gateway; one chunk of a single job always fits.
CALL_BYTES = 3 << 20
#: Most bytes that type, step and time add to the data of an event.
EVENT_BYTES = 1400
#: Most seconds for reports that are handed over together: slots wait for them, even to stop.
BATCH_S = 5.0
_COMPLETED = Completed()
#: Large results encoded at once; each is in memory whole.
LARGE_RESULTS = 2


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
        self._completes: ReportLine[Completion, Completed | Conflicting | Superseded] = ReportLine(
            session,
            worker_id,
            "complete",
            kinds=(wire.CompleteAnswer, wire.CompleteBatchAnswer),
            sent=_completion,
            answered=lambda answer: _COMPLETED if answer.ok else _refusal(answer.reason),
            refused=_not_taken,
        )
        self._fails: ReportLine[Failure, object] = ReportLine(
            session,
            worker_id,
            "fail",
            kinds=(wire.FailAnswer, wire.FailBatchAnswer),
            sent=_failure,
            answered=_ok_or_refusal,
        )
        self._releases: ReportLine[Held, object] = ReportLine(
            session,
            worker_id,
            "release",
            kinds=(wire.ReleaseAnswer, wire.ReleaseBatchAnswer),
            sent=_release,
            answered=_ok_or_refusal,
        )

    @property
    def completed(self) -> int:
        """How many reports of this kind counted; likewise `failed` and `released`."""
        return self._completes.accepted

    @property
    def failed(self) -> int:
        return self._fails.accepted

    @property
    def released(self) -> int:
        return self._releases.accepted

    # -- leases ------------------------------------------------------------------------------------------------

    async def heartbeat(self, beats: Sequence[LeaseProof]) -> list[Renewal | LeaseLost | Exception]:
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
        """Raises TaskFailed for a result that jobd does not take."""
        return await self._completes.submit(report)

    async def complete_many(
        self, reports: Sequence[Completion]
    ) -> list[Completed | Conflicting | Superseded | Exception]:
        """As `complete`, for many; a report without an answer within BATCH_S (a long Retry-After) gets an error."""
        with anyio.move_on_after(BATCH_S):
            return await self._completes.submit_many(reports)
        return [ClientError(f"complete: no answer from {self._session.url} within {BATCH_S:g} s")] * len(reports)

    async def fail(self, report: Failure) -> object:
        return await self._fails.submit(report)

    async def fail_many(self, reports: Sequence[Failure]) -> list[object]:
        return await self._fails.submit_many(reports)

    async def release(self, holder: Held) -> object:
        return await self._releases.submit(holder)

    async def release_many(self, holders: Sequence[Held]) -> list[object]:
        return await self._releases.submit_many(holders)


def _completion(report: Completion) -> SentReport:
    assert report.result is not None, "results go with their report"
    return SentReport(
        job_id=report.job_id,
        attempt_id=report.attempt_id,
        lease_token=report.lease_token,
        result=Raw(report.result.encode()),
    )


def _failure(report: Failure) -> SentReport:
    return SentReport(
        job_id=report.job_id,
        attempt_id=report.attempt_id,
        lease_token=report.lease_token,
        error=Raw(report.error.encode()),
    )


def _release(holder: Held) -> SentReport:
    delay_s = holder.delay_s if isinstance(holder, Release) and holder.delay_s else UNSET
    return SentReport(
        job_id=holder.job_id, attempt_id=holder.attempt_id, lease_token=holder.lease_token, delay_s=delay_s
    )


def heartbeat_request(worker_id: str, beats: Sequence[LeaseProof]) -> wire.HeartbeatRequest:
    jobs = [wire.HeartbeatJob(job_id=beat.resource_id, lease_token=str(beat.lease_token)) for beat in beats]
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


def _ok_or_refusal(answer: wire.FailAnswer | wire.ReleaseAnswer) -> object:
    return answer if answer.ok else _refusal(answer.reason)


def _refusal(reason: object) -> Conflicting | Superseded:
    return Conflicting(AttemptOutcome.FAILED) if reason == "conflicting_outcome" else Superseded()


def _not_taken(error: ApiProblem, size: int) -> TaskFailed:
    if error.code == "result_not_kept":
        return TaskFailed(error.code, error.detail)
    if error.status == 413:
        message = f"jobd does not take a result of {size} bytes ({error.detail})"
        return TaskFailed("result_too_large", message, retryable=False)
    return TaskFailed("bad_result", f"the result cannot be stored: {error.detail} ({error.code})", retryable=False)
