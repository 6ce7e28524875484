"""Read back: what came of a call whose answer was lost with the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.lifecycle.claim import Ask, ClaimedJob, ClaimRow
from jobd.store.postgres import fetch
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.store.postgres import Connection

READ_BACK_CLAIMS = statement("read_back_claims")
READ_BACK_JOBS = statement("read_back_jobs")


async def claims_that_stand(connection: Connection, asks: Sequence[Ask]) -> dict[UUID, ClaimedJob]:
    """The claims that these owners hold; an owner id never recurs, so what stands there is its own."""
    rows = await fetch(connection, READ_BACK_CLAIMS, [ask.job_id for ask in asks], [ask.owner_id for ask in asks])
    return {row["job_id"]: ClaimedJob(**{name: row[name] for name in ClaimRow.__struct_fields__}) for row in rows}


async def jobs_that_stand(connection: Connection, job_ids: Sequence[UUID]) -> set[UUID]:
    return {row["id"] for row in await fetch(connection, READ_BACK_JOBS, list(job_ids))}
