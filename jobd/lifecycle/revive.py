"""Revive: members of a group that were canceled because a member before them failed run again with it, in their order.

A final job never changes, so each runs as a new member, which waits for the new jobs of those that it waited for. One
that also waited for something else that failed, and does not run again, stays as it is until that is run again, too. A
callback that was canceled because members failed gets another one in its place, which waits for the group; one that
has run does not run again. All of it is part of the transaction that runs the failed members again.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from jobd.job.status import FINAL_STATUSES, JobStatus
from jobd.lifecycle.depend import LOCK_GROUPS, Dependency, NewLinks, hold_inserted
from jobd.store.ids import new_id
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    import asyncpg

    from jobd.store.session import Session

LOCK_SETTLED = statement("lock_settled")
POINT_AGAIN = statement("point_again")
TAKE_BACK_FINISH = statement("take_back_finish")
FIND_GIVEN_UP = statement("find_given_up")
FIND_GIVEN_UP_CALLBACK = statement("find_given_up_callback")
REVIVE_JOBS = statement("revive_jobs")
SET_CALLBACK = statement("set_callback")


async def hold_ends(session: Session, group_id: UUID, job_ids: Iterable[UUID]) -> None:
    """To be called first: until the commit nobody hears that these members have failed, or that the group finished."""
    await session.fetch(LOCK_SETTLED, [group_id, *job_ids])


async def revive(
    session: Session, group_id: UUID, redriven: Mapping[UUID, UUID], *, now: datetime | None = None
) -> list[asyncpg.Record]:
    """Run again what was given up because of these members; queue and task of each new job. `redriven`: their jobs."""
    again = sorted(redriven)
    if not again:
        return []
    await session.fetch(LOCK_GROUPS, [group_id])  # one at a time, so that each runs again once
    await session.execute(TAKE_BACK_FINISH, group_id)
    await session.execute(POINT_AGAIN, again, [redriven[job_id] for job_id in again], group_id)
    rows: list[asyncpg.Record] = []
    while again:
        found = _revivable(await session.fetch(FIND_GIVEN_UP, again, group_id))
        if found:
            rows += await session.fetch(REVIVE_JOBS, list(found), [new_id() for _ in found], group_id, now)
            new_ids = {row["job_id"]: row["new_id"] for row in rows}
            await hold_inserted(
                session, [NewLinks(new_ids[job_id], group_id, tuple(edges)) for job_id, edges in found.items()]
            )
        again = sorted(found)
    return rows + await _revive_callback(session, group_id, now)


def _revivable(rows: Sequence[asyncpg.Record]) -> dict[UUID, list[Dependency]]:
    """Those of which nothing is left that has failed or is gone and does not run again, and what they wait for."""
    edges: dict[UUID, list[Dependency]] = defaultdict(list)
    lost: set[UUID] = set()
    for row in rows:
        status, again_id = row["status"], row["again_id"]
        has_failed = status in FINAL_STATUSES and status != JobStatus.DONE and not row["on_any"]
        if again_id is None and (status is None or has_failed):
            lost.add(row["job_id"])
        name = row["ref"] or str(row["on_id"])  # the input keeps its name
        edge = Dependency(on_id=again_id or row["on_id"], is_group=row["is_group"], on_any=row["on_any"], ref=name)
        edges[row["job_id"]].append(edge)
    return {job_id: found for job_id, found in edges.items() if job_id not in lost}


async def _revive_callback(session: Session, group_id: UUID, now: datetime | None) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = []
    for callback in await session.fetch(FIND_GIVEN_UP_CALLBACK, group_id):
        callback_id = new_id()
        rows += await session.fetch(REVIVE_JOBS, [callback["id"]], [callback_id], None, now)
        edge = Dependency(on_id=group_id, is_group=True, ref=callback["ref"])
        await hold_inserted(session, [NewLinks(callback_id, None, (edge,))])
        await session.execute(SET_CALLBACK, group_id, callback_id)
    return rows
