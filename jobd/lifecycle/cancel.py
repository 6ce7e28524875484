"""Cancel: at once for a queued job, by way of its holder for a running one, never for a final one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import asyncpg

from jobd.job.model import AlreadyFinal, Canceled, CancelRequested
from jobd.job.status import FINAL_STATUSES, JobStatus
from jobd.lifecycle.claim import EXPLAIN_CLAIMS, Unknown
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from jobd.lifecycle.tally import Tally
    from jobd.store.postgres import Database
    from jobd.store.session import BeforeCommit

CANCEL_JOBS = statement("cancel_jobs")

#: Tries of a cancel that meets a claim, a requeue or another cancel of the same job each time; then it is refused.
TRIES = 20

CancelAnswer = Canceled | CancelRequested | AlreadyFinal | Unknown


async def cancel(
    database: Database,
    job_ids: Sequence[UUID],
    *,
    before_commit: BeforeCommit | None = None,
    tally: Tally | None = None,
    now: datetime | None = None,
) -> list[CancelAnswer]:
    """Cancel jobs; the answers are in their order."""
    ordered = sorted(set(job_ids))
    rows = await _cancel(database, ordered, before_commit, now)
    if tally is not None:
        tally.canceled((row["queue"], row["task"]) for row in rows if row["status"] == "canceled")
    answers: dict[UUID, CancelAnswer] = {
        row["job_id"]: Canceled(None) if row["status"] == "canceled" else CancelRequested() for row in rows
    }
    rest = [job_id for job_id in ordered if job_id not in answers]
    if rest:
        for row in await database.fetch(EXPLAIN_CLAIMS, rest):
            status = JobStatus(row["status"])
            answers[row["job_id"]] = AlreadyFinal(status) if status in FINAL_STATUSES else CancelRequested()
    return [answers.get(job_id, Unknown()) for job_id in job_ids]


class _Moved(Exception):
    """Another transaction moved one of the jobs meanwhile."""


async def _cancel(
    database: Database, job_ids: Sequence[UUID], before_commit: BeforeCommit | None, now: datetime | None
) -> list[asyncpg.Record]:
    async with database.connection() as connection:
        for _ in range(TRIES):
            with contextlib.suppress(_Moved, asyncpg.DeadlockDetectedError):
                async with connection.transaction():
                    rows = await connection.fetch(CANCEL_JOBS, job_ids, now)
                    if any(row["event_n"] is None for row in rows):
                        raise _Moved
                    if before_commit is not None:
                        await before_commit(connection, len(rows))
                return rows
        raise asyncpg.SerializationError(f"jobs moved {TRIES} times while they were being canceled")
