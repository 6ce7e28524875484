"""Dead letters by error and task: counted in a bounded stretch, each group with its newest letter as the example."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from jobd.lifecycle.dead_letter_groups import MESSAGE_CHARS, group_dead_letters
from jobd.lifecycle.fail import fail
from jobd.lifecycle.redrive import redrive
from tests.support.factories import NOW, POLICY, failure, make_running

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database


async def bury(db: Database, code: str | None, task: str = "chat", message: str = "no answer") -> UUID:
    claimed = await make_running(db, task=task)
    error = {"code": code, "message": message} if code else {"message": message}
    await fail(db.pool, [failure(claimed, retryable=False, error=json.dumps(error))], policy=POLICY, now=NOW)
    return claimed.job_id


async def test_letters_are_grouped_by_code_and_task_with_the_newest_as_example(db: Database) -> None:
    await bury(db, "timeout", message="first")
    last = await bury(db, "timeout", message="last")
    other = await bury(db, "timeout", task="embed")
    bare = await bury(db, None)

    found = await group_dead_letters(db)

    shown = [(group.code, group.task, group.number, group.example_id) for group in found.groups]
    assert shown == [("", "chat", 1, bare), ("timeout", "embed", 1, other), ("timeout", "chat", 2, last)]
    assert (found.groups[2].message, found.is_whole) == ("last", True)


async def test_letters_that_run_again_are_not_open(db: Database) -> None:
    again = await bury(db, "timeout")
    await bury(db, "timeout")
    await redrive(db, [again])

    (group,) = (await group_dead_letters(db)).groups

    assert (group.number, group.open) == (2, 1)


async def test_only_a_stretch_and_a_number_of_groups_are_looked_at(db: Database) -> None:
    for number in range(4):
        await bury(db, f"code-{number}")

    by_stretch = await group_dead_letters(db, stretch=3)
    by_groups = await group_dead_letters(db, most=3)
    whole = await group_dead_letters(db, stretch=5, most=4)

    assert [group.code for group in by_stretch.groups] == ["code-3", "code-2", "code-1"]
    assert [by_stretch.is_whole, by_groups.is_whole, whole.is_whole] == [False, False, True]


async def test_message_of_the_example_is_cut(db: Database) -> None:
    await bury(db, "long", message="é" * 4000)

    (group,) = (await group_dead_letters(db)).groups

    assert group.message == "é" * MESSAGE_CHARS
