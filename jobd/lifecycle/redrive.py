"""Redrive: a dead letter runs again as a new job that is linked to the old; a final job never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.lifecycle.enqueue import QueueFull
from jobd.lifecycle.revive import hold_ends, revive
from jobd.store.ids import new_ids
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    import asyncpg

    from jobd.lifecycle.tally import Tally
    from jobd.store.postgres import Database
    from jobd.store.session import BeforeCommit, Session

LOCK_FRESH_LETTERS = statement("lock_fresh_letters")
REDRIVE_JOBS = statement("redrive_jobs")


async def redrive(
    session: Session,
    job_ids: Sequence[UUID],
    *,
    max_queued: int | None = None,
    tally: Tally | None = None,
    now: datetime | None = None,
) -> dict[UUID, UUID] | QueueFull:
    """Run dead letters again: the new job of each; an id that is missing is no dead letter. All of them or none."""
    return _new_jobs(await _redrive(session, job_ids, max_queued, now), tally)


async def redrive_once(
    database: Database,
    job_ids: Sequence[UUID],
    *,
    max_queued: int | None = None,
    group_id: UUID | None = None,
    before_commit: BeforeCommit | None = None,
    tally: Tally | None = None,
    now: datetime | None = None,
) -> dict[UUID, UUID] | QueueFull:
    """As `redrive`, but only letters that do not run again yet: asked for twice, also at once, each runs once.

    With `group_id`, whose members they are, what was given up because they failed is revived.
    """
    revived: list[asyncpg.Record] = []
    async with database.transaction() as session:
        if group_id is not None:
            await hold_ends(session, group_id, job_ids)
        rows = await session.fetch(LOCK_FRESH_LETTERS, sorted(set(job_ids)))
        redriven = await _redrive(session, [row["job_id"] for row in rows], max_queued, now)
        if group_id is not None and not isinstance(redriven, QueueFull):
            new_ids = {row["job_id"]: row["new_id"] for row in redriven}
            revived = await revive(session, group_id, new_ids, now=now)
        if before_commit is not None and not isinstance(redriven, QueueFull):
            await before_commit(session, len(redriven))
    if tally is not None:
        tally.submitted((row["queue"], row["task"]) for row in revived)
    return _new_jobs(redriven, tally)


async def _redrive(
    session: Session, job_ids: Sequence[UUID], max_queued: int | None, now: datetime | None
) -> list[asyncpg.Record] | QueueFull:
    ordered = sorted(set(job_ids))
    rows = await session.fetch(REDRIVE_JOBS, ordered, new_ids(len(ordered)), max_queued, now)
    for row in rows:
        if row["full_queue"] is not None:
            return QueueFull(row["full_queue"])
    return rows


def _new_jobs(redriven: list[asyncpg.Record] | QueueFull, tally: Tally | None) -> dict[UUID, UUID] | QueueFull:
    """To be called after the commit."""
    if isinstance(redriven, QueueFull):
        return redriven
    if tally is not None:
        tally.submitted((row["queue"], row["task"]) for row in redriven)
    return {row["job_id"]: row["new_id"] for row in redriven}
