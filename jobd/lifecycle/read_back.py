"""Read back: whether jobs are there whose enqueue got no answer; `claim` does the same for claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.store.session import Session

READ_BACK_JOBS = statement("read_back_jobs")


async def jobs_that_stand(session: Session, job_ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await session.fetch(READ_BACK_JOBS, list(job_ids))}
