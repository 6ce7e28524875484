"""Jobs as clients see them: rows of the verbs turned into the objects of the contract, and the reading this takes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from jobd.lifecycle import read
from jobd.lifecycle.depend import list_dependencies
from jobd.wire import gateway as wire
from jobd.wire.milliseconds import ms
from jobd.wire.problems import ApiError
from jobd.wire.schedules import SCHEDULE_LABEL, SCHEDULED_FOR_LABEL

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from msgspec import UnsetType

    from jobd.http.endpoint import Call
    from jobd.http.eta import Etas
    from jobd.lifecycle.depend import Edge
    from jobd.lifecycle.search import JobSummary

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode


def ms_or_none(at: datetime | None) -> int | None:
    return None if at is None else ms(at)


def raw_or_none(text: str | None) -> Raw | None:
    return None if text is None else Raw(text.encode())


def labels_in(text: str | None) -> dict[str, str]:
    return {} if text is None else _decode_labels(text)


def job_id_in(text: str) -> UUID:
    return id_in(text, "job")


def id_in(text: str, noun: Literal["job", "ticket"]) -> UUID:
    """An id from a path, only in the canonical form of 36 characters; raises ApiError `unknown_job` or its like."""
    with contextlib.suppress(ValueError):
        if len(text) == 36:
            return UUID(text)
    raise ApiError(f"unknown_{noun}", f"{text[:64]!r} is no {noun} id")


async def read_job(call: Call, job_id: UUID) -> read.Job:
    """The job, if the caller may see it; raises ApiError `gone_job` or `unknown_job`."""
    job = (await read.read_jobs(call.services.database, [job_id])).get(job_id)
    if job is None or not _is_seen(call, job):
        raise await missing(call, job_id)
    return job


async def read_whole(call: Call, job_id: UUID) -> read.WholeJob:
    """The job with its attempts, if the caller may see it; raises ApiError `gone_job` or `unknown_job`."""
    whole = await read.read_whole_job(call.services.database, job_id)
    if whole is None or not _is_seen(call, whole.job):
        raise await missing(call, job_id)
    return whole


async def check_seen(call: Call, job_ids: Collection[UUID]) -> None:
    """Raises ApiError `unknown_job` or `gone_job` for a job that the caller may not see; its owner never changes."""
    if call.principal.sees is None:
        return
    own = await read.owned_among(call.services.database, call.principal.sees, job_ids)
    for job_id in job_ids:
        if job_id not in own:
            raise await missing(call, job_id)


def _is_seen(call: Call, job: read.Job) -> bool:
    return call.principal.sees in (None, job.owner)


async def missing(call: Call, job_id: UUID) -> ApiError:
    """Why there is no such job for the caller: deleted, or never there. One of others was never there."""
    if await read.gone_among(call.services.database, [job_id], owner=call.principal.sees):
        return ApiError("gone_job", f"job {job_id} has finished and was deleted after its retention")
    return ApiError("unknown_job", f"there is no job {job_id}")


async def whole_object(etas: Etas, whole: read.WholeJob, *, existing: bool = False) -> wire.JobObject:
    """The job with why it waits and what was tried."""
    job = whole.job
    waits = await etas.waiting([job.id]) if job.status == "queued" else {}
    waiting = waits.get(job.id, UNSET)
    made = job_object(job, waiting, [attempt_object(attempt) for attempt in whole.attempts], existing=existing)
    return made if job.waits_for is None else await _with_dependencies(etas, made)


def job_object(
    job: read.Job,
    waiting: wire.Waiting | UnsetType = UNSET,
    attempts: list[wire.Attempt] | UnsetType = UNSET,
    *,
    existing: bool = False,
) -> wire.JobObject:
    ended_badly = job.status in ("error", "canceled")
    labels = labels_in(job.labels)
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
        labels=labels,
        owner=job.owner,
        traceparent=job.traceparent,
        expires_ts=ms_or_none(job.expires_at),
        snoozes=job.snoozes,
        interruptions=job.interruptions,
        schedule=labels.get(SCHEDULE_LABEL),
        scheduled_for_ts=_scheduled_for(labels),
        limit_key=job.limit_key or None,
        group_id=job.group_id,
    )


async def _with_dependencies(etas: Etas, job: wire.JobObject) -> wire.JobObject:
    edges = await list_dependencies(etas.database, [job.job_id], most=wire.MAX_SHOWN_DEPENDS)
    waiting = job.waiting
    if isinstance(waiting, wire.Waiting) and waiting.reason == "depends":
        waiting = msgspec.structs.replace(waiting, depends_on=[edge.on_id for edge in edges if edge.open])
    return msgspec.structs.replace(job, waiting=waiting, depends_on=dependency_objects(edges))


def dependency_objects(edges: Sequence[Edge]) -> list[wire.DependencyObject]:
    return [
        wire.DependencyObject(
            id=edge.on_id,
            kind="group" if edge.is_group else "job",
            on="any" if edge.on_any else "success",
            ref=edge.ref,
            status=edge.status,  # type: ignore[arg-type]  # the table has no other words
        )
        for edge in edges
    ]


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


def _scheduled_for(labels: dict[str, str]) -> int | None:
    at_ms = labels.get(SCHEDULED_FOR_LABEL, "")
    return int(at_ms) if at_ms.isdecimal() else None


def job_summary(job: JobSummary, waiting: wire.Waiting | UnsetType = UNSET) -> wire.JobSummary:
    labels = labels_in(job.labels)
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
        labels=labels,
        owner=job.owner,
        waiting=waiting,
        schedule=labels.get(SCHEDULE_LABEL),
        scheduled_for_ts=_scheduled_for(labels),
    )
