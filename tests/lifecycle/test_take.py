"""Take: the first due jobs of queues in mode `direct`, each for one owner, and never beside a change of the mode."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest

from jobd.job.model import NotClaimable, NotClaimableReason
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import claim
from jobd.lifecycle.fail import fail
from jobd.lifecycle.modes import change_mode
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import note_raw_workers, pause_queue
from jobd.lifecycle.take import Want, stray_claims
from tests.lifecycle.direct import TAKERS, set_mode, until_waiting, want
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    all_rows,
    ask,
    assert_counters_are_right,
    at,
    attempts_of,
    claim_one,
    failure,
    make_many,
    make_queued,
    make_running,
    one_row,
    read,
    told_of,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database


#: The verb under test, by the fixture below.
take = TAKERS["take"]


@pytest.fixture(autouse=True, params=TAKERS)
async def direct(db: Database, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is for each verb that takes."""
    monkeypatch.setattr(sys.modules[__name__], "take", TAKERS[request.param])
    await set_mode(db, "direct", "default")


async def take_from(
    db: Database, *queues: str, most: int = 10, any_mode: bool = False, now: datetime = NOW
) -> list[ClaimedJob]:
    wants = [want(most, queue) for queue in queues or ["default"]]
    return await take(db, wants, ttl_s=TTL_S, any_mode=any_mode, now=now)


async def taken_from(
    db: Database, *queues: str, most: int = 10, any_mode: bool = False, now: datetime = NOW
) -> list[UUID]:
    return [job.job_id for job in await take_from(db, *queues, most=most, any_mode=any_mode, now=now)]


async def test_a_take_starts_an_attempt_under_a_fresh_lease(db: Database) -> None:
    job_id = await make_queued(db, payload='{"a": 1}')

    (taken,) = await take_from(db, now=at(5))

    assert (taken.job_id, taken.payload, taken.attempt_no, taken.attempt_count) == (job_id, '{"a": 1}', 1, 1)
    assert (taken.owner_id, taken.stream, taken.message_id) == ("default-1", None, None)
    assert (taken.enqueue_id, taken.lease_expires_at) == (1, at(5 + TTL_S))
    job = await read(db, job_id)
    assert (job.status, job.lease_owner, job.started_at, job.version) == ("running", "default-1", at(5), 2)
    (attempt,) = await attempts_of(db, job_id)
    assert (attempt.attempt_id, attempt.outcome) == (taken.attempt_id, None)
    assert await told_of(db, job_id) == [("queued", 1), ("running", 2)]
    await assert_counters_are_right(db)


async def test_a_message_that_may_have_been_offered_is_told_to_be_of_no_use(db: Database) -> None:
    await make_many(db, 2)

    await take_from(db)

    assert await one_row(db, "SELECT streams, message_ids FROM outbox WHERE event = 'running'") == (["", ""], None)


async def test_the_first_owner_gets_the_first_in_line_in_every_queue(db: Database) -> None:
    await set_mode(db, "direct", "a", "z")
    ids: dict[str, list[UUID]] = {"z": [], "a": [], "default": []}
    for queue, made in ids.items():
        made += [await make_queued(db, at(-n), queue=queue) for n in range(3)]

    taken = await take(
        db,
        [Want("z", ["z1"]), Want("default", []), Want("a", ["a1", "a2", "a3", "a4", "a5"])],
        ttl_s=TTL_S,
        now=NOW,
    )

    assert {job.owner_id: job.job_id for job in taken} == {
        "a1": ids["a"][2],
        "a2": ids["a"][1],
        "a3": ids["a"][0],
        "z1": ids["z"][2],
    }
    assert {job.job_id: (await read(db, job.job_id)).lease_owner for job in taken} == {
        job.job_id: job.owner_id for job in taken
    }
    assert len({token for job in taken for token in (job.attempt_id, job.lease_token)}) == 8
    await assert_counters_are_right(db)


async def test_the_longest_waiting_comes_first_and_no_more_than_wanted(db: Database) -> None:
    ids = [await make_queued(db, at(seconds)) for seconds in (3, 1, 2)]

    assert await taken_from(db, most=2, now=at(10)) == [ids[1], ids[2]]
    assert await taken_from(db, now=at(10)) == [ids[0]]
    assert await taken_from(db, now=at(10)) == []


async def test_a_point_of_priority_is_worth_a_minute_of_waiting(db: Database) -> None:
    waited, urgent, negative = (
        await make_queued(db, at(-119)),
        await make_queued(db, priority=2),
        await make_queued(db, at(-121), priority=-1),
    )

    assert await taken_from(db) == [urgent, waited, negative]


async def test_lease_lasts_as_long_as_the_task_says(db: Database) -> None:
    await make_queued(db, at(-2), task="patient")
    await make_queued(db, at(-1))

    patient, other = await take(db, [want(2)], ttl_s=TTL_S, task_ttls={"patient": 500.0}, now=NOW)

    assert (patient.lease_expires_at, patient.lease_ttl_s) == (at(500), 500.0)
    assert (other.lease_expires_at, other.lease_ttl_s) == (at(TTL_S), None)


