"""Why jobs wait and where in line they stand, what waits at the head, and what waits to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.fail import fail
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import pause_queue
from jobd.lifecycle.redrive import redrive_once
from jobd.lifecycle.waiting import explain_waiting, outbox_depth, queue_heads, statuses_of
from jobd.store.ids import new_id
from tests.support.factories import NOW, POLICY, at, failure, make_job, make_many, make_queued, make_running

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database


async def position(db: Database, job_id: UUID, most: int = 10_000) -> int | None:
    return (await explain_waiting(db, [job_id], most=most))[job_id].position


async def test_position_counts_those_of_the_queue_that_go_before(db: Database) -> None:
    first, second = await make_queued(db), await make_queued(db, at(1))
    urgent = await make_queued(db, at(2), priority=1)
    await make_queued(db, queue="other")
    await make_queued(db, delay_s=10.0)
    await make_job(db, JobStatus.RUNNING)

    assert [await position(db, job_id) for job_id in (urgent, first, second)] == [0, 1, 2]


async def test_position_moves_up_when_another_leaves(db: Database) -> None:
    await make_running(db)
    job_id = await make_queued(db)

    assert await position(db, job_id) == 0


@pytest.mark.parametrize(("most", "found"), [(3, None), (4, 3)])
async def test_position_is_not_told_beyond_the_limit(db: Database, most: int, found: int | None) -> None:
    jobs = await make_many(db, 4)

    assert await position(db, jobs[3], most) == found


async def test_a_delayed_job_is_not_in_line_until_its_time_has_come(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10.0)

    before = (await explain_waiting(db, [job_id]))[job_id]
    await promote_due(db, now=at(10))
    after = (await explain_waiting(db, [job_id]))[job_id]

    assert (before.in_line, before.position, before.attempt_count) == (False, None, 0)
    assert (after.in_line, after.position) == (True, 0)


async def test_jobs_of_several_queues_have_their_places_in_one_look(db: Database) -> None:
    here, there = await make_many(db, 5), await make_many(db, 3, queue="other")

    waits = await explain_waiting(db, [here[4], here[0], there[2]], most=4)

    assert [waits[job_id].position for job_id in (here[4], here[0], there[2])] == [None, 0, 2]
    assert [waits[job_id].queue for job_id in (here[0], there[2])] == ["default", "other"]


async def test_a_job_that_is_not_in_line_tells_when_it_is_due(db: Database) -> None:
    in_line, delayed, held = await make_queued(db), await make_queued(db, delay_s=10.0), await make_queued(db)
    await db.execute("UPDATE jobs SET order_at = NULL, due_at = 'infinity', held = 'depends' WHERE id = $1", held)

    waits = await explain_waiting(db, [in_line, delayed, held], now=at(3))

    assert [waits[job_id].due_s for job_id in (in_line, delayed, held)] == [None, 7, None]


async def test_a_failed_job_waits_with_its_attempts(db: Database) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed)], policy=POLICY, jitter=1.0, now=NOW)

    wait = (await explain_waiting(db, [claimed.job_id]))[claimed.job_id]

    assert (wait.in_line, wait.attempt_count) == (False, 1)


async def test_a_paused_queue_is_told(db: Database) -> None:
    held, free = await make_queued(db, queue="held"), await make_queued(db)
    await pause_queue(db, "held", paused=True)

    waits = await explain_waiting(db, [held, free])

    assert (waits[held].paused, waits[free].paused) == ("queue", None)


@pytest.mark.parametrize("status", sorted(set(JobStatus) - {JobStatus.QUEUED}))
async def test_a_job_that_is_not_queued_does_not_wait(db: Database, status: JobStatus) -> None:
    job_id = await make_job(db, status)

    assert await explain_waiting(db, [job_id, new_id()]) == {}
    assert await statuses_of(db, [job_id, new_id()]) == {job_id: status.value}


async def test_the_head_of_each_queue_tells_how_long_it_waits(db: Database) -> None:
    await make_queued(db, at(0))
    await make_queued(db, at(5))
    await make_queued(db, at(7), queue="other")
    await make_queued(db, queue="late", delay_s=10.0)

    assert await queue_heads(db, ["default", "other", "late", "none"], now=at(10)) == {"default": 10, "other": 3}


async def test_the_outbox_is_counted_up_to_a_limit(db: Database) -> None:
    nothing = await outbox_depth(db, now=at(0))
    for second in range(3):
        await make_queued(db, at(second))

    assert (nothing.depth, nothing.age_s) == (0, None)
    assert (await outbox_depth(db, now=at(10))).age_s == 10
    assert [(await outbox_depth(db, most=most)).depth for most in (2, 3, 4)] == [2, 3, 3]


async def test_a_letter_is_redriven_once(db: Database) -> None:
    letters = [await make_job(db, JobStatus.ERROR) for _ in range(2)]
    other = await make_job(db, JobStatus.DONE)

    first = await redrive_once(db, [letters[0], other])
    second = await redrive_once(db, letters)

    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert (list(first), list(second)) == ([letters[0]], [letters[1]])
