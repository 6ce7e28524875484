"""`POST /internal/worker/{complete,fail,release}/batch`: an HTTP worker reports on many attempts in one call.

Each report is answered in its place as the call for one job would answer it. A report that the call for one job refuses
with a problem document has its code in `problem`; the others are not affected. Refused as a whole are only a body that
is no JSON, or that has no list of reports; and nothing of the batch is known when jobd answers that it is unavailable.
Send a batch again like any report: reports are idempotent by attempt.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from anyio import to_thread
from msgspec import UNSET, Meta, Raw

from jobd.http.body import JSON_TYPES, check_content_type, convert, read_bytes
from jobd.http.endpoint import Call, json_answer, post
from jobd.http.problems import problem_of
from jobd.http.worker_reports import (
    PARSED_INLINE_BYTES,
    completed,
    failed,
    failure_in,
    refusal_reasons,
    release_in,
    released,
    too_deep,
    too_large,
    with_result,
)
from jobd.http.worker_request import check_worker_id, lease_token_in
from jobd.job.model import Completed
from jobd.lifecycle.complete import Completion
from jobd.wire import worker as wire
from jobd.wire.json_check import BadPayload, DuplicateKey, TooDeep, check_json, has_all_strings
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.responses import Response

    from jobd.http.worker_reports import Reason
    from jobd.job.model import Canceled, Requeued
    from jobd.lifecycle.fail import Ended, Failure
    from jobd.lifecycle.report import Held, Refusal

#: Largest body in bytes. Larger results go one by one with `complete`.
BATCH_BYTES = 4 << 20

#: A report as it was sent, as it is read, as the engine takes it, and its answer.
Sent = TypeVar("Sent")
Taken = TypeVar("Taken")
Report = TypeVar("Report", bound="Held")
Answer = TypeVar("Answer")


class _RawBatch(wire.WorkerRequest, frozen=True, kw_only=True):
    """A batch whose reports are not yet read."""

    worker_id: wire.WorkerId
    jobs: Annotated[list[Raw], Meta(min_length=1, max_length=wire.MAX_JOBS)]


class _RawFailJob(wire.JobReport, frozen=True, kw_only=True):
    error: Raw


class _SentError(wire.WorkerRequest, frozen=True, kw_only=True):
    error: wire.JobError


class _RawFailBatch(wire.WorkerRequest, frozen=True, kw_only=True):
    """As `wire.FailBatchRequest`, but without defaults, so that a doubled key shows (see `has_all_strings`)."""

    worker_id: wire.WorkerId
    jobs: Annotated[list[_RawFailJob], Meta(min_length=1, max_length=wire.MAX_JOBS)]


class _LargeResult(NamedTuple):
    """A completion whose result belongs into a file."""

    completion: Completion
    result: bytes


# Complete

_DONE: Final = wire.CompleteJobAnswer(ok=True, ack=True)


async def complete_batch(call: Call) -> Response:
    limits = call.services.config().limits

    def taken(job: wire.CompleteJob) -> Completion | _LargeResult:
        return _completion_in(job, limits.result_bytes, limits.inline_result_bytes)

    read = await _read(call, wire.CompleteBatchRequest, wire.CompleteJob, taken)
    reports = [await _with_file(call, report) if isinstance(report, _LargeResult) else report for report in read]
    jobs = await _answers(call, reports, call.services.engine.complete_many, _completed, _not_completed)
    return json_answer(wire.CompleteBatchAnswer(jobs=jobs))


def _completion_in(job: wire.CompleteJob, limit: int, inline_bytes: int) -> Completion | _LargeResult:
    """The report with its result as it is stored; raises ApiError or BadPayload for a result that cannot be."""
    text = b"[%b]" % job.result  # as deep as in the body of `complete`
    try:
        (value,) = check_json(text, len(text))
    except TooDeep as error:
        raise too_deep(error) from None
    result = msgspec.json.encode(value, order="deterministic")
    if len(result) > limit:
        raise too_large(len(result), limit)
    is_large = len(result) > inline_bytes
    completion = Completion(
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        lease_token=lease_token_in(job.lease_token),
        outcome_hash=hashlib.sha256(result).digest(),
        result=None if is_large else result.decode(),
    )
    return _LargeResult(completion, result) if is_large else completion


async def _with_file(call: Call, report: _LargeResult) -> Completion | Exception:
    try:
        return await with_result(call, report.completion, report.result)
    except ApiError as error:
        return error


def _completed(answer: Completed | Refusal, reason: Reason) -> wire.CompleteJobAnswer:
    if isinstance(answer, Completed):
        return _DONE
    return wire.CompleteJobAnswer(**msgspec.structs.asdict(completed(answer, reason)))


def _not_completed(problem: wire.ReportProblem) -> wire.CompleteJobAnswer:
    return wire.CompleteJobAnswer(ok=False, ack=False, problem=problem)


# Fail


async def fail_batch(call: Call) -> Response:
    reports = await _read(call, _RawFailBatch, _RawFailJob, _failure_in)
    jobs = await _answers(call, reports, call.services.engine.fail_many, _failed, _not_failed)
    return json_answer(wire.FailBatchAnswer(jobs=jobs))


def _failure_in(job: _RawFailJob) -> Failure:
    text = b'{"error":%b}' % job.error  # a fault in it is then named as in the body of `fail`
    return failure_in(job, convert(check_json(text, len(text)), _SentError).error)


def _failed(answer: Ended | Refusal, reason: Reason) -> wire.FailJobAnswer:
    return wire.FailJobAnswer(**msgspec.structs.asdict(failed(answer, reason)))


def _not_failed(problem: wire.ReportProblem) -> wire.FailJobAnswer:
    return wire.FailJobAnswer(ok=False, ack=False, requeued=False, dlq=False, problem=problem)


# Release


async def release_batch(call: Call) -> Response:
    reports = await _read(call, wire.ReleaseBatchRequest, wire.ReleaseJob, release_in)
    jobs = await _answers(call, reports, call.services.engine.release_many, _released, _not_released)
    return json_answer(wire.ReleaseBatchAnswer(jobs=jobs))


def _released(answer: Requeued | Canceled | Refusal, reason: Reason) -> wire.ReleaseJobAnswer:
    return wire.ReleaseJobAnswer(**msgspec.structs.asdict(released(answer, reason)))


def _not_released(problem: wire.ReportProblem) -> wire.ReleaseJobAnswer:
    return wire.ReleaseJobAnswer(ok=False, ack=False, requeued=False, problem=problem)


# What the three have in common: reading a batch


async def _read(
    call: Call, batch: type[wire.WorkerRequest], kind: type[Sent], taken: Callable[[Sent], Taken]
) -> list[Taken | Exception]:
    """What is taken of each report, in their order; an error in the place of one that is refused."""
    check_content_type(call.request, JSON_TYPES)
    raw = await read_bytes(call.request, BATCH_BYTES)
    if len(raw) <= PARSED_INLINE_BYTES:
        worker_id, reports = _reports_in(raw, batch, kind, taken)
    else:
        limiter = call.services.results.limiter
        worker_id, reports = await to_thread.run_sync(_reports_in, raw, batch, kind, taken, limiter=limiter)
    check_worker_id(worker_id)
    return reports


def _reports_in(
    raw: bytes, batch: type[wire.WorkerRequest], kind: type[Sent], taken: Callable[[Sent], Taken]
) -> tuple[str, list[Taken | Exception]]:
    """The worker's id and its reports. When a report does not fit the type, they are read one by one."""
    try:
        asked: Any = msgspec.json.decode(raw, type=batch)
        if has_all_strings(raw, asked):
            return asked.worker_id, [_tried(taken, job) for job in asked.jobs]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    one_by_one = _raw_batch_in(raw)
    return one_by_one.worker_id, [_tried(lambda job: taken(_report_in(job, kind)), job) for job in one_by_one.jobs]


