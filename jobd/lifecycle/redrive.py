"""Redrive: a dead letter runs again as a new job that is linked to the old; a final job never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.lifecycle.enqueue import QueueFull
from jobd.store.ids import new_ids
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from jobd.store.postgres import Database
    from jobd.store.session import Session

LOCK_FRESH_LETTERS = statement("lock_fresh_letters")
REDRIVE_JOBS = statement("redrive_jobs")


async def redrive(
    session: Session,
    job_ids: Sequence[UUID],
    *,
    max_queued: int | None = None,
    now: datetime | None = None,
) -> dict[UUID, UUID] | QueueFull:
    """Run dead letters again: the new job of each; an id that is missing is no dead letter. All of them or none."""
    ordered = sorted(set(job_ids))
    rows = await session.fetch(REDRIVE_JOBS, ordered, new_ids(len(ordered)), max_queued, now)
    for row in rows:
        if row["full_queue"] is not None:
            return QueueFull(row["full_queue"])
    return {row["job_id"]: row["new_id"] for row in rows}


async def redrive_once(
    database: Database, job_ids: Sequence[UUID], *, max_queued: int | None = None, now: datetime | None = None
) -> dict[UUID, UUID] | QueueFull:
    """As `redrive`, but only letters that do not run again yet: asked for twice, also at once, each runs once."""
    async with database.transaction() as session:
        rows = await session.fetch(LOCK_FRESH_LETTERS, sorted(set(job_ids)))
        return await redrive(session, [row["job_id"] for row in rows], max_queued=max_queued, now=now)
