"""Publish: what shall run next, in which order, and when the delayed ones join."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import anyio

from jobd.job.status import JobStatus
from jobd.lifecycle.fail import fail
from jobd.lifecycle.publish import Offer, look_ahead, promote_due, select_for_publish
from jobd.lifecycle.read import pause_queue
from tests.support.factories import (
    NOW,
    POLICY,
    all_rows,
    at,
    failure,
    make_job,
    make_many,
    make_queued,
    make_running,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.store.postgres import Database


async def offered(db: Database, *queues: str, most: int = 10) -> list[UUID]:
    return [offer.job_id for offer in await select_for_publish(db, queues or ["default"], most=most)]


# Select


async def test_an_offer_has_all_that_a_message_needs(db: Database) -> None:
    job_id = await make_queued(db, queue="gpu", task="chat", payload='{"a": 1}')

    (offer,) = await select_for_publish(db, ["gpu"], most=5)

    assert offer == Offer(
        job_id=job_id,
        queue="gpu",
        task="chat",
        payload='{"a": 1}',
        enqueue_id=1,
        version=1,
        ttl_s=3600,
        created_ts=int(NOW.timestamp() * 1000),
        is_fresh=True,
    )


async def test_selecting_changes_nothing(db: Database) -> None:
    await make_many(db, 3)
    before = await all_rows(db)

    assert await offered(db) == await offered(db)
    assert await all_rows(db) == before


async def test_the_longest_waiting_comes_first(db: Database) -> None:
    ids = [await make_queued(db, at(seconds)) for seconds in (3, 1, 2)]

    assert await offered(db) == [ids[1], ids[2], ids[0]]


async def test_a_point_of_priority_is_worth_a_minute_of_waiting(db: Database) -> None:
    priorities = {-1: -200, 0: -119, 1: -61, 2: 0, 3: 61}
    ids = {priority: await make_queued(db, at(seconds), priority=priority) for priority, seconds in priorities.items()}

    # Places: 60-200 = -140, -119, -121, -120, -119, and the younger id loses a tie.
    assert await offered(db) == [ids[-1], ids[1], ids[2], ids[0], ids[3]]


async def test_a_late_urgent_job_overtakes_and_an_old_one_is_not_starved(db: Database) -> None:
    old = await make_queued(db)
    urgent = await make_queued(db, at(299), priority=5)
    later = await make_queued(db, at(301), priority=5)

    assert await offered(db) == [urgent, old, later]


async def test_the_ends_of_the_priority_scale_have_a_place(db: Database) -> None:
    lowest, highest = await make_queued(db, priority=-(2**31)), await make_queued(db, priority=2**31 - 1)
    middle = await make_queued(db)

    assert await offered(db) == [highest, middle, lowest]


async def test_each_queue_has_its_own_first_jobs(db: Database) -> None:
    a, b = await make_many(db, 3, queue="a"), await make_many(db, 3, queue="b")
    await make_queued(db, queue="c")

    assert await offered(db, "b", "a", most=2) == [*b[:2], *a[:2]]


async def test_jobs_that_are_known_are_passed_over(db: Database) -> None:
    ids = await make_many(db, 4)

    offers = await select_for_publish(db, ["default"], most=2, known=[ids[0], ids[2]])

    assert [offer.job_id for offer in offers] == [ids[1], ids[3]]


async def test_a_paused_queue_offers_nothing_until_it_is_resumed(db: Database) -> None:
    a, b = await make_queued(db, queue="a"), await make_queued(db, queue="b")
    await pause_queue(db, "a", paused=True)

    assert await offered(db, "a", "b") == [b]
    await pause_queue(db, "a", paused=False)
    assert await offered(db, "a", "b") == [a, b]


async def test_only_queued_and_due_jobs_are_offered(db: Database) -> None:
    for status in JobStatus:
        await make_job(db, status)
    await make_queued(db, delay_s=5)

    (job_id,) = await offered(db)

    assert (await read(db, job_id)).status == "queued"


# Promote


async def test_a_job_is_promoted_at_its_time_and_not_before(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10)

    assert await promote_due(db, now=at(10) - timedelta(microseconds=1)) == []
    assert await offered(db) == []
    assert await promote_due(db, now=at(10)) == [job_id]
    assert await offered(db) == [job_id]
    assert await promote_due(db, now=at(10)) == []


async def test_a_promoted_job_has_the_place_of_its_time_and_priority(db: Database) -> None:
    delayed = await make_queued(db, delay_s=60, priority=1)
    before, after = await make_queued(db, at(-1)), await make_queued(db, at(1))

    await promote_due(db, now=at(60))

    assert await offered(db) == [before, delayed, after]


async def test_promoting_is_no_change_of_the_job(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10)
    before = await read(db, job_id)

    await promote_due(db, now=at(10))

    assert await read(db, job_id) == before


async def test_the_longest_due_are_promoted_first_and_no_more_than_asked_for(db: Database) -> None:
    ids = [await make_queued(db, delay_s=delay_s) for delay_s in (3, 1, 2)]

    assert await promote_due(db, most=2, now=at(10)) == [ids[1], ids[2]]
    assert await promote_due(db, most=2, now=at(10)) == [ids[0]]


async def test_promoters_at_once_skip_what_the_other_is_promoting(db: Database) -> None:
    first, second = await make_queued(db, delay_s=1), await make_queued(db, delay_s=2)
    async with db.pool.acquire() as other, other.transaction():
        assert await promote_due(other, most=1, now=at(10)) == [first]

        with anyio.fail_after(20):
            assert await promote_due(db, now=at(10)) == [second]


# Looking ahead


async def test_what_nobody_has_been_told_yet_is_seen_ahead(db: Database) -> None:
    before = await look_ahead(db)
    await make_queued(db)
    during = await look_ahead(db)
    await db.pool.execute("DELETE FROM outbox")

    assert [before.has_news, during.has_news, (await look_ahead(db)).has_news] == [False, True, False]


async def test_a_job_to_be_offered_is_seen_ahead_once_it_may_be(db: Database) -> None:
    ids = [await make_queued(db, queue="a"), await make_queued(db, queue="a")]
    await make_queued(db, queue="b")
    await make_queued(db, queue="c", delay_s=5)

    async def has_unoffered(*queues: str, known: Sequence[UUID] = ()) -> bool:
        return (await look_ahead(db, queues, known=known)).has_unoffered

    assert await has_unoffered("a", known=ids[:1])
    assert not await has_unoffered("a", known=ids)
    assert not await has_unoffered()  # none has room
    assert not await has_unoffered("c")
    await promote_due(db, now=at(10))
    assert await has_unoffered("c")


async def test_pauses_are_seen_ahead(db: Database) -> None:
    await make_queued(db, queue="a")
    await pause_queue(db, "a", paused=True)
    paused = await look_ahead(db, ["a"])
    await pause_queue(db, "a", paused=False)
    resumed = await look_ahead(db, ["a"])

    assert (paused.paused, paused.has_unoffered) == (["a"], False)
    assert (resumed.paused, resumed.has_unoffered) == ([], True)


async def test_the_next_due_job_is_known_in_seconds(db: Database) -> None:
    assert (await look_ahead(db, now=NOW)).due_in_s is None
    await make_many(db, 2)
    assert (await look_ahead(db, now=NOW)).due_in_s is None
    await make_queued(db, delay_s=90)
    await make_queued(db, delay_s=30)

    assert (await look_ahead(db, now=NOW)).due_in_s == 30.0
    assert (await look_ahead(db, now=at(31))).due_in_s == -1.0
    await promote_due(db, now=at(31))
    assert (await look_ahead(db, now=at(31))).due_in_s == 59.0


async def test_a_retry_is_due_after_its_backoff(db: Database) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed)], policy=POLICY, jitter=1.0, now=NOW)

    assert (await look_ahead(db, now=NOW)).due_in_s == 8.0
