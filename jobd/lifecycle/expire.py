"""Expire: jobs that have not started by their `expires_at` are canceled, page by page, with the error code `expired`.

Only the first start counts: a job that was started in time and waits for another attempt does not expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.statements import statement

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.lifecycle.tally import Tally
    from jobd.store.session import Session

EXPIRE_JOBS = statement("expire_jobs")


async def expire(
    session: Session, *, most: int = 500, tally: Tally | None = None, now: datetime | None = None
) -> list[UUID]:
    """Cancel one page of expired jobs; those canceled."""
    rows = await session.fetch(EXPIRE_JOBS, most, now)
    if tally is not None:
        tally.canceled((row["queue"], row["task"]) for row in rows)
    return [row["job_id"] for row in rows]
