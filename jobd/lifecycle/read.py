"""Read: jobs by id, pages of jobs, dead letters, and counters per queue; nothing here costs more in a larger table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jobd.store.session import Session

READ_JOBS = statement("read_jobs")
READ_ATTEMPTS = statement("read_attempts")
IS_GONE = statement("is_gone")
LIST_JOBS = statement("list_jobs")
LIST_BY_SPEC = statement("list_by_spec")
LIST_DEAD_LETTERS = statement("list_dead_letters")
QUEUE_STATS = statement("queue_stats")
PAUSE_QUEUE = statement("pause_queue")
NOTE_RAW_WORKERS = statement("note_raw_workers")

#: How many rows one page may look at; a filter that few rows fit gives short pages, never slow ones.
STRETCH = 10_000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    task: str
    queue: str
    payload: str
    status: str
    priority: int
    run_after: datetime
    enqueue_id: int
    version: int
    attempt_no: int
    attempt_count: int
    max_attempts: int
    timeout_s: float
    ttl_s: int
    spec_hash: bytes | None
    redriven_from: UUID | None
    cancel_requested: bool
    result: str | None
    result_ref: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lease_owner: str | None
    lease_expires_at: datetime | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    attempt_id: UUID
    owner_id: str
    #: None while it is open
    outcome: str | None
    error: str | None
    started_at: datetime
    ended_at: datetime | None


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    task: str
    queue: str
    status: str
    priority: int
    run_after: datetime
    attempt_count: int
    max_attempts: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobSummary]
    #: Where the next page begins; None at the end.
    next_before: UUID | None


class DeadLetterEntry(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    queue: str
    task: str
    reason: str
    at: datetime
    redriven_to: UUID | None


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    paused: bool
    queued: int
    running: int
    done: int
    error: int
    canceled: int


async def read_jobs(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    rows = await session.fetch(READ_JOBS, list(job_ids))
    return {row["id"]: Job(**dict(row)) for row in rows}


async def read_attempts(session: Session, job_id: UUID) -> list[Attempt]:
    return [Attempt(**dict(row)) for row in await session.fetch(READ_ATTEMPTS, job_id)]


async def gone_among(session: Session, job_ids: Sequence[UUID]) -> set[UUID]:
    """Which of the ids belong to jobs that retention has deleted."""
    return {row["job_id"] for row in await session.fetch(IS_GONE, list(job_ids))}


async def list_jobs(
    session: Session,
    *,
    most: int = 100,
    before: UUID | None = None,
    status: str | None = None,
    task: str | None = None,
    queue: str | None = None,
    spec_hash: bytes | None = None,
    stretch: int = STRETCH,
) -> Page:
    """A page of jobs, newest first. It may be short, even empty, and still not the last: `next_before` says."""
    if spec_hash is not None:
        rows = await session.fetch(LIST_BY_SPEC, spec_hash, before, most)
        limit = most
    else:
        bare = status is None and task is None and queue is None
        limit = most if bare else stretch
        rows = await session.fetch(LIST_JOBS, before, limit, status, task, queue)
    fitting = [row for row in rows if row["fits"]][:most]
    fields = JobSummary.__struct_fields__
    if len(fitting) == most:
        end = fitting[-1]["id"]
    else:
        end = rows[-1]["id"] if rows else None
    return Page(jobs=[JobSummary(**{name: row[name] for name in fields}) for row in fitting], next_before=end)


async def list_dead_letters(
    session: Session,
    *,
    most: int = 100,
    before: UUID | None = None,
    queue: str | None = None,
    task: str | None = None,
) -> list[DeadLetterEntry]:
    rows = await session.fetch(LIST_DEAD_LETTERS, before, most, queue, task)
    return [DeadLetterEntry(**dict(row)) for row in rows]


async def queue_stats(session: Session) -> list[QueueStats]:
    return [QueueStats(**dict(row)) for row in await session.fetch(QUEUE_STATS)]


async def pause_queue(session: Session, queue: str, *, paused: bool) -> None:
    await session.execute(PAUSE_QUEUE, queue, paused)


async def note_raw_workers(session: Session, queues: Collection[str], *, now: datetime | None = None) -> None:
    """Raw workers read the streams of these queues: for one lease time from now on, nobody polls their jobs."""
    if queues:
        await session.execute(NOTE_RAW_WORKERS, list(queues), now)
