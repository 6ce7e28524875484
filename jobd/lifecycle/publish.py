"""Publish: which jobs shall be offered next. Delayed jobs get their place in the queue when their time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.postgres import fetch
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from jobd.store.postgres import Connection

SELECT_FOR_PUBLISH = statement("select_for_publish")
PROMOTE_DUE = statement("promote_due")
NEXT_DUE_IN = statement("next_due_in")
PAUSED_QUEUES = statement("paused_queues")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    queue: str
    task: str
    payload: str
    enqueue_id: int
    version: int
    ttl_s: int
    created_ts: int
    is_fresh: bool


async def select_for_publish(
    connection: Connection, queues: Sequence[str], *, most: int, known: Iterable[UUID] = ()
) -> list[Offer]:
    """The first `most` jobs of each queue in the order in which they shall run, without `known` and paused ones."""
    rows = await fetch(connection, SELECT_FOR_PUBLISH, list(queues), most, list(known))
    return [Offer(**{name: row[name] for name in Offer.__struct_fields__}) for row in rows]


async def promote_due(connection: Connection, *, most: int = 1000, now: datetime | None = None) -> list[UUID]:
    """Put jobs whose `run_after` has come into the queue; those moved."""
    return [row["job_id"] for row in await fetch(connection, PROMOTE_DUE, most, now)]


async def paused_queues(connection: Connection) -> set[str]:
    return {row["name"] for row in await fetch(connection, PAUSED_QUEUES)}


async def next_due_in(connection: Connection, *, now: datetime | None = None) -> float | None:
    """Seconds until the next delayed job is due; None if none waits."""
    seconds: float | None = await connection.fetchval(NEXT_DUE_IN, now)
    return seconds
