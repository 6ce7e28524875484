"""Modes of queues: changed by compare-and-swap, counted, and left alone by all else that is set for a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.lifecycle.modes import QueueMode, change_mode, ensure_queues, queue_modes
from jobd.lifecycle.read import note_raw_workers, pause_queue
from tests.support.factories import NOW

if TYPE_CHECKING:
    from jobd.store.postgres import Database


async def test_a_queue_is_in_stream_mode_at_first(db: Database) -> None:
    await ensure_queues(db, ["b", "a", "b"])
    await ensure_queues(db, ["a", "c"])
    await ensure_queues(db, [])

    assert await queue_modes(db) == dict.fromkeys("abc", QueueMode("stream", 1, False))
    assert QueueMode() == QueueMode("stream", 1, False)


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_change_of_the_mode_counts_up(db: Database, is_known: bool) -> None:
    await ensure_queues(db, ["q"] if is_known else [])

    assert await change_mode(db, "q", "direct", mode_no=1)
    assert await queue_modes(db) == {"q": QueueMode("direct", 2, False)}
    assert await change_mode(db, "q", "stream", mode_no=2)
    assert await queue_modes(db) == {"q": QueueMode("stream", 3, False)}


@pytest.mark.parametrize("known_no", [1, 3])
async def test_a_change_of_another_mode_than_the_present_one_is_refused(db: Database, known_no: int) -> None:
    await change_mode(db, "q", "direct", mode_no=1)

    assert not await change_mode(db, "q", "stream", mode_no=known_no)

    assert await queue_modes(db) == {"q": QueueMode("direct", 2, False)}


async def test_of_many_changes_at_once_one_is_made(db: Database) -> None:
    answers: list[bool] = []

    async def change() -> None:
        answers.append(await change_mode(db, "q", "direct", mode_no=1))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(change)

    assert sorted(answers) == [False] * 9 + [True]
    assert await queue_modes(db) == {"q": QueueMode("direct", 2, False)}


async def test_pauses_and_raw_workers_leave_the_mode_alone_and_are_left_alone_by_it(db: Database) -> None:
    await pause_queue(db, "q", paused=True)
    await change_mode(db, "q", "direct", mode_no=1)
    await note_raw_workers(db, ["q"], now=NOW)
    await ensure_queues(db, ["q"])

    assert await queue_modes(db) == {"q": QueueMode("direct", 2, True)}
    assert await db.fetchval("SELECT raw_seen_at FROM queues") == NOW
