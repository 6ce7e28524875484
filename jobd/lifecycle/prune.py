"""Prune: finished jobs go, in small batches, when they are past their retention or somebody says so.

Their ids are remembered as gone for a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.store.clock import in_time
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from jobd.store.clock_eras import Past
    from jobd.store.postgres import Database
    from jobd.store.session import BeforeCommit, Session

PRUNE_JOBS = statement("prune_jobs")
DELETE_JOBS = statement("delete_jobs")
PRUNE_MEMORIES = statement("prune_memories")
READ_RESULT_REFS = statement("read_result_refs")
READ_INSTALLATION = statement("read_installation")


#: Advisory lock of who deletes files of pruned jobs: one node at a time, and none while a backup copies them.
LEADER_KEY = 0x6A616E69746F72  # "janitor" in ASCII


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int
    #: The files of their results; nothing names them any more.
    result_refs: list[str]


async def prune(
    session: Session,
    *,
    keep_s: float = 0.0,
    most: int = 500,
    past: Past | None = None,
    now: datetime | None = None,
) -> Pruned:
    """Delete one batch of jobs that finished in the past, or more than `keep_s` ago by the clock."""
    (row,) = await session.fetch(PRUNE_JOBS, keep_s, most, now, *in_time(past))
    return Pruned(**dict(row))


async def delete_jobs(
    database: Database, job_ids: Sequence[UUID], *, before_commit: BeforeCommit | None = None
) -> Pruned:
    """Delete those of the jobs that are final and that no ticket needs; the files of their results go afterwards."""
    async with database.connection() as connection, connection.transaction():
        (row,) = await connection.fetch(DELETE_JOBS, sorted(set(job_ids)), None)
        if before_commit is not None:
            await before_commit(connection, row["jobs"])
    return Pruned(**dict(row))


async def prune_memories(session: Session, *, keep_gone_s: float, most: int = 1000, now: datetime | None = None) -> int:
    """Forget one batch each of gone ids and of expired idempotency keys; how many."""
    (row,) = await session.fetch(PRUNE_MEMORIES, keep_gone_s, most, now)
    return int(row[0])


async def read_result_refs(session: Session, job_ids: Sequence[UUID]) -> set[str]:
    """The result files that the rows of these jobs name."""
    return {row["result_ref"] for row in await session.fetch(READ_RESULT_REFS, list(job_ids))}


async def read_installation(session: Session) -> str:
    """The id of this database, which the folder of result files remembers."""
    return str(await session.fetchval(READ_INSTALLATION))
