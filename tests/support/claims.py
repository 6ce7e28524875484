"""Claims without a message, for tests that want a job in somebody's hands whatever the mode of its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.lifecycle.claim import NO_TTLS
from jobd.lifecycle.modes import ensure_queues
from jobd.lifecycle.take import Want, take

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from jobd.engine.engine import Engine
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.session import Session


async def take_any(engine: Engine, queue: str, most: int, owner_id: str = "test") -> list[ClaimedJob]:
    await ensure_queues(engine.database, [queue])
    return await engine.take([Want(queue, [owner_id] * most)], any_mode=True)


async def take_first(
    session: Session,
    queues: Sequence[str],
    *,
    owner_id: str,
    most: int,
    ttl_s: float,
    task_ttls: Mapping[str, float] = NO_TTLS,
    now: datetime | None = None,
) -> list[ClaimedJob]:
    """The first due jobs of each queue, at most `most` of each, for one owner."""
    await ensure_queues(session, queues)
    wants = [Want(queue, [owner_id] * most) for queue in queues]
    return await take(session, wants, ttl_s=ttl_s, task_ttls=task_ttls, any_mode=True, now=now)
