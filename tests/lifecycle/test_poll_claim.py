"""Claim without a message: the first due jobs of the queues, each for one poller."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import anyio

from jobd.job.model import NotClaimable, NotClaimableReason
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import ClaimedJob, claim, poll_claim
from jobd.lifecycle.fail import fail
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import note_raw_workers, pause_queue
from jobd.store.ids import new_id
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    ask,
    assert_counters_are_right,
    at,
    attempts_of,
    failure,
    make_many,
    make_queued,
    make_running,
    read,
    told_of,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database


async def poll(db: Database, *queues: str, most: int = 10, now: datetime = NOW) -> list[ClaimedJob]:
    return await poll_claim(db, queues or ["default"], owner_id="poller", most=most, ttl_s=TTL_S, now=now)


async def polled(db: Database, *queues: str, most: int = 10, now: datetime = NOW) -> list[UUID]:
    return [claimed.job_id for claimed in await poll(db, *queues, most=most, now=now)]


async def test_a_poll_starts_an_attempt_under_a_fresh_lease(db: Database) -> None:
    job_id = await make_queued(db, payload='{"a": 1}')

    (claimed,) = await poll(db, now=at(5))

    assert (claimed.job_id, claimed.payload, claimed.attempt_no, claimed.attempt_count) == (job_id, '{"a": 1}', 1, 1)
    assert (claimed.owner_id, claimed.stream, claimed.message_id) == ("poller", None, None)
    assert (claimed.enqueue_id, claimed.lease_expires_at) == (1, at(5 + TTL_S))
    job = await read(db, job_id)
    assert (job.status, job.lease_owner, job.started_at, job.version) == ("running", "poller", at(5), 2)
    (attempt,) = await attempts_of(db, job_id)
    assert (attempt.attempt_id, attempt.outcome) == (claimed.attempt_id, None)
    assert await told_of(db, job_id) == [("queued", 1), ("running", 2)]
    await assert_counters_are_right(db)


async def test_the_longest_waiting_comes_first_and_no_more_than_asked_for(db: Database) -> None:
    ids = [await make_queued(db, at(seconds)) for seconds in (3, 1, 2)]

    assert await polled(db, most=2, now=at(10)) == [ids[1], ids[2]]
    assert await polled(db, now=at(10)) == [ids[0]]
    assert await polled(db, now=at(10)) == []


async def test_jobs_of_the_same_instant_come_in_the_order_of_their_ids(db: Database) -> None:
    ids = await make_many(db, 10)

    assert await polled(db) == ids


async def test_a_point_of_priority_is_worth_a_minute_of_waiting(db: Database) -> None:
    waited, urgent, negative = (
        await make_queued(db, at(-119)),
        await make_queued(db, priority=2),
        await make_queued(db, at(-121), priority=-1),
    )

    assert await polled(db) == [urgent, waited, negative]


async def test_queues_come_in_the_order_of_their_names_given(db: Database) -> None:
    ids = {name: await make_many(db, 2, queue=name) for name in ("a", "b", "c")}

    assert await polled(db, "c", "a", most=3) == [*ids["c"], ids["a"][0]]
    assert await polled(db, "b", "a") == [*ids["b"], ids["a"][1]]
    await assert_counters_are_right(db)


async def test_a_paused_queue_is_passed_over_until_it_is_resumed(db: Database) -> None:
    paused, other = await make_queued(db, queue="a"), await make_queued(db, queue="b")
    await pause_queue(db, "a", paused=True)

    assert await polled(db, "a", "b") == [other]
    await pause_queue(db, "a", paused=False)
    assert await polled(db, "a", "b") == [paused]


async def test_a_delayed_job_is_not_claimed_before_its_time(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10)

    await promote_due(db, now=at(10) - timedelta(microseconds=1))
    assert await polled(db, now=at(10)) == []
    await promote_due(db, now=at(10))
    assert await polled(db, now=at(10)) == [job_id]


async def test_a_job_that_is_in_line_is_claimed_though_the_clock_went_back(db: Database) -> None:
    job_id = await make_queued(db)

    assert await polled(db, now=at(-3600)) == [job_id]


async def test_a_failed_job_comes_again_after_its_backoff(db: Database) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed)], policy=POLICY, jitter=1.0, now=NOW)

    assert await polled(db, now=at(7)) == []
    await promote_due(db, now=at(8))
    (again,) = await poll(db, now=at(8))
    assert (again.job_id, again.enqueue_id, again.attempt_no) == (claimed.job_id, 2, 2)


async def test_running_and_final_jobs_are_not_claimed(db: Database) -> None:
    await make_running(db)
    await cancel(db, [await make_queued(db)], now=NOW)

    assert await polled(db, now=at(1000)) == []


async def test_nothing_to_claim_writes_nothing(db: Database) -> None:
    assert await poll(db) == []
    assert await poll(db, "no such queue") == []
    assert await poll_claim(db, [], owner_id="w", most=5, ttl_s=TTL_S) == []
    assert await db.pool.fetchval("SELECT count(*) FROM outbox") == 0


async def test_what_another_is_just_taking_is_skipped_without_waiting(db: Database) -> None:
    first, second = await make_many(db, 2)
    async with db.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", first)

        with anyio.fail_after(20):
            assert await polled(db) == [second]

    assert await polled(db) == [first]


async def test_a_message_for_a_job_that_was_polled_claims_nothing(db: Database) -> None:
    job_id = await make_queued(db)
    await poll(db)

    assert await claim(db, [ask(job_id)], ttl_s=TTL_S, now=NOW) == [NotClaimable(NotClaimableReason.LEASED)]


async def test_of_many_pollers_each_job_goes_to_one(db: Database) -> None:
    ids = await make_many(db, 200)
    got: list[UUID] = []

    async def work() -> None:
        while claimed := await poll_claim(db, ["default"], owner_id=str(new_id()), most=7, ttl_s=TTL_S):
            got.extend(one.job_id for one in claimed)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(work)

    assert sorted(got) == ids
    await assert_counters_are_right(db)


async def test_queue_that_raw_workers_read_is_passed_over_for_one_lease_time(db: Database) -> None:
    """With Redis away, one of them may be at work on any job that was offered to it."""
    theirs, other = await make_queued(db), await make_queued(db, queue="fast")
    await note_raw_workers(db, ["default"], now=at(0))

    within = await polled(db, "default", "fast", now=at(TTL_S - 1))
    after = await polled(db, "default", "fast", now=at(TTL_S + 1))

    assert (within, after) == ([other], [theirs])


async def test_raw_workers_seen_by_a_clock_that_was_set_back_do_not_shut_their_queue(db: Database) -> None:
    job_id = await make_queued(db)
    await note_raw_workers(db, ["default"], now=at(3600))

    assert await polled(db, now=at(0)) == [job_id]


async def test_noting_raw_workers_leaves_a_pause_alone(db: Database) -> None:
    await make_queued(db)
    await pause_queue(db, "default", paused=True)

    await note_raw_workers(db, ["default"], now=at(-3600))

    assert await polled(db) == []
