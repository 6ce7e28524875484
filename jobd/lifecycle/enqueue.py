"""Enqueue: new jobs and their outbox row, in one commit.

A batch is one statement, which books the idempotency keys of its jobs too: a key is booked by inserting it, so of many
that come with one key at once exactly one makes a job. A batch with `dedupe`, or that is enqueued whole or not at all,
takes a transaction: it books the keys and looks for twins, and those who ask for a twin of the same job wait for each
other. So does one with jobs that depend on others or enter a group: see `depend`.

A key that another transaction has booked and not yet committed (a node that died there may leave it so for seconds) is
answered `KeyBusy`, so that nobody else in the batch waits for it.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from jobd.lifecycle.claim import NO_TTLS, ClaimedJob
from jobd.lifecycle.depend import Dependency, LinkRefused, RingFound, is_linked, look_up, pointed
from jobd.lifecycle.enqueue_insert import insert, insert_keyed
from jobd.lifecycle.read_back import jobs_that_stand
from jobd.lifecycle.take import TakeTerms, take_by
from jobd.store.postgres import SESSION
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.lifecycle.take import Want
    from jobd.store.postgres import Database
    from jobd.store.session import Connection, Session

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

    @property
    def name(self) -> tuple[str, str]:
        return self.principal, self.key


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
    #: Whether only jobs of the same owner are its twins: the sender may not know of others.
    own_twins: bool = False
    key: IdempotencyKey | None = None
    #: A JSON object of strings as text, not empty.
    labels: str | None = None
    #: Name of the token that sent it; None: it came without one.
    owner: str | None = None
    #: The trace that it belongs to (W3C Trace Context).
    traceparent: str | None = None
    tracestate: str | None = None
    #: Jobs of a queue with the same one share the limits of that key.
    limit_key: str | None = None
    #: When it is canceled if it has not started by then; or in how many seconds from now. One of them or none.
    expires_at: datetime | None = None
    expires_in_s: float | None = None
    #: What must end before it may run; each job or group once.
    depends_on: tuple[Dependency, ...] = ()
    group_id: UUID | None = None
    #: It may wait for jobs and groups of its own owner only, and enter no others.
    own_links: bool = False


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


Enqueued = Created | Existing | KeyMismatch | QueueFull | KeyBusy | LinkRefused
REFUSED = (KeyMismatch, QueueFull, KeyBusy, LinkRefused)
Outcome = tuple[list[Enqueued], list[ClaimedJob]]


class EnqueueTerms(msgspec.Struct, frozen=True):
    """On what terms a batch is enqueued."""

    max_queued: int | None
    whole: bool
    now: datetime | None
    #: Count a job against the limit of its queue only when it is known to be new, which takes a transaction.
    is_exact: bool = False
    #: What is taken in the same commit.
    take: TakeTerms | None = None


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
    answers, _ = await _enqueue_again(database, jobs, EnqueueTerms(max_queued, whole, now))
    return answers


async def enqueue_within(
    connection: Connection, jobs: Sequence[NewJob], *, max_queued: int | None = None, now: datetime | None = None
) -> list[Enqueued]:
    """The same in a transaction that the caller has begun, so that the jobs commit with what else it writes.

    Locks are waited for only for a moment from here on.
    """
    terms = EnqueueTerms(max_queued, whole=False, now=now, is_exact=True)
    answers, _ = await _enqueue_in_transaction(connection, jobs, terms, any(job.key is not None for job in jobs))
    return answers


async def enqueue_and_take(
    database: Database,
    jobs: Sequence[NewJob],
    wants: Sequence[Want],
    *,
    ttl_s: float,
    task_ttls: Mapping[str, float] = NO_TTLS,
    any_mode: bool = False,
    max_queued: int | None = None,
    whole: bool = False,
    now: datetime | None = None,
) -> tuple[list[Enqueued], list[ClaimedJob]]:
    """Enqueue, and in the same commit take what is wanted: of the new jobs and those that wait, the first in line."""
    terms = EnqueueTerms(max_queued, whole, now, take=TakeTerms(wants, ttl_s, task_ttls, any_mode))
    return await _enqueue_again(database, jobs, terms)


async def _enqueue_again(database: Database, jobs: Sequence[NewJob], terms: EnqueueTerms) -> Outcome:
    """Enqueue what is not there yet: an earlier sending of a job, whose answer was lost, may have enqueued it."""
    known: dict[UUID, Enqueued]
    try:
        return await _enqueue(database, jobs, terms)
    except RingFound as ring:
        known = {job_id: LinkRefused("dependency_cycle", group_id) for job_id, group_id in ring.groups.items()}
        if terms.whole:
            return [known.get(job.id) or Created(job.id) for job in jobs], []  # none of them is there
    except asyncpg.UniqueViolationError:
        known = {job_id: Created(job_id) for job_id in await jobs_that_stand(database, [job.id for job in jobs])}
        if not known:
            raise
    made, claimed = await _enqueue_again(database, [job for job in jobs if job.id not in known], terms)
    answers = iter(made)
    return [known.get(job.id) or next(answers) for job in jobs], claimed


async def _enqueue(database: Database, jobs: Sequence[NewJob], terms: EnqueueTerms) -> Outcome:
    has_keys = any(job.key is not None for job in jobs)
    if terms.is_exact or terms.whole or any(job.dedupe != "none" or is_linked(job) for job in jobs):
        async with database.connection() as connection:
            return await _enqueue_in_transaction(connection, jobs, terms, has_keys)
    return await (_insert_keyed if has_keys else _insert)(database, jobs, terms)


async def _insert_keyed(database: Database, jobs: Sequence[NewJob], terms: EnqueueTerms) -> Outcome:
    """In one statement; only jobs for which there may be no room then take a transaction."""
    firsts = _first_with_keys(jobs)
    sent = [job for job in jobs if job.key is None or firsts[job.key.name] is job]
    async with database.connection() as connection:
        try:
            inserted = await insert_keyed(connection, sent, terms.max_queued, terms.take, terms.now, LOCKED_MS)
        except asyncpg.LockNotAvailableError:
            return await _enqueue_in_one(connection, jobs, terms, apart=True)
    made = {sent[place - 1].id: inserted.created_at for place in inserted.accepted}
    booked = {name: (job.id, job.key.body_hash) for name, job in firsts.items() if job.key and job.id in made}
    holders = inserted.known | booked
    answers: dict[int, Enqueued] = {}
    for n, job in enumerate(jobs):
        if job.id in made:
            answers[n] = Created(job.id, made[job.id])
        elif job.key is not None and job.key.name in holders:
            answers[n] = _held_by(job.key, *holders[job.key.name])
    rest = [n for n in range(len(jobs)) if n not in answers]
    if rest:
        others, _ = await _enqueue_again(database, [jobs[n] for n in rest], replace(terms, is_exact=True, take=None))
        answers |= dict(zip(rest, others, strict=True))
    return [answers[n] for n in range(len(jobs))], inserted.claimed


async def _enqueue_in_transaction(
    connection: Connection, jobs: Sequence[NewJob], terms: EnqueueTerms, has_keys: bool
) -> Outcome:
    try:
        return await _enqueue_in_one(connection, jobs, terms, apart=False)
    except asyncpg.LockNotAvailableError:
        if not has_keys:
            raise
    return await _enqueue_in_one(connection, jobs, terms, apart=True)


async def _enqueue_in_one(
    connection: Connection, jobs: Sequence[NewJob], terms: EnqueueTerms, *, apart: bool
) -> Outcome:
    """In one transaction, whose locks are waited for a moment only if it books keys.

    `apart`: find out which keys are held by others, answer those jobs `KeyBusy`, and wait for other locks as usual.
    """
    try:
        async with connection.transaction():
            answers = await _enqueue_keyed(connection, jobs, terms, apart=apart)
            if terms.whole and any(isinstance(answer, REFUSED) for answer in answers):
                raise NotWhole(answers)
            return answers, await take_by(connection, terms.take, terms.now) if terms.take else []
    except NotWhole as refused:
        return refused.answers, []


async def _enqueue_keyed(
    connection: Connection, jobs: Sequence[NewJob], terms: EnqueueTerms, *, apart: bool
) -> list[Enqueued]:
    answers: dict[int, Enqueued] = await _known_by_key(connection, jobs, terms.now, apart=apart)
    fresh = [n for n in range(len(jobs)) if n not in answers]
    twins = await _twins(connection, [jobs[n] for n in fresh])
    answers |= {n: Existing(twins[jobs[n].id]) for n in fresh if jobs[n].id in twins}

    new = [n for n in fresh if n not in answers]
    made = await _insert_linked(connection, [jobs[n] for n in new], _answered(jobs, answers), terms)
    answers |= dict(zip(new, made, strict=True))

    # A second job with the same key, or a twin, in this very batch: answered by the first, or refused with it.
    by_id = {jobs[n].id: answers[n] for n in fresh}
    answers = {n: _followed(answer, by_id) for n, answer in answers.items()}
    await _settle_keys(connection, [(jobs[n], answers[n]) for n in fresh])
    return [answers[n] for n in range(len(jobs))]


def _answered(jobs: Sequence[NewJob], answers: dict[int, Enqueued]) -> dict[UUID, UUID]:
    """For jobs that are not made: the jobs that answer for them."""
    return {jobs[n].id: answer.job_id for n, answer in answers.items() if isinstance(answer, Existing)}


async def _insert_linked(
    connection: Connection, jobs: Sequence[NewJob], others: dict[UUID, UUID], terms: EnqueueTerms
) -> list[Enqueued]:
    """Insert jobs, of which some may wait for others or enter groups; `others` answer for jobs of the same batch."""
    if not any(map(is_linked, jobs)):
        made, _ = await _insert(connection, jobs, replace(terms, take=None))
        return made
    jobs, in_batch = pointed(jobs, others), {job.id for job in jobs}
    links = await look_up(connection, jobs, in_batch)
    answers: dict[UUID, Enqueued] = {}
    for job in jobs:
        if (refusal := links.refusal(job, in_batch)) is not None:
            answers[job.id] = refusal
    good = [job for job in jobs if job.id not in answers]
    made, _ = await _insert(connection, good, replace(terms, take=None))
    await links.hold(connection, [job for job, answer in zip(good, made, strict=True) if isinstance(answer, Created)])
    answers |= {job.id: answer for job, answer in zip(good, made, strict=True)}
    return [answers[job.id] for job in jobs]


async def _known_by_key(
    connection: Connection, jobs: Sequence[NewJob], now: datetime | None, *, apart: bool
) -> dict[int, Enqueued]:
    """Answers for the jobs whose key already stands for a job, or is held by others; the other keys are booked now."""
    firsts = _first_with_keys(jobs)
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
            row = holders.get(job.key.name)
            if row is None:
                answers[n] = KeyBusy()
            elif row["job_id"] != job.id:
                answers[n] = _held_by(job.key, row["job_id"], row["body_hash"])
    return answers


def _first_with_keys(jobs: Sequence[NewJob]) -> dict[tuple[str, str], NewJob]:
    firsts: dict[tuple[str, str], NewJob] = {}
    for job in jobs:
        if job.key is not None:
            firsts.setdefault(job.key.name, job)
    return firsts


def _held_by(key: IdempotencyKey, job_id: UUID, body_hash: bytes) -> Existing | KeyMismatch:
    """The key stands for this job, by a request with this fingerprint."""
    return Existing(job_id) if body_hash == key.body_hash else KeyMismatch(job_id)


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
    also_done, owners = (
        [job.dedupe == "result" for job in asking],
        [job.owner if job.own_twins else None for job in asking],
    )
    rows = await session.fetch(FIND_TWINS, hashes, also_done, owners)
    found = {asking[row["n"] - 1].id: row["id"] for row in rows if row["id"] != asking[row["n"] - 1].id}
    first_of: dict[tuple[bytes, str | None], UUID] = {}
    first_of_any: dict[bytes, UUID] = {}
    for job in jobs:
        if job.id in found or job.spec_hash is None:
            continue
        own = first_of.get((job.spec_hash, job.owner))
        first = own if job.own_twins else first_of_any.get(job.spec_hash)
        if job.dedupe != "none" and first is not None:
            found[job.id] = first
        else:
            first_of.setdefault((job.spec_hash, job.owner), job.id)
            first_of_any.setdefault(job.spec_hash, job.id)
    return found


async def _insert(session: Session, jobs: Sequence[NewJob], terms: EnqueueTerms) -> Outcome:
    if not jobs:
        return [], await take_by(session, terms.take, terms.now) if terms.take else []
    inserted = await insert(session, jobs, terms.max_queued, terms.take, terms.now)
    if len(inserted.accepted) == len(jobs):
        return [Created(job.id, inserted.created_at) for job in jobs], inserted.claimed
    made = {jobs[place - 1].id: inserted.created_at for place in inserted.accepted}
    # A queue is full, perhaps with an earlier sending of the job itself.
    made |= dict.fromkeys(await jobs_that_stand(session, [job.id for job in jobs if job.id not in made]))
    answers: list[Enqueued] = [
        Created(job.id, made[job.id]) if job.id in made else QueueFull(job.queue) for job in jobs
    ]
    return answers, inserted.claimed


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
    return first if isinstance(first, (QueueFull, LinkRefused)) else answer
