"""Publish: which jobs shall be offered next. Delayed jobs get their place in the queue when their time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from jobd.store.session import Session

SELECT_FOR_PUBLISH = statement("select_for_publish")
QUEUES_WITH_WORK = statement("queues_with_work")
PROMOTE_DUE = statement("promote_due")
NEXT_DUE = statement("next_due")
LOOK_AHEAD = statement("look_ahead")


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


class Ahead(msgspec.Struct, frozen=True, kw_only=True):
    """What there may be to do for the relay."""

    #: The outbox is not empty.
    has_news: bool
    #: A queue that has room has a job to be offered.
    has_unoffered: bool
    #: Seconds until the next delayed job is due (not positive: one is); None if none waits.
    due_in_s: float | None
    paused: list[str]
    paused_tasks: list[str]


async def select_for_publish(
    session: Session, queues: Sequence[str], *, most: int, known: Iterable[UUID | str] = ()
) -> list[Offer]:
    """The first `most` jobs of each queue in the order in which they shall run, without `known` and paused ones."""
    rows = await session.fetch(SELECT_FOR_PUBLISH, list(queues), most, list(known))
    return [Offer(**{name: row[name] for name in Offer.__struct_fields__}) for row in rows]


async def queues_with_work(session: Session) -> set[str]:
    return {row["queue"] for row in await session.fetch(QUEUES_WITH_WORK)}


async def promote_due(session: Session, *, most: int = 1000, now: datetime | None = None) -> list[UUID]:
    """Put jobs whose `run_after` has come into the queue; those moved."""
    return [row["job_id"] for row in await session.fetch(PROMOTE_DUE, most, now)]


async def promote_due_in(session: Session, *, most: int = 1000, now: datetime | None = None) -> set[str]:
    """The same; the queues in which there were any."""
    return {row["queue"] for row in await session.fetch(PROMOTE_DUE, most, now)}


async def next_due_s(session: Session, *, now: datetime | None = None) -> float | None:
    """Seconds until the next delayed job is due (not positive: one is); None if none waits."""
    (row,) = await session.fetch(NEXT_DUE, now)
    due_s: float | None = row["due_in_s"]
    return due_s


async def look_ahead(
    session: Session, queues: Sequence[str] = (), *, known: Iterable[UUID | str] = (), now: datetime | None = None
) -> Ahead:
    """Of these queues, which have room for more; jobs that are `known` are offered already."""
    (row,) = await session.fetch(LOOK_AHEAD, list(queues), list(known), now)
    return Ahead(**{name: row[name] for name in Ahead.__struct_fields__})
