"""Enqueue: new jobs in one commit, each once, and no more than there is room for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import (
    TAKE_KEYS,
    Created,
    Enqueued,
    Existing,
    IdempotencyKey,
    KeyBusy,
    KeyMismatch,
    NewJob,
    QueueFull,
    enqueue,
)
from jobd.lifecycle.enqueue_insert import insert_keyed
from jobd.lifecycle.fail import fail
from jobd.lifecycle.prune import prune_memories
from jobd.lifecycle.publish import select_for_publish
from jobd.store.ids import new_id
from tests.support.factories import (
    NOW,
    POLICY,
    all_rows,
    assert_counters_are_right,
    at,
    claim_one,
    completion,
    failure,
    make_job,
    make_many,
    make_queued,
    make_running,
    new_job,
    one_row,
    read,
    told_of,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.lifecycle.enqueue import Dedupe
    from jobd.store.postgres import Database

HOUR_S = 3600.0
SPEC = b"s" * 32
OTHER_SPEC = b"o" * 32


def key(name: str = "k", *, principal: str = "alice", body: bytes = b"body", life_s: float = HOUR_S) -> IdempotencyKey:
    return IdempotencyKey(principal=principal, key=name, body_hash=body, life_s=life_s)


def twin(dedupe: Dedupe = "active", **changes: Any) -> NewJob:
    return new_job(**{"spec_hash": SPEC, "dedupe": dedupe, **changes})


async def job_count(db: Database) -> int:
    count: int = await db.pool.fetchval("SELECT count(*) FROM jobs")
    return count


async def enqueue_one(db: Database, job: NewJob, now: datetime = NOW) -> Enqueued:
    (answer,) = await enqueue(db, [job], now=now)
    return answer


# What is written


async def test_a_new_job_is_queued_with_all_that_was_asked_for(db: Database) -> None:
    job = new_job(task="chat", queue="gpu", payload='{"a": 1}', priority=7, max_attempts=5, spec_hash=SPEC)

    answers = await enqueue(db, [job], now=NOW)

    stored = await read(db, job.id)
    assert answers == [Created(job.id)]
    assert (stored.task, stored.queue, stored.payload, stored.priority) == ("chat", "gpu", '{"a": 1}', 7)
    assert (stored.status, stored.enqueue_id, stored.version) == ("queued", 1, 1)
    assert (stored.attempt_no, stored.attempt_count, stored.max_attempts) == (0, 0, 5)
    assert (stored.timeout_s, stored.ttl_s, stored.spec_hash) == (30.0, 3600, SPEC)
    assert (stored.created_at, stored.updated_at, stored.run_after) == (NOW, NOW, NOW)
    assert (stored.started_at, stored.finished_at, stored.lease_owner) == (None, None, None)


async def test_a_batch_is_told_in_one_row_of_the_outbox(db: Database) -> None:
    ids = await make_many(db, 3)

    rows = await db.pool.fetch("SELECT event, job_ids, versions, streams FROM outbox")
    assert len(rows) == 1
    assert (rows[0]["event"], sorted(rows[0]["job_ids"]), rows[0]["versions"]) == ("queued", ids, [1, 1, 1])
    assert rows[0]["streams"] is None


async def test_no_jobs_are_no_work(db: Database) -> None:
    assert await enqueue(db, [], now=NOW) == []
    assert await db.pool.fetchval("SELECT count(*) FROM outbox") == 0


async def test_without_a_given_now_the_clock_of_the_database_counts(db: Database) -> None:
    job = new_job(delay_s=60)

    await enqueue(db, [job])

    stored, now = await read(db, job.id), await db.pool.fetchval("SELECT clock_timestamp()")
    assert timedelta(0) <= now - stored.created_at < timedelta(seconds=10)
    assert stored.run_after == stored.created_at + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("run_after", "delay_s", "starts_at"),
    [
        (None, 0, NOW),
        (at(-5), 0, NOW),
        (NOW, 0, NOW),
        (at(5), 0, at(5)),
        (None, 5, at(5)),
        (at(-5), 5, at(5)),
        (at(5), 5, at(10)),
    ],
)
async def test_a_job_starts_at_its_time_and_the_past_counts_as_now(
    db: Database, run_after: datetime | None, delay_s: float, starts_at: datetime
) -> None:
    job_id = await make_queued(db, run_after=run_after, delay_s=delay_s)

    place = (starts_at, None) if starts_at <= NOW else (None, starts_at)
    assert (await read(db, job_id)).run_after == starts_at
    assert await one_row(db, "SELECT order_at, due_at FROM jobs") == place


async def test_job_that_is_sent_again_is_answered_as_the_first_time_and_stays_as_it_is(db: Database) -> None:
    known = await make_running(db)
    before = await read(db, known.job_id)
    new = new_job()

    answers = await enqueue(db, [new, new_job(id=known.job_id)], max_queued=1, now=NOW)

    assert answers == [Created(new.id), Created(known.job_id)]
    assert await read(db, known.job_id) == before
    await assert_counters_are_right(db)


# Backpressure


async def test_a_queue_takes_jobs_up_to_its_limit_and_not_one_more(db: Database) -> None:
    jobs = [new_job(queue="a"), new_job(queue="b"), *(new_job(queue="a") for _ in range(3))]

    answers = await enqueue(db, jobs, max_queued=2, now=NOW)

    full = QueueFull("a")
    assert answers == [Created(jobs[0].id), Created(jobs[1].id), Created(jobs[2].id), full, full]
    assert await enqueue(db, [new_job(queue="a"), new_job(queue="b")], max_queued=2, now=NOW) == [
        full,
        Created((await select_for_publish(db, ["b"], most=2))[1].job_id),
    ]
    await assert_counters_are_right(db)


async def test_only_queued_jobs_take_up_room(db: Database) -> None:
    for status in JobStatus:
        await make_job(db, status)

    answers = await enqueue(db, [new_job(), new_job()], max_queued=2, now=NOW)

    assert [type(answer) for answer in answers] == [Created, QueueFull]


async def test_delayed_jobs_take_up_room_too(db: Database) -> None:
    await make_many(db, 2, delay_s=60)

    assert await enqueue(db, [new_job()], max_queued=2, now=NOW) == [QueueFull("default")]


async def test_room_that_others_left_is_filled_exactly_by_batches_one_after_the_other(db: Database) -> None:
    made = 0
    for size in (3, 1, 4, 1, 5, 9):
        answers = await enqueue(db, [new_job() for _ in range(size)], max_queued=10, now=NOW)
        made += sum(isinstance(answer, Created) for answer in answers)

    assert made == await job_count(db) == 10


async def test_a_limit_of_zero_takes_nothing(db: Database) -> None:
    assert await enqueue(db, [new_job()], max_queued=0, now=NOW) == [QueueFull("default")]
    assert await job_count(db) == 0


# All or nothing


async def test_whole_enqueues_all_when_all_are_accepted(db: Database) -> None:
    jobs = [new_job(), new_job(key=key())]

    assert await enqueue(db, jobs, whole=True, now=NOW) == [Created(job.id) for job in jobs]


@pytest.mark.parametrize("refusal", ["full", "mismatch"])
async def test_whole_leaves_nothing_when_one_is_refused(db: Database, refusal: str) -> None:
    known = new_job(key=key("known"))
    await enqueue(db, [known], now=NOW)
    before = await all_rows(db)
    jobs = [new_job(key=key("new")), new_job(key=key("known", body=b"other")) if refusal == "mismatch" else new_job()]

    answers = await enqueue(db, jobs, whole=True, max_queued=2 if refusal == "full" else None, now=NOW)

    assert answers[1] == (QueueFull("default") if refusal == "full" else KeyMismatch(known.id))
    assert await all_rows(db) == before


async def test_whole_counts_an_existing_job_as_accepted(db: Database) -> None:
    known = new_job(key=key())
    await enqueue(db, [known], now=NOW)
    fresh = new_job()

    answers = await enqueue(db, [new_job(key=key()), fresh], whole=True, now=NOW)

    assert answers == [Existing(known.id), Created(fresh.id)]


# Idempotency keys


@pytest.mark.parametrize(
    ("second", "now", "expected"),
    [
        (key(), at(1), Existing),
        (key(body=b"other"), at(1), KeyMismatch),
        (key(principal="bob"), at(1), Created),
        (key(principal="bob", body=b"other"), at(1), Created),
        (key("k2"), at(1), Created),
        (key(), at(HOUR_S), Existing),
        (key(), at(100 * HOUR_S), Existing),
        (key(body=b"other"), at(100 * HOUR_S), KeyMismatch),
    ],
    ids=[
        "same body: the same job",
        "other body: refused",
        "other principal: a job of its own",
        "other principal and body: nothing is revealed",
        "other key: another job",
        "not expired yet: the same job",
        "expired by the clock alone: the same job",
        "expired by the clock alone, other body: refused",
    ],
)
async def test_a_key_that_was_seen(db: Database, second: IdempotencyKey, now: datetime, expected: type) -> None:
    first, again = new_job(key=key()), new_job(key=second)
    await enqueue(db, [first], now=NOW)

    answer = await enqueue_one(db, again, now)

    assert answer == (Created(again.id) if expected is Created else expected(first.id))
    assert await job_count(db) == 1 + (expected is Created)
    assert len(await told_of(db, first.id)) == 1


async def test_a_key_still_answers_when_its_job_is_over(db: Database) -> None:
    first = new_job(key=key())
    await enqueue(db, [first], now=NOW)
    await complete(db, [completion(await claim_one(db, first.id))], now=NOW)

    assert await enqueue_one(db, new_job(key=key())) == Existing(first.id)


async def test_a_key_that_retention_forgot_makes_a_new_job_and_lives_as_long_as_a_new_one(db: Database) -> None:
    later = at(HOUR_S + 1)
    await enqueue(db, [new_job(key=key())], now=NOW)
    await prune_memories(db, keep_gone_s=HOUR_S, now=later)
    second = new_job(key=key(body=b"other"))
    assert await enqueue_one(db, second, later) == Created(second.id)
    await prune_memories(db, keep_gone_s=HOUR_S, now=later + timedelta(minutes=59))

    assert await enqueue_one(db, new_job(key=key(body=b"other")), later + timedelta(minutes=59)) == Existing(second.id)


@pytest.mark.parametrize("looks", range(5))
async def test_a_key_whose_time_ends_while_it_is_looked_at_still_answers_for_its_job(db: Database, looks: int) -> None:
    first, second = new_job(key=key(body=b"first")), new_job(key=key(body=b"second"))
    await enqueue(db, [first], now=NOW)

    async with db.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        # A clock that goes on by a second with each look, and passes the expiry after so many of them.
        await connection.execute("CREATE SEQUENCE looks")
        await connection.execute(
            """
            CREATE OR REPLACE FUNCTION jobd.clock(at timestamptz) RETURNS timestamptz LANGUAGE plpgsql VOLATILE
            AS $$ BEGIN RETURN at + nextval('looks') * interval '1 second'; END $$
            """
        )
        start = at(HOUR_S - looks - 0.5)
        row = await connection.fetchrow(TAKE_KEYS, ["alice"], ["k"], [second.id], [b"second"], [HOUR_S], start, "20")
        await transaction.rollback()

    assert row is not None
    assert (row["job_id"], row["body_hash"]) == (first.id, b"first")


async def test_answers_of_a_mixed_batch_are_in_its_order(db: Database) -> None:
    known = new_job(key=key("known"))
    await enqueue(db, [known], now=NOW)
    jobs = [
        new_job(key=key("z")),
        new_job(key=key("known")),
        new_job(),
        new_job(key=key("known", body=b"other")),
        new_job(key=key("a")),
    ]

    answers = await enqueue(db, jobs, now=NOW)

    assert answers == [
        Created(jobs[0].id),
        Existing(known.id),
        Created(jobs[2].id),
        KeyMismatch(known.id),
        Created(jobs[4].id),
    ]
    await assert_counters_are_right(db)


async def test_one_key_twice_in_a_batch_makes_one_job(db: Database) -> None:
    first, same, other = new_job(key=key()), new_job(key=key()), new_job(key=key(body=b"other"))

    answers = await enqueue(db, [first, same, other], now=NOW)

    assert answers == [Created(first.id), Existing(first.id), KeyMismatch(first.id)]
    assert await job_count(db) == 1


async def test_a_key_whose_job_found_no_room_is_free_again(db: Database) -> None:
    refused, later = new_job(key=key()), new_job(key=key())
    assert await enqueue(db, [refused], max_queued=0, now=NOW) == [QueueFull("default")]

    assert await enqueue_one(db, later) == Created(later.id)


@pytest.mark.parametrize("body", [b"body", b"other"])
async def test_one_key_twice_in_a_batch_without_room_is_refused_twice(db: Database, body: bytes) -> None:
    answers = await enqueue(db, [new_job(key=key()), new_job(key=key(body=body))], max_queued=0, now=NOW)

    assert answers == [QueueFull("default")] * 2
    assert await db.pool.fetchval("SELECT count(*) FROM idempotency_keys") == 0


async def test_jobs_whose_keys_are_known_take_no_room(db: Database) -> None:
    known = [new_job(key=key(f"known{n}")) for n in range(3)]
    await enqueue(db, known, now=NOW)
    again = [new_job(key=key(f"known{n}")) for n in range(3)]
    new, unkeyed, follower = new_job(key=key("new")), new_job(), new_job(key=key("new"))
    late, late_again = new_job(key=key("late")), new_job(key=key("late"))

    answers = await enqueue(db, [*again, new, unkeyed, follower, late, late_again], max_queued=5, now=NOW)

    assert answers == [
        *(Existing(job.id) for job in known),
        Created(new.id),
        Created(unkeyed.id),
        Existing(new.id),
        QueueFull("default"),
        QueueFull("default"),
    ]
    assert await db.pool.fetchval("SELECT count(*) FROM idempotency_keys") == 4
    await assert_counters_are_right(db)


async def test_job_with_a_key_that_is_sent_again_is_answered_as_the_first_time(db: Database) -> None:
    job, new = new_job(key=key()), new_job(key=key("new"))
    await enqueue(db, [job], now=NOW)

    assert await enqueue(db, [new, job], max_queued=1, now=NOW) == [QueueFull("default"), Created(job.id)]
    assert await enqueue(db, [new, job], now=NOW) == [Created(new.id), Created(job.id)]
    await assert_counters_are_right(db)


@pytest.mark.parametrize("dedupe", ["none", "active"])
async def test_a_key_that_another_transaction_holds_is_busy_and_the_others_do_not_wait_for_it(
    db: Database, dedupe: Dedupe
) -> None:
    jobs = [new_job(key=key(name), dedupe=dedupe) for name in ("a", "held", "z")] + [new_job()]
    async with db.pool.acquire() as other, other.transaction():
        await other.fetch(TAKE_KEYS, ["alice"], ["held"], [new_id()], [b"body"], [HOUR_S], None, "20")

        with anyio.fail_after(10):
            answers = await enqueue(db, jobs, now=NOW)

    assert answers == [Created(jobs[0].id), KeyBusy(), Created(jobs[2].id), Created(jobs[3].id)]
    await assert_counters_are_right(db)


async def test_the_short_wait_for_a_key_ends_with_its_statement(db: Database) -> None:
    async with db.pool.acquire() as connection:
        before = await connection.fetchval("SHOW lock_timeout")
        await insert_keyed(connection, [new_job(key=key())], None, None, NOW, 20)

        assert await connection.fetchval("SHOW lock_timeout") == before


async def test_fifty_enqueues_at_once_with_one_key_make_one_job(db: Database) -> None:
    answers: list[Enqueued] = []

    async def send() -> None:
        while isinstance((answer := (await enqueue(db, [new_job(key=key())]))[0]), KeyBusy):
            await anyio.sleep(0.01)
        answers.append(answer)

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(send)

    assert await job_count(db) == 1
    assert sum(isinstance(answer, Created) for answer in answers) == 1
    assert sum(isinstance(answer, Existing) for answer in answers) == 49
    assert len({answer.job_id for answer in answers if isinstance(answer, Created | Existing)}) == 1
    await assert_counters_are_right(db)


async def test_a_key_freed_by_one_who_found_no_room_is_taken_by_one_who_waited(db: Database) -> None:
    answers: list[Enqueued] = []

    async def send(limit: int) -> None:
        while isinstance((answer := (await enqueue(db, [new_job(key=key())], max_queued=limit))[0]), KeyBusy):
            await anyio.sleep(0.01)
        answers.append(answer)

    async with anyio.create_task_group() as tasks:
        for n in range(40):
            tasks.start_soon(send, n % 2)  # every other one is refused

    made = [answer for answer in answers if isinstance(answer, Created)]
    assert len(made) == await job_count(db) == 1
    assert {answer.job_id for answer in answers if isinstance(answer, Existing)} <= {made[0].job_id}


async def test_batches_of_the_same_keys_in_any_order_do_not_deadlock(db: Database) -> None:
    names = [f"k{n}" for n in range(20)]

    async def send(turn: int) -> None:
        order = names if turn % 2 else names[::-1]
        await enqueue(
            db, [new_job(key=key(name), spec_hash=name.encode().ljust(32), dedupe="active") for name in order]
        )

    async with anyio.create_task_group() as tasks:
        for turn in range(30):
            tasks.start_soon(send, turn)

    assert await job_count(db) == len(names)


# Twins


@pytest.mark.parametrize(
    ("dedupe", "joins"),
    [
        ("none", set()),
        ("active", {JobStatus.QUEUED, JobStatus.RUNNING}),
        ("result", {JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.DONE}),
    ],
)
@pytest.mark.parametrize("status", list(JobStatus))
async def test_a_twin_answers_for_a_job_that_asks_for_one(
    db: Database, dedupe: Dedupe, joins: set[JobStatus], status: JobStatus
) -> None:
    known = await make_job(db, status, spec_hash=SPEC)
    job = twin(dedupe)

    answer = await enqueue_one(db, job)

    assert answer == (Existing(known) if status in joins else Created(job.id))


async def test_other_work_is_no_twin(db: Database) -> None:
    await make_queued(db, spec_hash=OTHER_SPEC)
    await make_queued(db)
    with_hash, without = twin(), twin(spec_hash=None)

    answers = await enqueue(db, [with_hash, without], now=NOW)

    assert answers == [Created(with_hash.id), Created(without.id)]


async def test_the_newest_twin_answers(db: Database) -> None:
    await make_job(db, JobStatus.DONE, spec_hash=SPEC)
    newest = await make_job(db, JobStatus.DONE, spec_hash=SPEC)
    await make_job(db, JobStatus.ERROR, spec_hash=SPEC)

    assert await enqueue_one(db, twin("result")) == Existing(newest)


async def test_a_job_that_is_about_to_be_canceled_is_no_twin(db: Database) -> None:
    claimed = await make_running(db, spec_hash=SPEC)
    await db.pool.execute("UPDATE jobs SET cancel_requested = true")
    job = twin()

    assert await enqueue_one(db, job) == Created(job.id)
    assert claimed.job_id != job.id


async def test_a_job_that_waits_for_its_retry_is_a_twin(db: Database) -> None:
    claimed = await make_running(db, spec_hash=SPEC)
    await fail(db, [failure(claimed)], policy=POLICY, now=NOW)

    assert await enqueue_one(db, twin()) == Existing(claimed.job_id)


async def test_who_may_see_own_jobs_only_has_no_twin_of_others(db: Database) -> None:
    foreign, older = twin(owner="bob"), twin("none", owner="ann")
    await enqueue(db, [older, foreign])  # bob is answered by ann's

    answers = await enqueue(
        db, [twin(owner="bob", own_twins=True), twin(owner="ann", own_twins=True), twin(owner="eve")]
    )

    assert isinstance(answers[0], Created)
    assert answers[1:] == [Existing(older.id), Existing(older.id)]


async def test_who_may_see_own_jobs_only_has_no_twin_of_others_in_the_same_batch(db: Database) -> None:
    """Callers share a commit."""
    first, joins, own, again = (
        twin(owner="bob"),
        twin(owner="ann"),  # of a token that sees every job
        twin(owner="ann", own_twins=True),
        twin(owner="ann", own_twins=True),
    )

    answers = await enqueue(db, [first, joins, own, again])

    assert answers == [Created(first.id), Existing(first.id), Created(own.id), Existing(own.id)]


@pytest.mark.parametrize("first_dedupe", ["none", "active", "result"])
async def test_a_twin_earlier_in_the_batch_answers_too(db: Database, first_dedupe: Dedupe) -> None:
    first, second, other = twin(first_dedupe), twin(), twin(spec_hash=OTHER_SPEC)

    answers = await enqueue(db, [first, second, other], now=NOW)

    assert answers == [Created(first.id), Existing(first.id), Created(other.id)]


async def test_a_twin_of_a_job_that_found_no_room_is_refused_with_it(db: Database) -> None:
    answers = await enqueue(db, [twin(), twin(key=key())], max_queued=0, now=NOW)

    assert answers == [QueueFull("default")] * 2


async def test_the_key_of_a_job_that_was_refused_with_its_twin_is_free_again(db: Database) -> None:
    await enqueue(db, [twin(), twin(key=key())], max_queued=0, now=NOW)
    later = new_job(key=key())

    assert await enqueue_one(db, later) == Created(later.id)


async def test_a_key_whose_job_had_a_twin_stands_for_the_twin(db: Database) -> None:
    known = await make_queued(db, spec_hash=SPEC)
    assert await enqueue_one(db, twin(key=key())) == Existing(known)

    assert await enqueue_one(db, new_job(key=key())) == Existing(known)


@pytest.mark.parametrize(("body", "expected"), [(b"body", Existing), (b"other", KeyMismatch)])
async def test_one_key_twice_in_a_batch_whose_job_had_a_twin_is_answered_by_the_twin(
    db: Database, body: bytes, expected: type
) -> None:
    known = await make_queued(db, spec_hash=SPEC)

    answers = await enqueue(db, [twin(key=key()), twin(key=key(body=body))], now=NOW)

    assert answers == [Existing(known), expected(known)]


async def test_two_keys_of_twins_in_one_batch_stand_for_the_one_job(db: Database) -> None:
    first, second = twin(key=key("k1")), twin(key=key("k2"))
    await enqueue(db, [first, second], now=NOW)

    answers = await enqueue(db, [new_job(key=key("k1")), new_job(key=key("k2"))], now=NOW)

    assert answers == [Existing(first.id)] * 2


@pytest.mark.parametrize("dedupe", ["active", "result"])
async def test_fifty_twins_at_once_make_one_job(db: Database, dedupe: Dedupe) -> None:
    ids: set[UUID] = set()

    async def send() -> None:
        (answer,) = await enqueue(db, [twin(dedupe, id=new_id())])
        assert isinstance(answer, Created | Existing)
        ids.add(answer.job_id)

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(send)

    assert len(ids) == await job_count(db) == 1
