"""Take in any mode, as while Redis is away: queues in mode `stream` are taken from too, but not from raw workers.

What holds for queues in mode `direct` as well is in test_take.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from jobd.lifecycle.read import note_raw_workers, pause_queue
from jobd.lifecycle.take import Want, take
from jobd.store.ids import new_id
from tests.support.claims import take_first
from tests.support.factories import (
    NOW,
    TTL_S,
    all_rows,
    assert_counters_are_right,
    at,
    attempts_of,
    make_many,
    make_queued,
    read,
    told_of,
)

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database


async def take_from(db: Database, *queues: str, most: int = 10, now: datetime = NOW) -> list[ClaimedJob]:
    return await take_first(db, queues or ["default"], owner_id="taker", most=most, ttl_s=TTL_S, now=now)


async def taken_from(db: Database, *queues: str, most: int = 10, now: datetime = NOW) -> list[UUID]:
    return [claimed.job_id for claimed in await take_from(db, *queues, most=most, now=now)]


async def test_a_take_starts_an_attempt_under_a_fresh_lease(db: Database) -> None:
    job_id = await make_queued(db, payload='{"a": 1}')

    (claimed,) = await take_from(db, now=at(5))

    assert (claimed.job_id, claimed.payload, claimed.attempt_no, claimed.attempt_count) == (job_id, '{"a": 1}', 1, 1)
    assert (claimed.owner_id, claimed.stream, claimed.message_id) == ("taker", None, None)
    assert (claimed.enqueue_id, claimed.lease_expires_at) == (1, at(5 + TTL_S))
    job = await read(db, job_id)
    assert (job.status, job.lease_owner, job.started_at, job.version) == ("running", "taker", at(5), 2)
    (attempt,) = await attempts_of(db, job_id)
    assert (attempt.attempt_id, attempt.outcome) == (claimed.attempt_id, None)
    assert await told_of(db, job_id) == [("queued", 1), ("running", 2)]
    await assert_counters_are_right(db)


async def test_jobs_of_the_same_instant_come_in_the_order_of_their_ids(db: Database) -> None:
    ids = await make_many(db, 10)

    assert await taken_from(db) == ids


async def test_every_queue_gives_its_first_jobs_and_no_more_than_wanted_of_it(db: Database) -> None:
    ids = {name: await make_many(db, 2, queue=name) for name in ("a", "b", "c")}

    assert set(await taken_from(db, "c", "a", most=1)) == {ids["c"][0], ids["a"][0]}
    assert set(await taken_from(db, "b", "a")) == {*ids["b"], ids["a"][1]}
    await assert_counters_are_right(db)


async def test_a_paused_queue_is_passed_over_until_it_is_resumed(db: Database) -> None:
    paused, other = await make_queued(db, queue="a"), await make_queued(db, queue="b")
    await pause_queue(db, "a", paused=True)

    assert await taken_from(db, "a", "b") == [other]
    await pause_queue(db, "a", paused=False)
    assert await taken_from(db, "a", "b") == [paused]


async def test_nothing_to_take_writes_nothing(db: Database) -> None:
    await take_from(db)
    before = await all_rows(db)

    for wants in ([], [Want("default", ["w"])], [Want("no such queue", ["w"])]):
        assert await take(db, wants, ttl_s=TTL_S, any_mode=True) == []

    assert await all_rows(db) == before


async def test_of_many_who_take_at_once_each_job_goes_to_one(db: Database) -> None:
    ids = await make_many(db, 200)
    got: list[UUID] = []

    async def work() -> None:
        while claimed := await take_first(db, ["default"], owner_id=str(new_id()), most=7, ttl_s=TTL_S):
            got.extend(one.job_id for one in claimed)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(work)

    assert sorted(got) == ids
    await assert_counters_are_right(db)


async def test_noting_raw_workers_leaves_a_pause_alone(db: Database) -> None:
    await make_queued(db)
    await pause_queue(db, "default", paused=True)

    await note_raw_workers(db, ["default"], now=at(-3600))

    assert await taken_from(db) == []
