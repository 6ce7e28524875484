"""The outbox: changes that are committed and not yet in Redis; and the live jobs, for filling an empty Redis again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    from jobd.store.session import Session

READ_OUTBOX = statement("read_outbox")
DELETE_OUTBOX_ROWS = statement("delete_outbox_rows")
READ_EPOCH = statement("read_epoch")
RAISE_EPOCH = statement("raise_epoch")
READ_LIVE_QUEUED = statement("read_live_queued")
READ_LIVE_DELAYED = statement("read_live_delayed")
READ_LIVE_RUNNING = statement("read_live_running")


class OutboxRow(msgspec.Struct, frozen=True):
    """One change of one job; the fields are in the order of the statement's columns."""

    seq: int
    event: str
    #: Milliseconds since 1970.
    ts: int
    #: The attempt before ended because its holder fell silent: a `gap` event comes first.
    has_gap: bool
    job_id: UUID
    version: int
    #: The attempt that it is about, and the number of its event in it.
    attempt: int
    event_n: int
    #: The message that brought the job, if the change settles it; the stream is "" for a job taken without a message.
    stream: str | None
    message_id: str | None
    #: None here means that the job is gone already.
    task: str | None
    queue: str | None
    ttl_s: int | None
    #: Its place in the queue, if it is new and still waits there.
    order_at: datetime | None
    created_ts: int | None
    payload: str | None
    result: str | None
    result_ref: str | None
    error: str | None
    #: Events that a handler emitted: a JSON array.
    events: str | None


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


_LIVE = Live.__struct_fields__


async def read_outbox(session: Session, *, most: int, skip: Sequence[int] = ()) -> list[OutboxRow]:
    """The changes of the oldest `most` commits, in their order, without those to skip."""
    rows = await session.fetch(READ_OUTBOX, most, list(skip))
    return [OutboxRow(*row) for row in rows]


async def read_epoch(session: Session) -> str:
    """What a Redis shows that was filled from this database, and by nothing that it has lost."""
    return str(await session.fetchval(READ_EPOCH))


async def raise_epoch(session: Session) -> str:
    await session.execute(RAISE_EPOCH)
    return await read_epoch(session)


async def delete_outbox_rows(session: Session, seqs: Sequence[int]) -> None:
    await session.execute(DELETE_OUTBOX_ROWS, list(seqs))


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
