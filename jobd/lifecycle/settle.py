"""Settle: what follows from the ends of jobs for those that depend on them, and for their groups.

Ends come from the table `settled`, which has a row for each end that somebody waits for, written by the commit that
ended the job. A page of them and all that follows is one transaction: the counters of groups move, dependencies close,
and a job that waits for nothing more gets its place in the line. A job that waited for success in vain is canceled;
that is an end, too, and leaves a row for the next page, as does a group that is finished. So nothing is lost or done
twice, wherever the process is killed, and any number of nodes may do it at once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID  # noqa: TC003 - a NamedTuple reads its annotations when its hints are asked for

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    import asyncpg

    from jobd.store.session import Connection, Session

TAKE_SETTLED = statement("take_settled")
COUNT_SETTLED = statement("count_settled")
CLOSE_DEPENDENCIES = statement("close_dependencies")
LET_GO = statement("let_go")
DROP_SETTLED = statement("drop_settled")
KEEP_SETTLED = statement("keep_settled")
LOOK_FOR_LINKS = statement("look_for_links")

#: Ends that are worked off in one transaction.
PAGE = 500
#: Dependencies that are closed in one transaction: a job may have any number of dependents.
MOST_CLOSED = 2_000


class LinksAhead(msgspec.Struct, frozen=True):
    #: Ends are to be worked off.
    has_settled: bool
    #: Something is waited for, so that more may come.
    has_open: bool


class Freed(NamedTuple):
    """A job that waited for others."""

    job_id: UUID
    queue: str
    task: str
    #: queued: it may run now, or at its time; canceled: it never will.
    status: str
    #: It is due and has its place in the queue.
    in_line: bool
    #: It has a limit key, and has to be admitted first.
    is_limited: bool
    #: Strings of its payload may name inputs.
    has_places: bool


class SettledPage(msgspec.Struct, frozen=True):
    #: How many ends were worked off, at least in part.
    ends: int
    #: Jobs that wait no more.
    freed: list[Freed]

    @property
    def canceled(self) -> list[UUID]:
        return [job.job_id for job in self.freed if job.status == "canceled"]


async def look_for_links(session: Session) -> LinksAhead:
    (row,) = await session.fetch(LOOK_FOR_LINKS)
    return LinksAhead(**dict(row))


async def settle(
    connection: Connection,
    *,
    fill: Callable[[Session, Sequence[UUID]], Awaitable[dict[UUID, str]]] | None = None,
    page: int = PAGE,
    most_closed: int = MOST_CLOSED,
    now: datetime | None = None,
) -> SettledPage:
    """Work off one page of ends. `fill` puts inputs into payloads in the same transaction, or says why it cannot."""
    async with connection.transaction():
        ends = await connection.fetch(TAKE_SETTLED, page)
        if not ends:
            return SettledPage(0, [])
        await _count(connection, ends, now)
        ids = {row["id"]: row["status"] for row in ends}
        closed = await connection.fetch(
            CLOSE_DEPENDENCIES, list(ids), [status != "done" for status in ids.values()], most_closed
        )
        freed = await _let_go(connection, closed, ids, now)
        places = [job.job_id for job in freed if job.has_places]
        if places and fill is not None and (failures := await fill(connection, places)):
            given_up = await _moved(connection, dict.fromkeys(failures, 0), failures, now)
            freed = [job for job in freed if job.job_id not in failures] + given_up
        await connection.execute(
            KEEP_SETTLED if len(closed) >= most_closed else DROP_SETTLED, [row["seq"] for row in ends]
        )
    return SettledPage(len(ends), freed)


async def _count(session: Session, ends: Sequence[asyncpg.Record], now: datetime | None) -> None:
    counts = Counter((row["group_id"], row["status"]) for row in ends if row["group_id"] is not None)
    group_ids = sorted({group_id for group_id, _ in counts})
    if group_ids:
        numbers = [[counts[group_id, status] for group_id in group_ids] for status in ("done", "error", "canceled")]
        await session.fetch(COUNT_SETTLED, group_ids, *numbers, now)


async def _let_go(
    session: Session, closed: Sequence[asyncpg.Record], ends: dict[UUID, str], now: datetime | None
) -> list[Freed]:
    numbers = Counter(row["job_id"] for row in closed)
    failures = {row["job_id"]: _failure(row, ends[row["on_id"]]) for row in reversed(closed) if row["fails"]}
    return await _moved(session, numbers, failures, now)


async def _moved(
    session: Session, numbers: Mapping[UUID, int], failures: Mapping[UUID, str], now: datetime | None
) -> list[Freed]:
    """Tell jobs how many fewer they wait for, or that they can never run; those that wait no more."""
    job_ids = sorted(numbers)
    if not job_ids:
        return []
    rows = await session.fetch(
        LET_GO, job_ids, [numbers[job_id] for job_id in job_ids], [failures.get(job_id) for job_id in job_ids], now
    )
    return [
        Freed(
            row["job_id"],
            row["queue"],
            row["task"],
            row["status"],
            row["in_line"],
            row["is_limited"],
            row["has_places"],
        )
        for row in rows
        if not row["is_held"]
    ]


def _failure(row: asyncpg.Record, status: str) -> str:
    if row["is_group"]:
        return f"group {row['on_id']}, for which it waited, finished with members that failed or were canceled"
    return f"job {row['on_id']}, for which it waited, ended in {status}"
