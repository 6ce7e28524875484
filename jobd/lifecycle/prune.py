"""Prune: finished jobs past their retention go, in small batches; their ids are remembered as gone for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.store.statements import statement

if TYPE_CHECKING:
    from datetime import datetime

    from jobd.store.postgres import Connection

PRUNE_JOBS = statement("prune_jobs")
PRUNE_MEMORIES = statement("prune_memories")


async def prune(connection: Connection, *, keep_s: float, most: int = 500, now: datetime | None = None) -> int:
    """Delete one batch of jobs that finished more than `keep_s` ago; how many."""
    pruned: int = await connection.fetchval(PRUNE_JOBS, keep_s, most, now)
    return pruned


async def prune_memories(
    connection: Connection, *, keep_gone_s: float, most: int = 1000, now: datetime | None = None
) -> int:
    """Forget one batch each of gone ids and of expired idempotency keys; how many."""
    forgotten: int = await connection.fetchval(PRUNE_MEMORIES, keep_gone_s, most, now)
    return forgotten
