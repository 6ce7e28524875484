"""The outbox: changes that are committed and not yet in Redis; and the live jobs, for filling an empty Redis again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence
    from datetime import datetime

    import asyncpg

    from jobd.store.session import Session

TURN_OUTBOX_PAGE = statement("turn_outbox_page")
READ_EPOCH = statement("read_epoch")
HOLD_EPOCH = statement("hold_epoch")
RAISE_EPOCH = statement("raise_epoch")
READ_LIVE_QUEUED = statement("read_live_queued")
READ_LIVE_DELAYED = statement("read_live_delayed")
READ_LIVE_RUNNING = statement("read_live_running")


#: Bits of `OutboxJob.kinds`: changes that nearly every job goes through, whose fields are all in the job's row.
QUEUED, RUNNING, DONE, UNMESSAGED = 1, 2, 4, 8
#: The first fields of `OutboxJob`, as project.lua takes them.
PLAIN_FIELDS = 14


class OutboxJob(NamedTuple):
    """What happened to one job within a page; the fields are in the order of the statement's columns."""

    job_id: str
    #: QUEUED, RUNNING (its first attempt), DONE (by that attempt, which emitted nothing), UNMESSAGED (it was taken
    #: without its message); all else is in `others`.
    kinds: int
    version: int
    task: str
    queue: str
    #: "" if it was not read, since Redis probably has it.
    payload: str
    ttl_s: int
    created_ts: int
    #: Milliseconds since 1970, as all times here; 0 if it is not among `kinds`.
    started_ts: int
    finished_ts: int
    result: str
    result_ref: str
    #: The message that brought the job, if one of `kinds` settles it.
    stream: str
    message_id: str
    #: Retention has deleted the job meanwhile.
    is_gone: bool
    id_bytes: bytes
    #: A JSON array of OutboxChange.
    others: str | None
    error: str | None
    #: Its place in the queue, if it waits there.
    order_at: datetime | None
    #: Seconds until it gets a place, if its time has not come.
    due_in_s: float | None


class OutboxChange(msgspec.Struct, frozen=True, array_like=True):
    """A change that is not of the usual kinds."""

    seq: int
    event: str
    ts: int
    #: The attempt before ended because its holder fell silent: a `gap` event comes first.
    has_gap: bool
    version: int
    #: The attempt that it is about, and the number of its event in it.
    attempt: int
    event_n: int
    #: The message that brought the job, if the change settles it; the stream is "" for a job taken without a message.
    stream: str | None
    message_id: str | None
    #: Events that a handler emitted: a JSON array, or null.
    events: msgspec.Raw


class OutboxPage(msgspec.Struct, frozen=True):
    #: The rows that it was made from.
    seqs: list[int]
    jobs: list[OutboxJob]
    #: Age of the oldest row in seconds.
    age_s: float


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not final, as it stands."""

    job_id: UUID
    version: int
    task: str
    queue: str
    status: str
    payload: str
    ttl_s: int
    attempt_no: int
    created_ts: int
    ts: int


#: Rows of the outbox that one page has at most: each is one kind of change in one commit.
MOST_ROWS = 500
#: Bytes from which on a payload is left out that Redis probably has.
LARGE_PAYLOAD = 2048

_LIVE = Live.__struct_fields__
_COLUMNS = len(OutboxJob._fields)
_others = msgspec.json.Decoder(list[OutboxChange])


async def turn_page(
    session: Session,
    *,
    published: Sequence[int] = (),
    skip: Sequence[int] = (),
    most_changes: int,
    without_mirror: Collection[str] = (),
) -> OutboxPage:
    """Delete rows that were published, and read the oldest of the others, but for those to skip.

    Of the jobs of queues without a mirror neither payload nor result is read.
    """
    rows = await session.fetch(
        TURN_OUTBOX_PAGE,
        list(published),
        [*published, *skip],
        MOST_ROWS,
        most_changes,
        list(without_mirror),
        LARGE_PAYLOAD,
    )
    if not rows:
        return OutboxPage([], [], 0.0)
    jobs = [OutboxJob._make(row[:_COLUMNS]) for row in rows]
    return OutboxPage(rows[0]["seqs"], jobs, max(0.0, rows[0]["age_s"]))


def other_changes(job: OutboxJob) -> list[OutboxChange]:
    """Its changes that are not of the usual kinds, in their order."""
    return sorted(_others.decode(job.others), key=lambda change: change.seq) if job.others is not None else []


async def read_epoch(session: Session) -> str:
    """What a Redis shows that was filled from this database, and by nothing that it has lost."""
    return str(await session.fetchval(READ_EPOCH))


async def hold_epoch(transaction: Session) -> str:
    """The same, which cannot be raised until the transaction has ended."""
    return str(await transaction.fetchval(HOLD_EPOCH))


async def raise_epoch(session: Session) -> str:
    await session.execute(RAISE_EPOCH)
    return await read_epoch(session)


async def live_jobs(
    session: Session, queues: Sequence[str], *, page: int, most_waiting: int
) -> AsyncIterator[list[Live]]:
    """Jobs that are not final, page by page: all that run, then the first of each queue, then the next to be due."""
    rows: list[asyncpg.Record] = []
    while rows := await session.fetch(READ_LIVE_RUNNING, rows[-1]["job_id"] if rows else None, page):
        yield _live(rows)
    for queue in queues:
        rows, left = [], most_waiting
        while left > 0 and (
            rows := await session.fetch(READ_LIVE_QUEUED, queue, *_after(rows, "order_at"), min(page, left))
        ):
            yield _live(rows)
            left -= len(rows)
    rows, left = [], most_waiting
    while left > 0 and (rows := await session.fetch(READ_LIVE_DELAYED, *_after(rows, "due_at"), min(page, left))):
        yield _live(rows)
        left -= len(rows)


def _after(rows: list[asyncpg.Record], column: str) -> tuple[object, UUID | None]:
    return (rows[-1][column], rows[-1]["job_id"]) if rows else (None, None)


def _live(rows: list[asyncpg.Record]) -> list[Live]:
    return [Live(**{name: row[name] for name in _LIVE}) for row in rows]
