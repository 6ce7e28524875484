"""The outbox: what has been committed and not yet told, and the live jobs for telling everything anew."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.postgres import fetch
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import asyncpg

    from jobd.store.postgres import Connection

READ_OUTBOX = statement("read_outbox")
FORGET_TOLD = statement("forget_told")
READ_LIVE_QUEUED = statement("read_live_queued")
READ_LIVE_DELAYED = statement("read_live_delayed")
READ_LIVE_RUNNING = statement("read_live_running")


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one job."""

    seq: int
    event: str
    #: When, in ms.
    ts: int
    job_id: UUID
    version: int
    #: The message that brought the job, if the change settles it.
    stream: str | None
    message_id: str | None
    #: None here means that the job is gone already.
    task: str | None
    queue: str | None
    ttl_s: int | None
    attempt_no: int | None
    enqueue_id: int | None
    created_ts: int | None
    payload: str | None
    result: str | None
    result_ref: str | None
    error: str | None


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


_TOLD = Told.__struct_fields__
_LIVE = Live.__struct_fields__


async def read_outbox(connection: Connection, *, most: int) -> list[Told]:
    """The changes of the oldest `most` commits, in their order."""
    rows = await fetch(connection, READ_OUTBOX, most)
    return [Told(**{name: row[name] for name in _TOLD}) for row in rows]


async def forget_told(connection: Connection, seqs: Sequence[int]) -> None:
    await connection.execute(FORGET_TOLD, list(seqs))


async def live_jobs(connection: Connection, queues: Sequence[str], *, page: int) -> AsyncIterator[list[Live]]:
    """All jobs that are not final, page by page: running first, then each queue in its order, then the delayed."""
    rows: list[asyncpg.Record] = []
    while rows := await fetch(connection, READ_LIVE_RUNNING, rows[-1]["job_id"] if rows else None, page):
        yield _live(rows)
    for queue in queues:
        rows = []
        while rows := await fetch(connection, READ_LIVE_QUEUED, queue, *_after(rows, "order_at"), page):
            yield _live(rows)
    rows = []
    while rows := await fetch(connection, READ_LIVE_DELAYED, *_after(rows, "due_at"), page):
        yield _live(rows)


def _after(rows: list[asyncpg.Record], column: str) -> tuple[object, UUID | None]:
    return (rows[-1][column], rows[-1]["job_id"]) if rows else (None, None)


def _live(rows: list[asyncpg.Record]) -> list[Live]:
    return [Live(**{name: row[name] for name in _LIVE}) for row in rows]