async def test_nothing_wanted_or_nothing_there_writes_nothing(db: Database) -> None:
    before = await all_rows(db)

    assert await take_from(db, "default", "no such queue") == []
    assert await take(db, [], ttl_s=TTL_S) == []
    assert await take(db, [Want("default", [])], ttl_s=TTL_S) == []

    assert await all_rows(db) == before


# What is not taken


async def test_a_queue_in_stream_mode_or_without_a_row_is_passed_over(db: Database) -> None:
    await set_mode(db, "stream", "streamed")
    for queue in ("streamed", "no row"):
        await make_queued(db, queue=queue)

    assert await taken_from(db, "streamed", "no row") == []


async def test_a_paused_queue_is_passed_over_until_it_is_resumed(db: Database) -> None:
    job_id = await make_queued(db)
    await pause_queue(db, "default", paused=True)

    assert await taken_from(db) == []
    assert await taken_from(db, any_mode=True) == []
    await pause_queue(db, "default", paused=False)
    assert await taken_from(db) == [job_id]


async def test_a_delayed_job_is_not_taken_before_its_time(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10)

    await promote_due(db, now=at(10) - timedelta(microseconds=1))
    assert await taken_from(db, now=at(10)) == []
    await promote_due(db, now=at(10))
    assert await taken_from(db, now=at(10)) == [job_id]


async def test_a_job_that_is_in_line_is_taken_though_the_clock_went_back(db: Database) -> None:
    job_id = await make_queued(db)

    assert await taken_from(db, now=at(-3600)) == [job_id]


async def test_a_job_that_is_to_be_canceled_is_not_taken_and_takes_nobodys_place(db: Database) -> None:
    first, second = await make_many(db, 2)
    await db.execute("UPDATE jobs SET cancel_requested = true WHERE id = $1", first)

    assert await taken_from(db, most=1) == [second]


async def test_running_and_final_jobs_are_not_taken(db: Database) -> None:
    await make_running(db)
    await cancel(db, [await make_queued(db)], now=NOW)

    assert await taken_from(db, now=at(1000)) == []


async def test_a_failed_job_comes_again_after_its_backoff(db: Database) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed)], policy=POLICY, jitter=1.0, now=NOW)

    assert await taken_from(db, now=at(7)) == []
    await promote_due(db, now=at(8))
    (again,) = await take_from(db, now=at(8))
    assert (again.job_id, again.enqueue_id, again.attempt_no) == (claimed.job_id, 2, 2)


async def test_what_another_is_just_taking_is_skipped_without_waiting(db: Database) -> None:
    first, second = await make_many(db, 2)
    async with db.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", first)

        with anyio.fail_after(20):
            assert await taken_from(db) == [second]

    assert await taken_from(db) == [first]


async def test_a_message_for_a_job_that_was_taken_claims_nothing(db: Database) -> None:
    job_id = await make_queued(db)
    await take_from(db)

    assert await claim(db, [ask(job_id)], ttl_s=TTL_S, now=NOW) == [NotClaimable(NotClaimableReason.LEASED)]


async def test_of_many_who_take_at_once_each_job_goes_to_one(db: Database) -> None:
    ids = await make_many(db, 200)
    got: list[UUID] = []

    async def work() -> None:
        while taken := await take(db, [want(7)], ttl_s=TTL_S):
            got.extend(job.job_id for job in taken)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(work)

    assert sorted(got) == ids
    await assert_counters_are_right(db)


# In any mode, while Redis is away


async def test_with_redis_away_a_queue_in_stream_mode_is_taken_from(db: Database) -> None:
    await set_mode(db, "stream")
    job_id = await make_queued(db)

    assert await taken_from(db, any_mode=True) == [job_id]


async def test_queue_that_raw_workers_read_is_passed_over_for_one_lease_time(db: Database) -> None:
    """With Redis away, one of them may be at work on any job that was offered to it."""
    await set_mode(db, "stream", "default", "fast")
    theirs, other = await make_queued(db), await make_queued(db, queue="fast")
    await note_raw_workers(db, ["default"], now=at(0))

    within = await taken_from(db, "default", "fast", any_mode=True, now=at(TTL_S - 1))
    after = await taken_from(db, "default", "fast", any_mode=True, now=at(TTL_S + 1))

    assert (within, after) == ([other], [theirs])


async def test_raw_workers_seen_by_a_clock_that_was_set_back_do_not_shut_their_queue(db: Database) -> None:
    await set_mode(db, "stream")
    job_id = await make_queued(db)
    await note_raw_workers(db, ["default"], now=at(3600))

    assert await taken_from(db, any_mode=True) == [job_id]


# Beside a change of the mode


