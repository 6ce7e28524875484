"""The statements behind `enqueue` that insert a batch of new jobs, and take what is wanted with it."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.lifecycle.claim import ClaimedJob
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from jobd.lifecycle.enqueue import NewJob
    from jobd.lifecycle.take import TakeTerms
    from jobd.store.session import Session

ENQUEUE_JOBS = statement("enqueue_jobs")
ENQUEUE_KEYED_JOBS = statement("enqueue_keyed_jobs")
ENQUEUE_AND_TAKE = statement("enqueue_and_take")
ENQUEUE_KEYED_AND_TAKE = statement("enqueue_keyed_and_take")


class Inserted(msgspec.Struct, frozen=True):
    #: By the clock of the database; None if nothing was inserted.
    created_at: datetime | None
    #: Places in the batch, from 1.
    accepted: list[int]
    claimed: list[ClaimedJob]
    #: For a principal and key, the job that the key stands for, and the fingerprint of its request.
    known: dict[tuple[str, str], tuple[UUID, bytes]] = {}


async def insert(
    session: Session, jobs: Sequence[NewJob], max_queued: int | None, take: TakeTerms | None, now: datetime | None
) -> Inserted:
    """Insert jobs without checking their keys; the queues of those that are not accepted are full."""
    arguments = insert_arguments(jobs, QueueNumbers(jobs), max_queued, now)
    if take is None:
        (row,) = await session.fetch(ENQUEUE_JOBS, *arguments)
        return _inserted(row, [])
    sent_at = time.monotonic()
    row, *rows = await session.fetch(ENQUEUE_AND_TAKE, *take.arguments(now), *arguments)
    return _inserted(row, [ClaimedJob(*(*row[2:], sent_at)) for row in rows])


async def insert_keyed(
    session: Session,
    jobs: Sequence[NewJob],
    max_queued: int | None,
    take: TakeTerms | None,
    now: datetime | None,
    locked_ms: int,
) -> Inserted:
    """Insert jobs and book their keys, each of which may be there once.

    A job that is not accepted, and whose key is not known, may have found its queue full: it has no room if every job
    before it is new. Raises LockNotAvailableError if another transaction holds a key for longer than `locked_ms`.
    """
    numbers = QueueNumbers(jobs)
    keys = [(job.key, n) for n, job in enumerate(jobs) if job.key is not None]
    arguments = (
        *insert_arguments(jobs, numbers, max_queued, now),
        [key.principal for key, _ in keys],
        [key.key for key, _ in keys],
        [jobs[n].id for _, n in keys],
        [key.body_hash for key, _ in keys],
        [key.life_s for key, _ in keys],
        [numbers.of_jobs[n] for _, n in keys],
        [numbers.places[n] for _, n in keys],
        [job.key is not None for job in jobs],
        str(locked_ms),
    )
    if take is None:
        (row,) = await session.fetch(ENQUEUE_KEYED_JOBS, *arguments)
        return _inserted(row, [], _known_in(row))
    sent_at = time.monotonic()
    row, *rows = await session.fetch(ENQUEUE_KEYED_AND_TAKE, *take.arguments(now), *arguments)
    return _inserted(row, [ClaimedJob(*(*row[6:], sent_at)) for row in rows], _known_in(row))


def _inserted(
    row: asyncpg.Record, claimed: list[ClaimedJob], known: dict[tuple[str, str], tuple[UUID, bytes]] | None = None
) -> Inserted:
    return Inserted(row["created_at"], row["accepted"] or [], claimed, known or {})


def _known_in(row: asyncpg.Record) -> dict[tuple[str, str], tuple[UUID, bytes]]:
    names = zip(row["principals"], row["keys"], strict=True)
    return dict(zip(names, zip(row["job_ids"], row["body_hashes"], strict=True), strict=True))


class QueueNumbers:
    """The queues of a batch by number, from 1, and each job's place among those of its queue, for their limits."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.of_queues: dict[str, int] = {}
        self.of_jobs: list[int] = []
        self.places: list[int] = []
        counts = [0]
        for job in jobs:
            number = self.of_queues.setdefault(job.queue, len(counts))
            if number == len(counts):
                counts.append(0)
            counts[number] += 1
            self.of_jobs.append(number)
            self.places.append(counts[number])


def insert_arguments(
    jobs: Sequence[NewJob], numbers: QueueNumbers, max_queued: int | None, now: datetime | None
) -> tuple[object, ...]:
    """The parameters of enqueue_jobs."""
    return (
        [job.id for job in jobs],
        [job.task for job in jobs],
        [job.queue for job in jobs],
        [job.payload for job in jobs],
        [job.priority for job in jobs],
        [job.run_after for job in jobs],
        [job.delay_s for job in jobs],
        [job.max_attempts for job in jobs],
        [job.timeout_s for job in jobs],
        [job.ttl_s for job in jobs],
        [job.spec_hash for job in jobs],
        max_queued,
        now,
        numbers.of_jobs,
        numbers.places,
        list(numbers.of_queues),
        [job.labels for job in jobs],
        [job.owner for job in jobs],
        [job.traceparent for job in jobs],
        [job.tracestate for job in jobs],
        [job.limit_key for job in jobs],
        [job.expires_at for job in jobs],
        [job.expires_in_s for job in jobs],
    )
