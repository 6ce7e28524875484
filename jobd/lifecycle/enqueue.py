"""Enqueue: new jobs and their outbox row, in one commit.

Most batches are one statement. A batch with idempotency keys or with `dedupe` first books the keys and looks for twins,
in the same transaction: a key is booked by inserting it, so of many that come with one key at once exactly one makes a
job; and those who ask for a twin of the same job wait for each other.

A key that another transaction has booked and not yet committed (a node that died there may leave it so for seconds) is
answered `KeyBusy`, so that nobody else in the batch waits for it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import asyncpg
import msgspec

from jobd.lifecycle.read_back import jobs_that_stand
from jobd.store.postgres import SESSION
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.postgres import Database
    from jobd.store.session import Connection, Session

ENQUEUE_JOBS = statement("enqueue_jobs")
TAKE_KEYS = statement("take_keys")
POINT_KEYS = statement("point_keys")
LOCK_SPECS = statement("lock_specs")
FIND_TWINS = statement("find_twins")

#: Milliseconds that a whole batch waits for idempotency keys which another transaction holds.
LOCKED_MS = 20
#: The same for each key alone, when the batch is tried again key by key to find the busy ones.
LOCKED_APART_MS = 1
WAIT_AS_USUAL = f"SET LOCAL lock_timeout = '{SESSION['lock_timeout']}'"

Dedupe = Literal["none", "active", "result"]


class IdempotencyKey(msgspec.Struct, frozen=True):
    #: Who sent it: keys of different principals never meet.
    principal: str
    key: str
    #: Fingerprint of the request; the same key with another one is a mistake of the client.
    body_hash: bytes
    life_s: float


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    task: str
    queue: str
    #: A JSON object as text, checked by `jobd.wire.json_check`.
    payload: str
    max_attempts: int
    timeout_s: float
    ttl_s: int
    priority: int = 0
    run_after: datetime | None = None
    delay_s: float = 0.0
    spec_hash: bytes | None = None
    dedupe: Dedupe = "none"
    key: IdempotencyKey | None = None


class Created(msgspec.Struct, frozen=True, eq=False):
    job_id: UUID
    #: By the clock of the database; None when the answer was lost and the job found afterwards.
    created_at: datetime | None = None

    def __eq__(self, other: object) -> bool:
        """The job alone decides: `created_at` is missing after a lost answer."""
        return isinstance(other, Created) and self.job_id == other.job_id

    __hash__ = None  # type: ignore[assignment]


class Existing(msgspec.Struct, frozen=True):
    """The job that the same key stood for before, or the twin that `dedupe` found."""

    job_id: UUID


class KeyMismatch(msgspec.Struct, frozen=True):
    """The key stands for another request."""

    job_id: UUID


class QueueFull(msgspec.Struct, frozen=True):
    queue: str


class KeyBusy(msgspec.Struct, frozen=True):
    """Another transaction holds the key: this job was not accepted, and what the key stands for is not known yet."""


Enqueued = Created | Existing | KeyMismatch | QueueFull | KeyBusy
REFUSED = (KeyMismatch, QueueFull, KeyBusy)


class NotWhole(Exception):
    """Raised to undo a batch of which not every job was accepted."""

    def __init__(self, answers: list[Enqueued]) -> None:
        super().__init__("not every job of the batch was accepted")
        self.answers = answers


async def enqueue(
    database: Database,
    jobs: Sequence[NewJob],
    *,
    max_queued: int | None = None,
    whole: bool = False,
    now: datetime | None = None,
) -> list[Enqueued]:
    """Enqueue a batch; the answers are in its order. With `whole`, if any is refused, none is there."""
    try:
        return await _enqueue(database, jobs, max_queued, whole, now)
    except asyncpg.UniqueViolationError:  # a job is there: an earlier sending of it, whose answer was lost
        there = await jobs_that_stand(database, [job.id for job in jobs])
        if not there:
            raise
    rest = [job for job in jobs if job.id not in there]
    answers = iter(await enqueue(database, rest, max_queued=max_queued, whole=whole, now=now) if rest else ())
    return [Created(job.id) if job.id in there else next(answers) for job in jobs]


async def _enqueue(
    database: Database, jobs: Sequence[NewJob], max_queued: int | None, whole: bool, now: datetime | None
) -> list[Enqueued]:
    plain = not whole and all(job.key is None and job.dedupe == "none" for job in jobs)
    if plain:
        return await _insert(database, jobs, max_queued, now)
    async with database.connection() as connection:
        try:
            return await _enqueue_in_one(connection, jobs, max_queued, whole, now, apart=False)
        except asyncpg.LockNotAvailableError:
            if all(job.key is None for job in jobs):
                raise
        return await _enqueue_in_one(connection, jobs, max_queued, whole, now, apart=True)


async def _enqueue_in_one(
    connection: Connection,
    jobs: Sequence[NewJob],
    max_queued: int | None,
    whole: bool,
    now: datetime | None,
    *,
    apart: bool,
) -> list[Enqueued]:
    """In one transaction, whose locks are waited for a moment only if it books keys.

    `apart`: find out which keys are held by others, answer those jobs `KeyBusy`, and wait for other locks as usual.
    """
    try:
        async with connection.transaction():
            answers = await _enqueue_keyed(connection, jobs, max_queued, now, apart=apart)
            if whole and any(isinstance(answer, REFUSED) for answer in answers):
                raise NotWhole(answers)
            return answers
    except NotWhole as refused:
        return refused.answers


async def _enqueue_keyed(
    connection: Connection, jobs: Sequence[NewJob], max_queued: int | None, now: datetime | None, *, apart: bool
) -> list[Enqueued]:
    answers: dict[int, Enqueued] = await _known_by_key(connection, jobs, now, apart=apart)
    fresh = [n for n in range(len(jobs)) if n not in answers]
    twins = await _twins(connection, [jobs[n] for n in fresh])
    answers |= {n: Existing(twins[jobs[n].id]) for n in fresh if jobs[n].id in twins}

    new = [n for n in fresh if n not in answers]
    answers |= dict(zip(new, await _insert(connection, [jobs[n] for n in new], max_queued, now), strict=True))

    # A second job with the same key, or a twin, in this very batch: answered by the first, or refused with it.
    by_id = {jobs[n].id: answers[n] for n in fresh}
    answers = {n: _followed(answer, by_id) for n, answer in answers.items()}
    await _settle_keys(connection, [(jobs[n], answers[n]) for n in fresh])
    return [answers[n] for n in range(len(jobs))]


async def _known_by_key(
    connection: Connection, jobs: Sequence[NewJob], now: datetime | None, *, apart: bool
) -> dict[int, Enqueued]:
    """Answers for the jobs whose key already stands for a job, or is held by others; the other keys are booked now."""
    firsts: dict[tuple[str, str], NewJob] = {}
    for job in jobs:
        if job.key is not None:
            firsts.setdefault((job.key.principal, job.key.key), job)
    if not firsts:
        return {}
    if apart:
        rows = [row for job in firsts.values() for row in await _book_if_free(connection, job, now)]
        await connection.execute(WAIT_AS_USUAL)
    else:
        rows = await _book(connection, list(firsts.values()), now, LOCKED_MS)
    holders = {(row["principal"], row["key"]): row for row in rows}
    answers: dict[int, Enqueued] = {}
    for n, job in enumerate(jobs):
        if job.key is not None:
            row = holders.get((job.key.principal, job.key.key))
            if row is None:
                answers[n] = KeyBusy()
            elif row["job_id"] != job.id:
                fits = row["body_hash"] == job.key.body_hash
                answers[n] = Existing(row["job_id"]) if fits else KeyMismatch(row["job_id"])
    return answers


async def _book_if_free(connection: Connection, job: NewJob, now: datetime | None) -> list[asyncpg.Record]:
    try:
        async with connection.transaction():  # a savepoint: the others stay booked
            return await _book(connection, [job], now, LOCKED_APART_MS)
    except asyncpg.LockNotAvailableError:
        return []


async def _book(session: Session, jobs: Sequence[NewJob], now: datetime | None, locked_ms: int) -> list[asyncpg.Record]:
    keys = [job.key for job in jobs if job.key is not None]
    return await session.fetch(
        TAKE_KEYS,
        [key.principal for key in keys],
        [key.key for key in keys],
        [job.id for job in jobs],
        [key.body_hash for key in keys],
        [key.life_s for key in keys],
        now,
        str(locked_ms),
    )


async def _twins(session: Session, jobs: Sequence[NewJob]) -> dict[UUID, UUID]:
    """For jobs that asked for it: the job that already does the same, in the table or earlier in the batch.

    A job that finds itself was sent before and is no twin of its own.
    """
    asking = [job for job in jobs if job.dedupe != "none" and job.spec_hash is not None]
    if not asking:
        return {}
    hashes = [job.spec_hash for job in asking]
    await session.fetch(LOCK_SPECS, hashes)
    rows = await session.fetch(FIND_TWINS, hashes, [job.dedupe == "result" for job in asking])
    found = {asking[row["n"] - 1].id: row["id"] for row in rows if row["id"] != asking[row["n"] - 1].id}
    first_of: dict[bytes, UUID] = {}
    for job in jobs:
        if job.id not in found and job.spec_hash is not None:
            first = first_of.setdefault(job.spec_hash, job.id)
            if job.dedupe != "none" and first != job.id:
                found[job.id] = first
    return found


async def _insert(
    session: Session, jobs: Sequence[NewJob], max_queued: int | None, now: datetime | None
) -> list[Enqueued]:
    if not jobs:
        return []
    rows = await session.fetch(
        ENQUEUE_JOBS,
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
    )
    made: dict[UUID, datetime | None] = {row["id"]: row["created_at"] for row in rows}
    if len(made) < len(jobs):  # the queue is full, perhaps with an earlier sending of the job itself
        missing = [job.id for job in jobs if job.id not in made]
        made |= dict.fromkeys(await jobs_that_stand(session, missing))
    return [Created(job.id, made[job.id]) if job.id in made else QueueFull(job.queue) for job in jobs]


async def _settle_keys(session: Session, settled: Sequence[tuple[NewJob, Enqueued]]) -> None:
    """Keys booked for jobs that were not made: pointed at the twin, or given back."""
    moved = [
        (job.key, answer.job_id if isinstance(answer, Existing) else None)
        for job, answer in settled
        if job.key is not None and not isinstance(answer, Created)
    ]
    if moved:
        await session.execute(
            POINT_KEYS, [key.principal for key, _ in moved], [key.key for key, _ in moved], [to for _, to in moved]
        )


def _followed(answer: Enqueued, by_id: dict[UUID, Enqueued]) -> Enqueued:
    """An answer that names another job of the batch, after what became of that one."""
    if not isinstance(answer, (Existing, KeyMismatch)):
        return answer
    first = by_id.get(answer.job_id)
    if isinstance(first, Existing):
        return _followed(type(answer)(first.job_id), by_id)
    return first if isinstance(first, QueueFull) else answer