def _tried(taken: Callable[[Sent], Taken], job: Sent) -> Taken | Exception:
    try:
        return taken(job)
    except (ApiError, BadPayload) as error:
        return error


def _raw_batch_in(raw: bytes) -> _RawBatch:
    """The batch around its reports; raises what is wrong about it."""
    try:
        batch = msgspec.json.decode(raw, type=_RawBatch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        value = check_json(raw, len(raw))
        raise ApiError("invalid" if isinstance(value, dict) else "not_object", str(error)) from None
    if not has_all_strings(raw, batch):
        raise DuplicateKey("the body has the same key twice")
    return batch


def _report_in(raw: Raw, kind: type[Sent]) -> Sent:
    text = bytes(raw)
    try:
        check_json(text, len(text))
        return msgspec.json.decode(text, type=kind)
    except TooDeep as error:  # only a result can be deep
        raise too_deep(error) from None
    except msgspec.ValidationError as error:
        raise ApiError("invalid", str(error)) from None


# What the three have in common: answering it


async def _answers(
    call: Call,
    reports: Sequence[Report | Exception],
    send: Callable[[Sequence[Report]], Awaitable[Sequence[Any]]],
    answered: Callable[[Any, Reason], Answer],
    refused: Callable[[wire.ReportProblem], Answer],
) -> list[Answer]:
    """Hand the good reports to the engine in one go; an answer for each report. Raises if nothing is known of any."""
    good = [report for report in reports if not isinstance(report, Exception)]
    sent = await send(good) if good else []
    errors = [answer for answer in sent if isinstance(answer, Exception)]
    if errors and len(errors) == len(reports):
        raise errors[0]
    known = iter(zip(sent, await refusal_reasons(call, good, sent), strict=True))
    answers: list[Answer] = []
    for report in reports:
        answer, reason = (report, UNSET) if isinstance(report, Exception) else next(known)
        answers.append(refused(_problem(answer)) if isinstance(answer, Exception) else answered(answer, reason))
    return answers


def _problem(error: Exception) -> wire.ReportProblem:
    """The problem document of a call for one job, as far as it is about the report."""
    return msgspec.json.decode(problem_of(error, "one report of a batch").body, type=wire.ReportProblem)


ENDPOINTS = (
    post(
        "/internal/worker/complete/batch",
        "worker",
        complete_batch,
        "Report several jobs as done, with their results",
        answers={200: wire.CompleteBatchAnswer},
        body=wire.CompleteBatchRequest,
    ),
    post(
        "/internal/worker/fail/batch",
        "worker",
        fail_batch,
        "Report that several attempts failed",
        answers={200: wire.FailBatchAnswer},
        body=wire.FailBatchRequest,
    ),
    post(
        "/internal/worker/release/batch",
        "worker",
        release_batch,
        "Hand several jobs back unfinished; the attempts are not charged",
        answers={200: wire.ReleaseBatchAnswer},
        body=wire.ReleaseBatchRequest,
    ),
)
