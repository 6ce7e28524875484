"""Enqueue and take: new jobs, and in the same commit the first in line of the new and the waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.enqueue import TAKE_KEYS, Created, Enqueued, Existing, KeyBusy, QueueFull, enqueue_and_take
from jobd.lifecycle.enqueue_insert import insert
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import pause_queue
from jobd.lifecycle.take import TakeTerms, Want, stray_claims
from jobd.store.ids import new_id
from tests.lifecycle.direct import set_mode, want
from tests.lifecycle.test_enqueue import key, twin
from tests.support.factories import (
    NOW,
    TTL_S,
    all_rows,
    assert_counters_are_right,
    at,
    attempts_of,
    make_queued,
    new_job,
    one_row,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.enqueue import NewJob
    from jobd.store.postgres import Database


@pytest.fixture(autouse=True)
async def direct(db: Database) -> None:
    await set_mode(db, "direct", "default", "other")


async def submit(
    db: Database, *jobs: NewJob, wants: list[Want] | None = None, now: datetime = NOW, **terms: Any
) -> tuple[list[Enqueued], list[ClaimedJob]]:
    return await enqueue_and_take(db, jobs, [want(1)] if wants is None else wants, ttl_s=TTL_S, now=now, **terms)


def ids_of(taken: list[ClaimedJob]) -> list[UUID]:
    return [job.job_id for job in taken]


#: The three ways that a batch goes: one statement, one statement with keys, and a transaction.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with a key": {"key": key()},
    "in a transaction": {"spec_hash": b"s" * 32, "dedupe": "active"},
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_new_job_that_is_taken_is_running_from_the_start(db: Database, way: str) -> None:
    job = new_job(payload='{"b": 1, "a": 2}', task="patient", **WAYS[way])

    answers, (taken,) = await submit(db, job, task_ttls={"patient": 500.0})

    assert answers == [Created(job.id)]
    assert (taken.job_id, taken.task, taken.queue, taken.payload) == (job.id, "patient", "default", '{"a": 2, "b": 1}')
    assert (taken.enqueue_id, taken.attempt_no, taken.attempt_count, taken.max_attempts) == (1, 1, 1, 3)
    assert (taken.timeout_s, taken.ttl_s, taken.owner_id) == (30.0, 3600, "default-1")
    assert (taken.lease_expires_at, taken.lease_ttl_s) == (at(500), 500.0)
    assert (taken.stream, taken.message_id) == (None, None)
    stored = await read(db, job.id)
    assert (stored.status, stored.version, stored.lease_owner) == ("running", 2, "default-1")
    assert (stored.created_at, stored.run_after, stored.started_at, stored.updated_at) == (NOW, NOW, NOW, NOW)
    (attempt,) = await attempts_of(db, job.id)
    assert (attempt.attempt_id, attempt.number, attempt.outcome) == (taken.attempt_id, 1, None)
    assert await told_of(db, job.id) == [("queued", 1), ("running", 2)]
    assert await one_row(db, "SELECT streams, attempts, event_ns FROM outbox WHERE event = 'running'") == (
        [""],
        [1],
        None,
    )
    await assert_counters_are_right(db)


async def test_a_new_job_is_written_once(db: Database) -> None:
    """Not inserted and then updated."""
    terms = TakeTerms([want(1)], TTL_S)
    async with db.pool.acquire() as connection, connection.transaction():
        inserted = await insert(connection, [new_job(), new_job()], None, terms, NOW)

        row = await connection.fetchrow(
            "SELECT n_tup_ins, n_tup_upd FROM pg_stat_xact_user_tables WHERE relid = 'jobd.jobs'::regclass"
        )

    assert (len(inserted.claimed), tuple(row or ())) == (1, (2, 0))


@pytest.mark.parametrize("way", WAYS)
async def test_who_waits_longer_is_not_overtaken(db: Database, way: str) -> None:
    waiting = [await make_queued(db, at(-seconds)) for seconds in (1, 2)]
    job = new_job(**WAYS[way])

    answers, taken = await submit(db, job, wants=[want(1)])
    _, next_taken = await submit(db, wants=[want(5)])

    assert (answers, ids_of(taken)) == ([Created(job.id)], [waiting[1]])
    assert ids_of(next_taken) == [waiting[0], job.id]
    assert await told_of(db, job.id) == [("queued", 1), ("running", 2)]
    await assert_counters_are_right(db)


async def test_a_new_job_of_higher_priority_goes_before_those_that_wait(db: Database) -> None:
    waiting = await make_queued(db, at(-30))
    low, high = new_job(priority=-1), new_job(priority=1)

    answers, taken = await submit(db, low, high, wants=[want(2)])

    assert answers == [Created(low.id), Created(high.id)]
    assert {job.job_id: job.owner_id for job in taken} == {high.id: "default-1", waiting: "default-2"}
    assert await status_of(db, low.id) is JobStatus.QUEUED
    assert await one_row(db, "SELECT count(*) FROM jobs WHERE order_at IS NOT NULL") == (1,)
    await assert_counters_are_right(db)


async def test_new_jobs_of_the_same_moment_go_in_the_order_of_their_ids(db: Database) -> None:
    jobs = [new_job() for _ in range(5)]

    _, taken = await submit(db, *reversed(jobs), wants=[want(3)])

    assert [job.job_id for job in sorted(taken, key=lambda job: job.owner_id)] == [job.id for job in jobs[:3]]
    await assert_counters_are_right(db)


async def test_each_queue_gives_what_is_wanted_of_it(db: Database) -> None:
    await set_mode(db, "stream", "streamed")
    jobs = {queue: [new_job(queue=queue) for _ in range(3)] for queue in ("other", "streamed", "not wanted", "default")}
    wants = [Want("other", ["o1", "o2"]), Want("streamed", ["s1"]), Want("default", ["d1", "d2", "d3", "d4"])]

    answers, taken = await submit(db, *(job for of_queue in jobs.values() for job in of_queue), wants=wants)

    assert answers == [Created(job.id) for of_queue in jobs.values() for job in of_queue]
    assert {job.owner_id: job.job_id for job in taken} == {
        "o1": jobs["other"][0].id,
        "o2": jobs["other"][1].id,
        "d1": jobs["default"][0].id,
        "d2": jobs["default"][1].id,
        "d3": jobs["default"][2].id,
    }
    await assert_counters_are_right(db)


async def test_a_queue_of_which_no_new_job_comes_gives_what_waits(db: Database) -> None:
    waiting, job = await make_queued(db, queue="other"), new_job()

    _, taken = await submit(db, job, wants=[want(1, "other")])

    assert ids_of(taken) == [waiting]
    assert await status_of(db, job.id) is JobStatus.QUEUED


@pytest.mark.parametrize("why", ["delayed", "later", "paused", "stream", "no row"])
async def test_a_new_job_that_may_not_run_yet_waits(db: Database, why: str) -> None:
    queue = "streamed" if why in ("stream", "no row") else "default"
    if why == "stream":
        await set_mode(db, "stream", queue)
    if why == "paused":
        await pause_queue(db, "default", paused=True)
    later = {"delay_s": 5.0} if why == "delayed" else {"run_after": at(5)} if why == "later" else {}
    job = new_job(queue=queue, **later)

    answers, taken = await submit(db, job, wants=[want(1, queue)])

    assert (answers, taken) == ([Created(job.id)], [])
    assert await status_of(db, job.id) is JobStatus.QUEUED
    assert await one_row(db, "SELECT order_at, due_at FROM jobs") == ((None, at(5)) if later else (NOW, None))
    await assert_counters_are_right(db)
    if later:
        await promote_due(db, now=at(5))
        assert ids_of((await submit(db, now=at(5)))[1]) == [job.id]


async def test_with_redis_away_a_new_job_of_a_queue_in_stream_mode_is_taken(db: Database) -> None:
    await set_mode(db, "stream")
    job = new_job()

    _, taken = await submit(db, job, any_mode=True)

    assert ids_of(taken) == [job.id]


async def test_a_full_queue_takes_no_new_jobs_and_gives_those_that_wait(db: Database) -> None:
    waiting, jobs = await make_queued(db, at(-1)), [new_job(), new_job(), new_job(queue="other")]

    answers, taken = await submit(db, *jobs, wants=[want(3)], max_queued=2)

    assert answers == [Created(jobs[0].id), QueueFull("default"), Created(jobs[2].id)]
    assert ids_of(taken) == [waiting, jobs[0].id]
    await assert_counters_are_right(db)


async def test_job_that_is_sent_again_is_answered_as_the_first_time_though_it_was_taken(db: Database) -> None:
    job, new = new_job(), new_job()
    _, (lost,) = await submit(db, job)
    before = await read(db, job.id)

    answers, taken = await submit(db, new, job, wants=[want(5)])

    assert answers == [Created(new.id), Created(job.id)]
    assert ids_of(taken) == [new.id]
    assert await read(db, job.id) == before
    assert [found.lease_token for found in await stray_claims(db, "default-1", [taken[0].lease_token])] == [
        lost.lease_token
    ]
    await assert_counters_are_right(db)


async def test_job_that_is_sent_again_alone_still_gives_what_is_wanted(db: Database) -> None:
    job, waiting = new_job(), await make_queued(db, at(1))
    await submit(db, job)

    answers, taken = await submit(db, job, wants=[want(5)])

    assert (answers, ids_of(taken)) == ([Created(job.id)], [waiting])


@pytest.mark.parametrize("way", ["with a key", "in a transaction"])
async def test_a_job_that_is_there_already_is_not_made_and_gives_what_is_wanted(db: Database, way: str) -> None:
    first, again = new_job(**WAYS[way]), new_job(**WAYS[way])
    await submit(db, first, wants=[])

    answers, taken = await submit(db, again)

    assert (answers, ids_of(taken)) == ([Existing(first.id)], [first.id])
    await assert_counters_are_right(db)


async def test_jobs_of_known_keys_and_full_queues_are_not_made_and_do_not_keep_anyone_from_a_job(db: Database) -> None:
    known = new_job(key=key("known"))
    await submit(db, known, wants=[])
    jobs = [new_job(key=key("known")), new_job(key=key("new")), new_job(key=key("late"))]

    answers, taken = await submit(db, *jobs, wants=[want(5)], max_queued=2)

    assert (answers, ids_of(taken)) == ([Existing(known.id), Created(jobs[1].id), Created(jobs[2].id)], [known.id])
    await assert_counters_are_right(db)


async def test_a_key_that_another_transaction_holds_does_not_keep_anyone_from_a_job(db: Database) -> None:
    jobs = [new_job(key=key("held")), new_job(key=key("free"))]
    async with db.pool.acquire() as other, other.transaction():
        await other.fetch(TAKE_KEYS, ["alice"], ["held"], [new_id()], [b"body"], [3600.0], None, "20")

        with anyio.fail_after(10):
            answers, taken = await submit(db, *jobs, wants=[want(5)])

    assert (answers, ids_of(taken)) == ([KeyBusy(), Created(jobs[1].id)], [jobs[1].id])
    await assert_counters_are_right(db)


async def test_whole_takes_nothing_when_one_is_refused(db: Database) -> None:
    await make_queued(db)
    before = await all_rows(db)

    answers, taken = await submit(db, new_job(), new_job(), whole=True, max_queued=2)

    assert ([type(answer) for answer in answers], taken) == ([Created, QueueFull], [])
    assert await all_rows(db) == before


async def test_whole_takes_when_all_are_accepted(db: Database) -> None:
    jobs = [new_job(), new_job()]

    answers, taken = await submit(db, *jobs, whole=True)

    assert (answers, ids_of(taken)) == ([Created(job.id) for job in jobs], [jobs[0].id])
    await assert_counters_are_right(db)


async def test_a_batch_of_all_ways_takes_the_first_in_line(db: Database) -> None:
    jobs = [new_job(), new_job(key=key()), twin(), new_job(key=key())]

    answers, taken = await submit(db, *jobs, wants=[want(2)])

    assert answers == [Created(jobs[0].id), Created(jobs[1].id), Created(jobs[2].id), Existing(jobs[1].id)]
    assert ids_of(taken) == [jobs[0].id, jobs[1].id]
    await assert_counters_are_right(db)


async def test_a_payload_that_is_no_object_fails_both_halves(db: Database) -> None:
    await make_queued(db)
    before = await all_rows(db)

    with pytest.raises(asyncpg.PostgresError):
        await submit(db, new_job(payload="[]"))

    assert await all_rows(db) == before


async def test_what_another_is_just_taking_is_skipped_without_waiting(db: Database) -> None:
    waiting, job = await make_queued(db, at(-1)), new_job()
    async with db.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", waiting)

        with anyio.fail_after(20):
            _, taken = await submit(db, job)

    assert ids_of(taken) == [job.id]


async def test_of_many_at_once_each_job_goes_to_one_and_none_is_lost(db: Database) -> None:
    made: list[UUID] = []
    got: list[UUID] = []

    async def work(owner: str) -> None:
        for n in range(20):
            jobs = [new_job() for _ in range(n % 4)]
            answers, taken = await enqueue_and_take(
                db, jobs, [Want("default", [owner] * (n % 3))], ttl_s=TTL_S, max_queued=1000
            )
            assert answers == [Created(job.id) for job in jobs]
            made.extend(job.id for job in jobs)
            got.extend(ids_of(taken))

    async with anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(work, f"owner-{n}")

    running = {row["id"] for row in await db.fetch("SELECT id FROM jobs WHERE status = 'running'")}
    assert (len(got), set(got)) == (len(running), running)
    assert await db.fetchval("SELECT count(*) FROM jobs") == len(made)
    await assert_counters_are_right(db)
