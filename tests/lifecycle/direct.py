"""Queues in mode `direct`, and takes from them: by each verb that takes, where nothing else is asked of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.lifecycle.complete import complete_and_take
from jobd.lifecycle.enqueue_insert import insert
from jobd.lifecycle.modes import QueueMode, change_mode, queue_modes
from jobd.lifecycle.take import TakeTerms, Want, take
from jobd.lifecycle.take_fitting import Fitting, take_fitting
from jobd.lifecycle.take_resident import PutBehind, take_resident
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.modes import Mode
    from jobd.store.postgres import Database
    from jobd.store.session import Session

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def take_with_complete(session: Session, wants: Sequence[Want], **terms: Any) -> list[ClaimedJob]:
    answers, taken = await complete_and_take(session, [], wants, **terms)
    assert answers == []
    return taken


async def take_with_enqueue(
    session: Session, wants: Sequence[Want], *, now: datetime | None = None, **terms: Any
) -> list[ClaimedJob]:
    """By the statement itself: the verb knows that it is about nothing else, and calls `take`."""
    inserted = await insert(session, [], None, TakeTerms(wants, **terms), now)
    assert inserted.accepted == []
    return inserted.claimed


async def take_what_fits(
    session: Session, wants: Sequence[Want], *, now: datetime | None = None, **terms: Any
) -> list[ClaimedJob]:
    """With a task that needs memory, of which there is no job."""
    taken = await take_fitting(session, TakeTerms(wants, **terms), Fitting(["large"], []), now=now)
    assert taken.short_task is None
    return taken.jobs


async def take_with_models(
    session: Session, wants: Sequence[Want], *, now: datetime | None = None, **terms: Any
) -> list[ClaimedJob]:
    """With models that are not loaded, of which there is no job."""
    return await take_resident(session, TakeTerms(wants, **terms), PutBehind(["other"], 30.0), now=now)


#: Verbs that take, and nothing else to do.
TAKERS: dict[str, Callable[..., Awaitable[list[ClaimedJob]]]] = {
    "take": take,
    "complete_and_take": take_with_complete,
    "enqueue_and_take": take_with_enqueue,
    "take_fitting": take_what_fits,
    "take_resident": take_with_models,
}


async def set_mode(db: Database, mode: Mode, *queues: str) -> None:
    modes = await queue_modes(db)
    for queue in queues or ["default"]:
        assert await change_mode(db, queue, mode, mode_no=modes.get(queue, QueueMode()).mode_no)


def want(most: int = 10, queue: str = "default") -> Want:
    return Want(queue, [f"{queue}-{n}" for n in range(1, most + 1)])


async def until_waiting(db: Database, count: int = 1) -> None:
    """Until this many statements wait for a lock."""

    async def waiting() -> bool:
        return bool(await db.fetchval(WAITING) == count)

    await wait_until_async(waiting, f"no {count} statements wait for a lock")
