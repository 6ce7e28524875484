"""`POST /internal/worker/{complete,fail,release}`: an HTTP worker reports how its attempt ended.

A refused report is an answer (200 with `ok` false), since the worker has to act on it. A problem document means that
the report was invalid (the lease is unchanged: send another report) or that its outcome is not known (send the same
report again: reports are idempotent by attempt).
"""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
from anyio import to_thread
from msgspec import UNSET, UnsetType

from jobd.engine.results import ResultNotKept
from jobd.host.logs import job_fields
from jobd.host.masking import masked_text
from jobd.http.body import JSON_TYPES, check_content_type, convert, read_bytes, read_json
from jobd.http.endpoint import Call, json_answer, post
from jobd.http.worker_request import check_worker_id, lease_token_in
from jobd.job.model import AlreadyFinished, Canceled, Completed, Conflicting, DeadLettered, Requeued, Superseded
from jobd.job.status import AttemptOutcome
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.fail import Failure
from jobd.lifecycle.release import Release
from jobd.lifecycle.waiting import statuses_of
from jobd.wire import worker as wire
from jobd.wire.json_check import TooDeep, check_json
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from jobd.lifecycle.fail import Ended
    from jobd.lifecycle.report import Held, Refusal

log = logging.getLogger(__name__)

#: Reports up to this size are parsed in the event loop, larger ones in a thread: parsing takes milliseconds a megabyte.
PARSED_INLINE_BYTES = 256 * 1024
#: Retry-After in seconds when the disk was too full to store a result.
DISK_FULL_RETRY_S = 5
#: Largest size in bytes of a report without its result.
ENVELOPE_BYTES = 16 * 1024
#: Largest body in bytes of a failure report, before message and stack are cut.
ERROR_BYTES = 16 * 1024 * 1024
#: Bytes of an error message that are stored; the rest is cut.
MESSAGE_BYTES = 4 * 1024
#: Bytes of a stack trace that are stored; the rest is cut.
STACK_BYTES = 16 * 1024

#: Why a report was refused; UNSET: it was not.
Reason: TypeAlias = wire.ReportReason | UnsetType

# Complete


class _Completion(NamedTuple):
    #: The report with its result removed.
    report: wire.CompleteRequest
    result: bytes
    outcome_hash: bytes


async def complete(call: Call) -> Response:
    limit = call.services.config().limits.result_bytes
    report, result, outcome_hash = await _read_completion(call, limit)
    if len(result) > limit:
        raise too_large(len(result), limit)
    completion = await with_result(
        call,
        Completion(
            job_id=report.job_id,
            attempt_id=report.attempt_id,
            lease_token=lease_token_in(report.lease_token),
            outcome_hash=outcome_hash,
        ),
        result,
    )
    answer = await call.services.engine.complete(completion)
    (reason,) = await refusal_reasons(call, [completion], [answer])
    return json_answer(completed(answer, reason))


def completed(answer: Completed | Refusal, reason: Reason) -> wire.CompleteAnswer:
    if isinstance(answer, Completed):
        return wire.CompleteAnswer(ok=True, ack=True)
    if isinstance(answer, AlreadyFinished):
        return wire.CompleteAnswer(ok=True, ack=True, replay=True)
    # The result file stays: if the same result was accepted before, a row names it; otherwise the janitor deletes it.
    return wire.CompleteAnswer(ok=False, ack=True, reason=reason)


def too_large(size: int, limit: int) -> ApiError:
    return ApiError(
        "too_large",
        f"the result has {size} bytes, more than limits.result_bytes = {limit}; keep it elsewhere and report where, or"
        " call fail",
    )


def too_deep(error: TooDeep) -> ApiError:
    return ApiError("result_too_deep", f"{error}; report it as text, or call fail")


async def _read_completion(call: Call, limit: int) -> _Completion:
    check_content_type(call.request, JSON_TYPES)
    raw = await read_bytes(call.request, limit + ENVELOPE_BYTES)
    try:
        if len(raw) <= PARSED_INLINE_BYTES:
            completion = _completion_in(raw)
        else:
            completion = await to_thread.run_sync(_completion_in, raw, limiter=call.services.results.limiter)
    except TooDeep as error:  # only the result can be deep
        raise too_deep(error) from None
    check_worker_id(completion.report.worker_id)
    return completion


def _completion_in(raw: bytes) -> _Completion:
    report = convert(check_json(raw, len(raw)), wire.CompleteRequest)
    result = msgspec.json.encode(report.result, order="deterministic")
    return _Completion(msgspec.structs.replace(report, result=None), result, hashlib.sha256(result).digest())


async def with_result(call: Call, completion: Completion, result: bytes) -> Completion:
    """The completion with its result inline, or with the name of the file that the result was written to."""
    try:
        result_ref = await call.services.results.keep(completion, result)
    except ResultNotKept as error:
        log.error("%s", error, extra=job_fields(completion.job_id))
        raise ApiError(
            "result_not_kept",
            f"jobd's disk does not take the result of {len(result)} bytes; report it again in a while, or call fail",
            headers={"Retry-After": str(DISK_FULL_RETRY_S)},
        ) from None
    if result_ref is not None:
        return msgspec.structs.replace(completion, result_ref=result_ref)
    return msgspec.structs.replace(completion, result=result.decode())


# Fail


