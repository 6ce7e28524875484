"""Modes: how jobs of a queue reach their workers: through messages in Redis (`stream`) or from the table (`direct`).

A change is a compare-and-swap on `mode_no` and waits for every take under way: after it, no job of the queue is taken
in the mode that ended. The relay decides on the mode, and when it may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobd.store.session import Session

ENSURE_QUEUES = statement("ensure_queues")
QUEUE_MODES = statement("queue_modes")
CHANGE_MODE = statement("change_mode")

Mode = Literal["stream", "direct"]


class QueueMode(msgspec.Struct, frozen=True):
    """The defaults are what holds for a queue that has no row."""

    mode: Mode = "stream"
    #: Grows with every change.
    mode_no: int = 1
    paused: bool = False


async def ensure_queues(session: Session, names: Iterable[str]) -> None:
    """Give each of these queues a row, in mode `stream`, if it has none: a queue without a row is not taken from."""
    await session.execute(ENSURE_QUEUES, sorted(set(names)))


async def queue_modes(session: Session) -> dict[str, QueueMode]:
    """All queues that have a row."""
    rows = await session.fetch(QUEUE_MODES)
    return {row["name"]: QueueMode(row["mode"], row["mode_no"], row["paused"]) for row in rows}


async def change_mode(session: Session, queue: str, mode: Mode, *, mode_no: int) -> bool:
    """Set the mode if the present one has this number; the new one has the next. It waits for takes under way."""
    return await session.fetchval(CHANGE_MODE, queue, mode, mode_no) is not None
