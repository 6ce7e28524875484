"""Jobs as clients see them: rows of the verbs turned into the objects of the contract, and the reading this takes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import UNSET, Raw

from jobd.lifecycle import read
from jobd.lifecycle.waiting import explain_waiting
from jobd.wire import gateway as wire
from jobd.wire.milliseconds import ms
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from datetime import datetime

    from msgspec import UnsetType

    from jobd.lifecycle.waiting import Wait
    from jobd.store.session import Session


def ms_or_none(at: datetime | None) -> int | None:
    return None if at is None else ms(at)


def raw_or_none(text: str | None) -> Raw | None:
    return None if text is None else Raw(text.encode())


def job_id_in(text: str) -> UUID:
    """An id from a path; only the usual spelling is one."""
    try:
        if len(text) == 36:
            return UUID(text)
    except ValueError:
        pass
    raise ApiError("unknown_job", f"{text[:64]!r} is no job id")


async def read_job(connection: Session, job_id: UUID) -> read.Job:
    """The job; raises ApiError `gone_job` or `unknown_job`."""
    job = (await read.read_jobs(connection, [job_id])).get(job_id)
    if job is None:
        raise await missing(connection, job_id)
    return job


async def missing(connection: Session, job_id: UUID) -> ApiError:
    """Why there is no such job: deleted, or never there."""
    if await read.gone_among(connection, [job_id]):
        return ApiError("gone_job", f"job {job_id} has finished and was deleted after its retention")
    return ApiError("unknown_job", f"there is no job {job_id}")


async def whole_object(connection: Session, job: read.Job, *, existing: bool = False) -> wire.JobObject:
    """The job with why it waits and what was tried."""
    waits = await explain_waiting(connection, [job.id]) if job.status == "queued" else {}
    attempts = await read.read_attempts(connection, job.id) if job.attempt_no else []
    waiting = waiting_object(waits[job.id]) if job.id in waits else UNSET
    return job_object(job, waiting, [attempt_object(one) for one in attempts], existing=existing)


def job_object(
    job: read.Job,
    waiting: wire.Waiting | UnsetType = UNSET,
    attempts: list[wire.Attempt] | UnsetType = UNSET,
    *,
    existing: bool = False,
) -> wire.JobObject:
    ended_badly = job.status in ("error", "canceled")
    return wire.JobObject(
        job_id=job.id,
        task=job.task,
        payload=Raw(job.payload.encode()),
        status=job.status,  # type: ignore[arg-type]  # the table has no other words
        created_ts=ms(job.created_at),
        updated_ts=ms(job.updated_at),
        ttl_s=job.ttl_s,
        result=raw_or_none(job.result),
        error=raw_or_none(job.error) if ended_badly else None,
        queue=job.queue,
        priority=job.priority,
        run_after_ts=ms(job.run_after),
        attempt_count=job.attempt_count,
        max_attempts=job.max_attempts,
        timeout_s=job.timeout_s,
        cancel_requested=job.cancel_requested,
        spec_hash=None if job.spec_hash is None else job.spec_hash.hex(),
        redriven_from=job.redriven_from,
        result_ref=job.result_ref,
        started_ts=ms_or_none(job.started_at),
        finished_ts=ms_or_none(job.finished_at),
        waiting=waiting,
        attempts=attempts,
        existing=existing or UNSET,
    )


def waiting_object(wait: Wait) -> wire.Waiting:
    if wait.paused:
        return wire.Waiting(reason="paused", position=wait.position)
    if wait.in_line:
        return wire.Waiting(reason="in_line", position=wait.position)
    return wire.Waiting(reason="retry_backoff" if wait.attempt_count else "delayed", position=None)


def attempt_object(attempt: read.Attempt) -> wire.Attempt:
    return wire.Attempt(
        number=attempt.number,
        attempt_id=attempt.attempt_id,
        owner_id=attempt.owner_id,
        outcome=attempt.outcome,  # type: ignore[arg-type]  # the table has no other words
        error=raw_or_none(attempt.error),
        started_ts=ms(attempt.started_at),
        ended_ts=ms_or_none(attempt.ended_at),
    )


def job_summary(job: read.JobSummary) -> wire.JobSummary:
    return wire.JobSummary(
        job_id=job.id,
        task=job.task,
        status=job.status,  # type: ignore[arg-type]  # the table has no other words
        created_ts=ms(job.created_at),
        updated_ts=ms(job.updated_at),
        queue=job.queue,
        priority=job.priority,
        run_after_ts=ms(job.run_after),
        attempt_count=job.attempt_count,
        max_attempts=job.max_attempts,
        finished_ts=ms_or_none(job.finished_at),
    )
