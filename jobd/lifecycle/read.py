"""Read: jobs by id, dead letters, and counters per queue; nothing here costs more in a larger table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jobd.store.session import Session

READ_JOBS = statement("read_jobs")
READ_WHOLE_JOB = statement("read_whole_job")
IS_GONE = statement("is_gone")
OWNED_AMONG = statement("owned_among")
LIST_DEAD_LETTERS = statement("list_dead_letters")
QUEUE_STATS = statement("queue_stats")
PAUSE_QUEUE = statement("pause_queue")
NOTE_RAW_WORKERS = statement("note_raw_workers")


#: Rows that one page of a filtered list may read; a filter that few rows fit gives short pages, never slow ones.
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
    #: A JSON object of strings.
    labels: str | None
    #: Name of the token that sent the job.
    owner: str | None
    traceparent: str | None
    tracestate: str | None
    limit_key: str | None
    #: When it is canceled if it has not started by then.
    expires_at: datetime | None
    #: How often its handler has put it off.
    snoozes: int
    #: Attempts that ended because their node stopped; they are not charged.
    interruptions: int
    group_id: UUID | None
    #: How many of the jobs and groups that it depends on have not ended; None: it depends on none.
    waits_for: int | None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    attempt_id: UUID
    owner_id: str
    #: None while it is open
    outcome: str | None
    error: str | None
    started_at: datetime
    ended_at: datetime | None


class WholeJob(NamedTuple):
    job: Job
    #: Oldest first; the open one is the last.
    attempts: list[Attempt]


class DeadLetterEntry(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    queue: str
    task: str
    reason: str
    at: datetime
    redriven_to: UUID | None


class DeadLetterPage(NamedTuple):
    letters: list[DeadLetterEntry]
    #: Where the next page begins; None at the end.
    next_before: UUID | None


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    paused: bool
    queued: int
    running: int
    done: int
    error: int
    canceled: int


_JOB = Job.__struct_fields__
_LETTER = DeadLetterEntry.__struct_fields__
_attempts = msgspec.json.Decoder(Attempt)


async def read_jobs(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    rows = await session.fetch(READ_JOBS, list(job_ids))
    return {row["id"]: Job(**dict(row)) for row in rows}


async def read_whole_job(session: Session, job_id: UUID) -> WholeJob | None:
    """None: there is no such job (any more)."""
    for row in await session.fetch(READ_WHOLE_JOB, job_id):
        *_, attempts = row
        return WholeJob(Job(**dict(zip(_JOB, row, strict=False))), [_attempts.decode(text) for text in attempts])
    return None


async def gone_among(session: Session, job_ids: Sequence[UUID], *, owner: str | None = None) -> set[UUID]:
    """Which of the ids belong to jobs that were deleted; `owner`: only to those of this one."""
    return {row["job_id"] for row in await session.fetch(IS_GONE, list(job_ids), owner)}


async def owned_among(session: Session, owner: str, job_ids: Collection[UUID]) -> set[UUID]:
    """Which of the ids belong to jobs that this owner has sent."""
    return {row["job_id"] for row in await session.fetch(OWNED_AMONG, list(job_ids), owner)}


async def list_dead_letters(
    session: Session,
    *,
    most: int = 100,
    before: UUID | None = None,
    queue: str | None = None,
    task: str | None = None,
    owner: str | None = None,
    stretch: int = STRETCH,
) -> DeadLetterPage:
    """A page of dead letters, newest first. It may be short, even empty, and still not the last."""
    limit = stretch if any((queue, task, owner)) else most
    rows = await session.fetch(LIST_DEAD_LETTERS, before, limit, queue, task, owner)
    fitting = [row for row in rows if row["fits"]][:most]
    end = None
    if rows and (len(fitting) == most or rows[0]["looked"] == limit):
        end = (fitting if len(fitting) == most else rows)[-1]["job_id"]
    return DeadLetterPage([DeadLetterEntry(**{name: row[name] for name in _LETTER}) for row in fitting], end)


async def queue_stats(session: Session) -> list[QueueStats]:
    return [QueueStats(**dict(row)) for row in await session.fetch(QUEUE_STATS)]


async def pause_queue(session: Session, queue: str, *, paused: bool) -> None:
    await session.execute(PAUSE_QUEUE, queue, paused)


async def note_raw_workers(session: Session, queues: Collection[str], *, now: datetime | None = None) -> None:
    """Raw workers read the streams of these queues: for one lease time from now on, nobody polls their jobs."""
    if queues:
        await session.execute(NOTE_RAW_WORKERS, list(queues), now)