async def fail(call: Call) -> Response:
    report = await read_json(call.request, wire.FailRequest, ERROR_BYTES)
    check_worker_id(report.worker_id)
    failure = failure_in(report, report.error)
    answer = await call.services.engine.fail(failure)
    (reason,) = await refusal_reasons(call, [failure], [answer])
    return json_answer(failed(answer, reason))


def failure_in(report: wire.AttemptReport | wire.JobReport, reported: wire.JobError) -> Failure:
    error = msgspec.json.encode(_kept(reported), order="deterministic")
    return Failure(
        job_id=report.job_id,
        attempt_id=report.attempt_id,
        lease_token=lease_token_in(report.lease_token),
        error=error.decode(),
        retryable=reported.retryable,
        outcome_hash=hashlib.sha256(error).digest(),
    )


def failed(answer: Ended | Refusal, reason: Reason) -> wire.FailAnswer:
    if isinstance(answer, Requeued):
        retry_at = datetime.fromtimestamp(answer.run_after, timezone.utc)
        return wire.FailAnswer(ok=True, ack=True, requeued=True, dlq=False, retry_at=retry_at)
    if isinstance(answer, DeadLettered):
        return wire.FailAnswer(ok=True, ack=True, requeued=False, dlq=True)
    if isinstance(answer, Canceled):
        return wire.FailAnswer(ok=True, ack=True, requeued=False, dlq=False, reason="canceled")
    if isinstance(answer, AlreadyFinished):
        return wire.FailAnswer(
            ok=True,
            ack=True,
            requeued=answer.requeued,
            dlq=answer.dead_lettered,
            reason="canceled" if answer.outcome is AttemptOutcome.CANCELED else UNSET,
            replay=True,
        )
    return wire.FailAnswer(ok=False, ack=True, requeued=False, dlq=False, reason=reason)


def _kept(error: wire.JobError) -> wire.JobError:
    """The error as it is stored: of bounded size, and without the passwords of URLs."""
    return msgspec.structs.replace(
        error,
        message=masked_text(_cut(error.message, MESSAGE_BYTES)),
        stack=None if error.stack is None else masked_text(_cut(error.stack, STACK_BYTES)),
    )


def _cut(text: str, most: int) -> str:
    """The text cut to at most `most` bytes of UTF-8, without splitting a character."""
    return text if len(text) * 4 <= most else text[:most].encode()[:most].decode(errors="ignore")


# Release


async def release(call: Call) -> Response:
    report = await read_json(call.request, wire.ReleaseRequest, ENVELOPE_BYTES)
    check_worker_id(report.worker_id)
    held = release_in(report)
    answer = await call.services.engine.release(held)
    (reason,) = await refusal_reasons(call, [held], [answer])
    return json_answer(released(answer, reason))


def release_in(report: wire.ReleaseRequest | wire.ReleaseJob) -> Release:
    return Release(
        job_id=report.job_id,
        attempt_id=report.attempt_id,
        lease_token=lease_token_in(report.lease_token),
        delay_s=0.0 if report.delay_s is UNSET else report.delay_s,
    )


def released(answer: Requeued | Canceled | Refusal, reason: Reason) -> wire.ReleaseAnswer:
    if isinstance(answer, Requeued):
        return wire.ReleaseAnswer(ok=True, ack=True, requeued=True)
    if isinstance(answer, Canceled):
        return wire.ReleaseAnswer(ok=True, ack=True, requeued=False, reason="canceled")
    if isinstance(answer, AlreadyFinished):
        if answer.outcome is AttemptOutcome.CANCELED:
            return wire.ReleaseAnswer(ok=True, ack=True, requeued=False, reason="canceled", replay=True)
        return wire.ReleaseAnswer(ok=True, ack=True, requeued=True, replay=True)
    return wire.ReleaseAnswer(ok=False, ack=True, requeued=False, reason=reason)


# Refusals


async def refusal_reasons(call: Call, reports: Sequence[Held], answers: Sequence[object]) -> list[Reason]:
    """Why each report was refused, UNSET for one that was not; the statuses of all jobs are read at once."""
    pairs = list(zip(reports, answers, strict=True))
    superseded = {report.job_id for report, answer in pairs if isinstance(answer, Superseded)}
    statuses = await statuses_of(call.services.database, superseded) if superseded else {}
    return [_reason(answer, statuses.get(report.job_id)) for report, answer in pairs]


def _reason(answer: object, status: str | None) -> Reason:
    if isinstance(answer, Conflicting):
        return "conflicting_outcome"
    if not isinstance(answer, Superseded):
        return UNSET
    if status is None:
        return "unknown_job"
    return "canceled" if status == "canceled" else "superseded"


ENDPOINTS = (
    post(
        "/internal/worker/complete",
        "worker",
        complete,
        "Report a job as done, with its result",
        answers={200: wire.CompleteAnswer},
        problems=("result_not_kept", "result_too_deep", "too_large"),
        body=wire.CompleteRequest,
    ),
    post(
        "/internal/worker/fail",
        "worker",
        fail,
        "Report that an attempt failed",
        answers={200: wire.FailAnswer},
        body=wire.FailRequest,
    ),
    post(
        "/internal/worker/release",
        "worker",
        release,
        "Hand a job back unfinished, at once or with a delay; the attempt is not charged",
        answers={200: wire.ReleaseAnswer},
        body=wire.ReleaseRequest,
    ),
)
