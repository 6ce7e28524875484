"""Waiting: why jobs are still in the queue and how many go before them, and how far the outbox is behind.

Nothing is counted beyond `MOST`, so that asking costs the same however long the line is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.lifecycle.claim import EXPLAIN_CLAIMS
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from jobd.store.session import Session

EXPLAIN_WAITING = statement("explain_waiting")
QUEUE_HEADS = statement("queue_heads")
OUTBOX_DEPTH = statement("outbox_depth")

#: Rows that are counted at most, so that an answer costs the same however long the queue or the outbox is.
MOST = 10_000


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    attempt_count: int
    #: Whether it is due and has its place in the queue.
    in_line: bool
    paused: bool
    #: Jobs before it; None when it is not in line or there are too many to count.
    position: int | None


class OutboxDepth(msgspec.Struct, frozen=True, kw_only=True):
    #: Commits that are not in Redis yet, counted up to `MOST`.
    depth: int
    #: Age of the oldest; None when there is none.
    age_s: float | None


async def explain_waiting(session: Session, job_ids: Collection[UUID], *, most: int = MOST) -> dict[UUID, Wait]:
    """Why each of the jobs waits; one that does not is left out."""
    rows = await session.fetch(EXPLAIN_WAITING, list(job_ids), most)
    return {
        row["job_id"]: Wait(
            job_id=row["job_id"],
            attempt_count=row["attempt_count"],
            in_line=row["in_line"],
            paused=row["paused"],
            position=row["ahead"] if row["in_line"] and row["ahead"] < most else None,
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
