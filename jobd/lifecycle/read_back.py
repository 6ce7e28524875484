"""Read back: whether jobs are there whose enqueue got no answer; `claim` does the same for claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.postgres import fetch
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.store.postgres import Connection

READ_BACK_JOBS = statement("read_back_jobs")


async def jobs_that_stand(connection: Connection, job_ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await fetch(connection, READ_BACK_JOBS, list(job_ids))}