async def test_a_change_of_the_mode_waits_for_a_take_under_way(db: Database) -> None:
    await make_queued(db)
    changed: list[bool] = []

    async def change() -> None:
        changed.append(await change_mode(db, "default", "stream", mode_no=2))

    async with anyio.create_task_group() as tasks, db.pool.acquire() as taker:
        async with taker.transaction():
            assert len(await take(taker, [want()], ttl_s=TTL_S)) == 1
            tasks.start_soon(change)
            await until_waiting(db)
            assert changed == []

    assert changed == [True]


@pytest.mark.parametrize("any_mode", [False, True])
async def test_a_change_waits_for_a_take_that_found_nothing_too(db: Database, any_mode: bool) -> None:
    """Its statement has looked at the mode: a job that it meets later in the same transaction is as good as taken."""
    async with anyio.create_task_group() as tasks, db.pool.acquire() as taker:
        async with taker.transaction():
            assert await take(taker, [want()], ttl_s=TTL_S, any_mode=any_mode) == []
            tasks.start_soon(set_mode, db, "stream")
            await until_waiting(db)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ("UPDATE queues SET mode = 'stream', mode_no = 3", 0),
        ("UPDATE queues SET paused = true", 0),
        ("UPDATE queues SET raw_seen_at = now()", 1),
        ("UPDATE queues SET mode = 'direct', mode_no = 3", 1),
    ],
)
async def test_a_take_that_waited_for_a_change_goes_by_the_changed_row(db: Database, change: str, count: int) -> None:
    job_id = await make_queued(db)
    taken: list[ClaimedJob] = []

    async def work() -> None:
        taken.extend(await take(db, [want()], ttl_s=TTL_S))

    async with anyio.create_task_group() as tasks, db.pool.acquire() as changer:
        async with changer.transaction():
            await changer.execute(change)
            tasks.start_soon(work)
            await until_waiting(db)

    assert [job.job_id for job in taken] == [job_id][:count]


async def test_a_take_that_waited_for_a_change_that_was_undone_takes(db: Database) -> None:
    job_id = await make_queued(db)
    taken: list[ClaimedJob] = []

    async def work() -> None:
        taken.extend(await take(db, [want()], ttl_s=TTL_S))

    async with anyio.create_task_group() as tasks, db.pool.acquire() as changer:
        transaction = changer.transaction()
        await transaction.start()
        await change_mode(changer, "default", "stream", mode_no=2)
        tasks.start_soon(work)
        await until_waiting(db)
        await transaction.rollback()

    assert [job.job_id for job in taken] == [job_id]


async def test_takes_of_the_same_queue_do_not_wait_for_each_other(db: Database) -> None:
    first, second = await make_many(db, 2)
    async with db.pool.acquire() as one, db.pool.acquire() as other, one.transaction(), other.transaction():
        with anyio.fail_after(20):
            (mine,) = await take(one, [want(1)], ttl_s=TTL_S)
            (theirs,) = await take(other, [want(1)], ttl_s=TTL_S)

    assert [mine.job_id, theirs.job_id] == [first, second]


async def test_no_job_is_taken_in_stream_mode_while_modes_change_and_others_take(db: Database) -> None:
    await make_many(db, 400)
    looks: list[set[int]] = []

    async def left() -> int:
        return int(await db.pool.fetchval("SELECT count(*) FROM jobs WHERE status = 'queued'"))

    async def work() -> None:
        while await left():
            await take(db, [want(3)], ttl_s=TTL_S)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(work)
        while await left():
            await set_mode(db, "stream")
            looks.append({await left() for _ in range(5)})
            await set_mode(db, "direct")

    assert all(len(look) == 1 for look in looks), looks


# A take whose answer was lost


async def test_claims_that_an_owner_does_not_know_of_are_found(db: Database) -> None:
    await make_many(db, 3, payload='{"a": 1}')
    known, lost = await take(db, [Want("default", ["me", "me"])], ttl_s=TTL_S, now=NOW)
    await take(db, [Want("default", ["other"])], ttl_s=TTL_S, now=NOW)

    (found,) = await stray_claims(db, "me", [known.lease_token], now=NOW)

    assert found.sent_at >= lost.sent_at
    assert msgspec.structs.replace(found, sent_at=lost.sent_at) == lost


async def test_a_claim_that_is_found_later_counts_from_its_start(db: Database) -> None:
    """Its holder must not believe in a lease for longer than it lasts."""
    await make_queued(db)
    (lost,) = await take(db, [Want("default", ["me"])], ttl_s=TTL_S, now=NOW)

    (found,) = await stray_claims(db, "me", [], now=at(20))

    assert found.sent_at - lost.sent_at < -19


async def test_claims_that_came_through_a_message_are_found_too(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db), owner_id="me", stream="jobs:stream", message_id="7-1")

    (found,) = await stray_claims(db, "me", [], now=NOW)

    assert (found.lease_token, found.stream, found.message_id) == (claimed.lease_token, "jobs:stream", "7-1")
