"""Pause: no job of a task, or none at all, is started until it is resumed; what runs goes on.

A queue is paused by its own row (`read.pause_queue`). Jobs of a paused task are put out of the line, so that those who
take jobs need not search among them; all in batches, some by the one who pauses, the rest by every node now and then
(`tend_pauses`). A resume that was cut off is finished in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from datetime import datetime

    from jobd.store.session import Session

SET_PAUSE = statement("set_pause")
DROP_PAUSE = statement("drop_pause")
READ_PAUSES = statement("read_pauses")
SET_ASIDE = statement("set_aside")
PUT_BACK = statement("put_back")

#: Jobs that one commit puts out of the line of a queue, or back.
BATCH = 1000
#: Batches in one go.
BATCHES = 50


class PauseEntry(msgspec.Struct, frozen=True):
    kind: Literal["task", "all"]
    #: Of the task; empty: everything is meant.
    name: str
    #: False: it is being resumed.
    paused: bool


async def pause_task(session: Session, task: str, *, paused: bool, now: datetime | None = None) -> set[str]:
    """Pause or resume a task; the queues in which jobs are in line again."""
    await session.execute(SET_PAUSE, "task", task, paused, now)
    return await tend_pauses(session)


async def pause_all(session: Session, *, paused: bool, now: datetime | None = None) -> None:
    await session.execute(SET_PAUSE, "all", "", paused, now)
    await session.execute(DROP_PAUSE, "all", "")


async def pauses(session: Session) -> list[PauseEntry]:
    return [PauseEntry(**dict(row)) for row in await session.fetch(READ_PAUSES)]


async def tend_pauses(session: Session) -> set[str]:
    """Carry pauses and resumes of tasks on; the queues in which jobs are in line again."""
    tasks = [pause for pause in await pauses(session) if pause.kind == "task"]
    if any(pause.paused for pause in tasks):
        await _set_aside(session)
    queues: set[str] = set()
    for pause in tasks:
        if not pause.paused:
            queues |= await _put_back(session, pause.name)
    return queues


async def _set_aside(session: Session) -> None:
    for _ in range(BATCHES):
        if not cast("int", await session.fetchval(SET_ASIDE, BATCH)):
            return


async def _put_back(session: Session, task: str) -> set[str]:
    queues: set[str] = set()
    for _ in range(BATCHES):
        rows = await session.fetch(PUT_BACK, task, BATCH)
        queues |= {row["queue"] for row in rows}
        if len(rows) < BATCH:
            await session.execute(DROP_PAUSE, "task", task)
            break
    return queues
