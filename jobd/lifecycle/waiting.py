"""Waiting: why jobs are still in the queue and how many go before them, and how far the outbox is behind.

Nothing is counted beyond `MOST`, so that asking costs the same however long the line is.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.lifecycle.claim import EXPLAIN_CLAIMS
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Collection

    from jobd.store.session import Session

EXPLAIN_WAITING = statement("explain_waiting")
QUEUE_HEADS = statement("queue_heads")
OUTBOX_DEPTH = statement("outbox_depth")

#: Rows that are counted at most, so that an answer costs the same however long the queue or the outbox is.
MOST = 10_000


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    queue: str
    task: str = ""
    attempt_count: int
    #: Whether it is due and has its place in the queue.
    in_line: bool
    #: What is paused: `all`, its `queue` or its `task`; None: nothing that keeps it.
    paused: str | None
    #: How often its handler has put it off.
    snoozes: int = 0
    #: Why it is kept out of the line although its time has come: `limited`, `depends` or `paused`.
    held: str | None = None
    limit_key: str | None = None
    #: When the rate of its key may have room again; None: it waits for something else, or nobody knows.
    until_at: datetime | None = None
    #: Jobs before it; None when it is not in line or there are too many to count.
    position: int | None
    #: Seconds until it is due; None: it is in line, or waits for something else than a time.
    due_s: float | None


class OutboxDepth(msgspec.Struct, frozen=True, kw_only=True):
    #: Commits that are not in Redis yet, counted up to `MOST`.
    depth: int
    #: Age of the oldest; None when there is none.
    age_s: float | None


async def explain_waiting(
    session: Session, job_ids: Collection[UUID], *, most: int = MOST, now: datetime | None = None
) -> dict[UUID, Wait]:
    """Why each of the jobs waits; one that does not is left out."""
    rows = await session.fetch(EXPLAIN_WAITING, list(job_ids), most, now)
    return {
        row["job_id"]: Wait(
            job_id=row["job_id"],
            queue=row["queue"],
            task=row["task"],
            attempt_count=row["attempt_count"],
            in_line=row["in_line"],
            paused=row["paused"],
            snoozes=row["snoozes"],
            held=row["held"],
            limit_key=row["limit_key"],
            until_at=row["until_at"],
            position=row["ahead"],
            due_s=row["due_s"],
        )
        for row in rows
    }


async def statuses_of(session: Session, job_ids: Collection[UUID]) -> dict[UUID, str]:
    """Where the jobs stand; one that is not there is left out."""
    return {row["job_id"]: row["status"] for row in await session.fetch(EXPLAIN_CLAIMS, list(job_ids))}


async def queue_heads(session: Session, queues: Collection[str], *, now: datetime | None = None) -> dict[str, float]:
    """For how many seconds the first in line of each queue could have run already."""
    return {row["queue"]: row["waits_s"] for row in await session.fetch(QUEUE_HEADS, list(queues), now)}


async def outbox_depth(session: Session, *, most: int = MOST, now: datetime | None = None) -> OutboxDepth:
    (row,) = await session.fetch(OUTBOX_DEPTH, most, now)
    return OutboxDepth(**dict(row))
