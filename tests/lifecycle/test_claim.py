"""Claim by message: the job that the message still speaks of, once, or the reason why not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.job.model import Canceled, DeadLettered, NotClaimable, NotClaimableReason
from jobd.job.status import AttemptOutcome, DeadLetterReason, JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import EXPLAIN_CLAIMS, Ask, ClaimAnswer, ClaimedJob, Unknown, claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import fail
from jobd.lifecycle.heartbeat import heartbeat
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import list_dead_letters, pause_queue
from jobd.lifecycle.release import release
from jobd.store.ids import new_id, new_ids
from jobd.store.postgres import Database
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    all_rows,
    ask,
    assert_counters_are_right,
    at,
    attempts_of,
    beat,
    claim_one,
    completion,
    failure,
    held,
    make_job,
    make_many,
    make_queued,
    make_running,
    outcomes_of,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from uuid import UUID

    import asyncpg


FINAL = NotClaimable(NotClaimableReason.FINAL)
STALE = NotClaimable(NotClaimableReason.STALE_MESSAGE)
LEASED = NotClaimable(NotClaimableReason.LEASED)
NOT_DUE = NotClaimable(NotClaimableReason.NOT_DUE)
EXPIRED = at(TTL_S + 1)


async def claim_all(db: Database, *asks: Ask, now: datetime = NOW) -> list[ClaimAnswer]:
    return await claim(db, asks, ttl_s=TTL_S, now=now)


# A queued job


async def test_a_claim_starts_an_attempt_under_a_fresh_lease(db: Database) -> None:
    job_id = await make_queued(db, queue="gpu", task="chat", payload='{"a": 1}', max_attempts=4)

    (answer,) = await claim_all(db, ask(job_id, owner_id="w", stream="jobs:stream", message_id="1-1"), now=at(5))

    assert isinstance(answer, ClaimedJob)
    assert (answer.job_id, answer.task, answer.queue, answer.payload) == (job_id, "chat", "gpu", '{"a": 1}')
    assert (answer.attempt_no, answer.attempt_count, answer.max_attempts, answer.enqueue_id) == (1, 1, 4, 1)
    assert (answer.owner_id, answer.stream, answer.message_id) == ("w", "jobs:stream", "1-1")
    assert (answer.lease_expires_at, answer.timeout_s, answer.ttl_s) == (at(5 + TTL_S), 30.0, 3600)
    job = await read(db, job_id)
    assert (job.status, job.version, job.started_at, job.updated_at) == ("running", 2, at(5), at(5))
    assert (job.lease_owner, job.lease_expires_at) == ("w", at(5 + TTL_S))
    (attempt,) = await attempts_of(db, job_id)
    assert (attempt.number, attempt.attempt_id, attempt.outcome) == (1, answer.attempt_id, None)
    assert await told_of(db, job_id) == [("queued", 1), ("running", 2)]
    await assert_counters_are_right(db)


async def test_every_claim_has_its_own_token_and_attempt(db: Database) -> None:
    ids = await make_many(db, 100)

    answers = await claim_all(db, *map(ask, ids))

    claimed = [answer for answer in answers if isinstance(answer, ClaimedJob)]
    assert len({answer.lease_token for answer in claimed}) == 100
    assert len({answer.attempt_id for answer in claimed}) == 100


async def test_answers_are_in_the_order_of_the_messages(db: Database) -> None:
    ids = await make_many(db, 20)

    answers = await claim_all(db, *(ask(job_id) for job_id in reversed(ids)))

    assert [answer.job_id for answer in answers if isinstance(answer, ClaimedJob)] == ids[::-1]


async def test_a_claim_of_nothing_is_nothing(db: Database) -> None:
    assert await claim_all(db) == []
    assert await db.pool.fetchval("SELECT count(*) FROM outbox") == 0


async def test_a_later_attempt_keeps_the_time_of_the_first_start(db: Database) -> None:
    claimed = await make_running(db)
    await release(db, [held(claimed)], now=at(1))

    await claim_one(db, claimed.job_id, 2, now=at(2))

    assert (await read(db, claimed.job_id)).started_at == NOW


async def test_a_message_claims_even_from_a_paused_queue(db: Database) -> None:
    job_id = await make_queued(db)
    await pause_queue(db, "default", paused=True)

    await claim_one(db, job_id)


async def test_the_clock_of_the_database_decides_when_no_now_is_given(db: Database) -> None:
    start = await db.pool.fetchval("SELECT clock_timestamp()")
    job_id = await make_queued(db, now=start, delay_s=0.3)

    (early,) = await claim(db, [ask(job_id)], ttl_s=TTL_S)
    await anyio.sleep(0.4)
    (late,) = await claim(db, [ask(job_id)], ttl_s=TTL_S)

    assert early == NOT_DUE
    assert isinstance(late, ClaimedJob)


# Why not


async def test_a_job_is_not_claimed_before_its_time(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10)

    assert await claim_all(db, ask(job_id), now=at(10) - timedelta(microseconds=1)) == [NOT_DUE]
    assert await status_of(db, job_id) is JobStatus.QUEUED
    await claim_one(db, job_id, now=at(10))


async def test_a_job_that_is_in_line_is_claimed_though_the_clock_went_back(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10)
    await promote_due(db, now=at(10))

    await claim_one(db, job_id, now=at(-3600))


async def test_a_message_that_came_too_early_is_the_only_one_not_to_be_acknowledged() -> None:
    assert {reason for reason in NotClaimableReason if not NotClaimable(reason).ack} == {NotClaimableReason.NOT_DUE}


@pytest.mark.parametrize("status", [JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELED])
async def test_a_final_job_is_not_claimed(db: Database, status: JobStatus) -> None:
    job_id = await make_job(db, status)
    before = await all_rows(db)

    assert await claim_all(db, ask(job_id), now=EXPIRED) == [FINAL]
    assert await all_rows(db) == before


@pytest.mark.parametrize("enqueue_id", [0, 2, 99])
async def test_a_message_of_another_time_in_the_queue_claims_nothing(db: Database, enqueue_id: int) -> None:
    job_id = await make_queued(db)

    assert await claim_all(db, ask(job_id, enqueue_id)) == [STALE]
    assert await status_of(db, job_id) is JobStatus.QUEUED


async def test_the_message_of_a_job_that_was_requeued_is_stale(db: Database) -> None:
    claimed = await make_running(db)
    await release(db, [held(claimed)], now=NOW)

    assert await claim_all(db, ask(claimed.job_id, 1)) == [STALE]
    await claim_one(db, claimed.job_id, 2)


async def test_a_job_under_a_live_lease_is_not_claimed(db: Database) -> None:
    claimed = await make_running(db)

    assert await claim_all(db, ask(claimed.job_id), now=at(TTL_S)) == [LEASED]
    assert (await read(db, claimed.job_id)).attempt_no == 1


async def test_a_job_that_is_not_there_is_unknown(db: Database) -> None:
    assert await claim_all(db, ask(new_id())) == [Unknown()]


async def test_mixed_answers_are_in_the_order_of_the_messages(db: Database) -> None:
    queued, delayed = await make_queued(db), await make_queued(db, delay_s=60)
    done, running = await make_job(db, JobStatus.DONE), await make_running(db)
    stale = await make_queued(db)
    nobody = new_id()

    answers = await claim_all(
        db, ask(nobody), ask(stale, 9), ask(running.job_id), ask(done), ask(delayed), ask(queued), ask(nobody)
    )

    assert answers[:5] == [Unknown(), STALE, LEASED, FINAL, NOT_DUE]
    assert isinstance(answers[5], ClaimedJob)
    assert answers[6] == Unknown()
    await assert_counters_are_right(db)


# One job more than once in a batch


async def test_a_doubled_message_claims_once(db: Database) -> None:
    job_id = await make_queued(db)

    first, second = await claim_all(db, ask(job_id, message_id="1-1"), ask(job_id, message_id="1-2"))

    assert isinstance(first, ClaimedJob)
    assert (first.message_id, second) == ("1-1", LEASED)


@pytest.mark.parametrize("order", [(1, 2), (2, 1), (1, 2, 2, 1)])
async def test_a_stale_message_does_not_stand_in_the_way_of_the_current_one(
    db: Database, order: tuple[int, ...]
) -> None:
    claimed = await make_running(db)
    await release(db, [held(claimed)], now=NOW)

    answers = await claim_all(db, *(ask(claimed.job_id, enqueue_id) for enqueue_id in order))

    kinds = [type(answer) if isinstance(answer, ClaimedJob) else answer for answer in answers]
    expected: list[Any] = [ClaimedJob if n == order.index(2) else LEASED for n in range(len(order))]
    assert kinds == [STALE if enqueue_id == 1 else expected[n] for n, enqueue_id in enumerate(order)]


async def test_a_stale_message_does_not_stand_in_the_way_of_a_takeover(db: Database) -> None:
    claimed = await make_running(db)
    await release(db, [held(claimed)], now=NOW)
    await claim_one(db, claimed.job_id, 2)

    stale, current = await claim_all(db, ask(claimed.job_id, 1), ask(claimed.job_id, 2), now=EXPIRED)

    assert stale == STALE
    assert isinstance(current, ClaimedJob)


class _Slow(Database):
    """A session on which a job becomes due between its claim and the question why that failed."""

    def __init__(self, db: Database) -> None:
        super().__init__(db.url, 1)
        self._pool = db.pool

    async def fetch(self, query: str, /, *args: object) -> list[asyncpg.Record]:
        if query == EXPLAIN_CLAIMS:
            await self.execute("UPDATE jobs SET run_after = run_after - interval '1 hour'")
        return await super().fetch(query, *args)


async def test_a_message_whose_job_became_due_just_after_the_claim_is_not_acknowledged(db: Database) -> None:
    job_id = await make_queued(db, delay_s=10)

    (answer,) = await claim(_Slow(db), [ask(job_id)], ttl_s=TTL_S, now=at(9))

    assert await status_of(db, job_id) is JobStatus.QUEUED
    assert answer == NOT_DUE


# Takeover


async def test_an_expired_lease_is_taken_over_and_its_attempt_closed(db: Database) -> None:
    first = await make_running(db, max_attempts=2)

    (second,) = await claim_all(db, ask(first.job_id, owner_id="w2", stream="s", message_id="2-1"), now=EXPIRED)

    assert isinstance(second, ClaimedJob)
    assert (second.attempt_no, second.attempt_count, second.enqueue_id, second.owner_id) == (2, 2, 1, "w2")
    assert second.lease_expires_at == EXPIRED + timedelta(seconds=TTL_S)
    assert {second.attempt_id, second.lease_token}.isdisjoint({first.attempt_id, first.lease_token})
    assert await outcomes_of(db, first.job_id) == ["expired", None]
    job = await read(db, first.job_id)
    assert (job.status, job.lease_owner, job.attempt_no) == ("running", "w2", 2)
    assert await told_of(db, first.job_id) == [("queued", 1), ("running", 2), ("running", 3)]
    await assert_counters_are_right(db)


async def test_a_lease_is_not_taken_over_at_the_very_instant_it_expires(db: Database) -> None:
    claimed = await make_running(db)

    assert await claim_all(db, ask(claimed.job_id), now=claimed.lease_expires_at) == [LEASED]


async def test_a_renewed_lease_is_not_taken_over(db: Database) -> None:
    claimed = await make_running(db)
    await heartbeat(db, [beat(claimed)], ttl_s=TTL_S, now=at(30))

    assert await claim_all(db, ask(claimed.job_id), now=at(TTL_S + 1)) == [LEASED]


async def test_who_was_taken_over_can_do_nothing_more(db: Database) -> None:
    zombie = await make_running(db)
    await claim_one(db, zombie.job_id, now=EXPIRED)
    before = await all_rows(db)

    await complete(db, [completion(zombie)], now=EXPIRED)
    await fail(db, [failure(zombie)], policy=POLICY, now=EXPIRED)
    await release(db, [held(zombie)], now=EXPIRED)
    await heartbeat(db, [beat(zombie)], ttl_s=TTL_S, now=EXPIRED)

    assert await all_rows(db) == before


async def test_a_takeover_without_attempts_left_makes_a_dead_letter(db: Database) -> None:
    claimed = await make_running(db, max_attempts=1)

    (answer,) = await claim_all(db, ask(claimed.job_id), now=EXPIRED)

    assert answer == DeadLettered(outcome=AttemptOutcome.EXPIRED, reason=DeadLetterReason.ATTEMPTS_EXHAUSTED)
    job = await read(db, claimed.job_id)
    assert (job.status, job.finished_at, job.lease_owner, job.attempt_no) == ("error", EXPIRED, None, 1)
    assert job.error is not None and "lease_expired" in job.error
    assert await outcomes_of(db, claimed.job_id) == ["expired"]
    assert [letter.reason for letter in (await list_dead_letters(db)).letters] == ["attempts_exhausted"]
    assert (await told_of(db, claimed.job_id))[-1] == ("error", 3)
    await assert_counters_are_right(db)


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_takeover_of_a_job_that_was_to_be_canceled_cancels_it(db: Database, max_attempts: int) -> None:
    claimed = await make_running(db, max_attempts=max_attempts)
    await cancel(db, [claimed.job_id], now=NOW)

    (answer,) = await claim_all(db, ask(claimed.job_id), now=EXPIRED)

    assert answer == Canceled(AttemptOutcome.EXPIRED)
    assert await status_of(db, claimed.job_id) is JobStatus.CANCELED
    assert await outcomes_of(db, claimed.job_id) == ["expired"]
    assert (await list_dead_letters(db)).letters == []
    await assert_counters_are_right(db)


async def test_a_stale_message_takes_nothing_over(db: Database) -> None:
    claimed = await make_running(db)

    assert await claim_all(db, ask(claimed.job_id, 0), now=EXPIRED) == [STALE]
    assert await outcomes_of(db, claimed.job_id) == [None]


async def test_a_doubled_message_takes_over_once(db: Database) -> None:
    claimed = await make_running(db)

    first, second = await claim_all(db, ask(claimed.job_id), ask(claimed.job_id), now=EXPIRED)

    assert isinstance(first, ClaimedJob)
    assert second == LEASED
    assert await outcomes_of(db, claimed.job_id) == ["expired", None]


async def test_takeovers_of_all_kinds_in_one_batch(db: Database) -> None:
    retried, dead = await make_running(db), await make_running(db, max_attempts=1)
    canceled, alive = await make_running(db), await make_running(db, ttl_s=1000)
    await cancel(db, [canceled.job_id], now=NOW)

    answers = await claim_all(db, *(ask(one.job_id) for one in (alive, canceled, dead, retried)), now=EXPIRED)

    assert [type(answer) for answer in answers] == [NotClaimable, Canceled, DeadLettered, ClaimedJob]
    await assert_counters_are_right(db)


# Many at once


async def test_of_many_claims_at_once_with_the_same_messages_each_job_goes_to_one(db: Database) -> None:
    ids = await make_many(db, 50)
    won: list[UUID] = []

    async def work(turn: int) -> None:
        order = ids if turn % 2 else ids[::-1]
        answers = await claim(db, [ask(job_id) for job_id in order], ttl_s=TTL_S)
        won.extend(answer.job_id for answer in answers if isinstance(answer, ClaimedJob))

    async with anyio.create_task_group() as tasks:
        for turn in range(10):
            tasks.start_soon(work, turn)

    assert sorted(won) == ids
    assert await db.pool.fetchval("SELECT count(*) FROM leases") == 50
    await assert_counters_are_right(db)


async def test_of_many_takeovers_at_once_one_succeeds(db: Database) -> None:
    claimed = [await make_running(db) for _ in range(10)]
    won: list[UUID] = []

    async def work() -> None:
        answers = await claim(db, [ask(one.job_id) for one in claimed], ttl_s=TTL_S, now=EXPIRED)
        won.extend(answer.job_id for answer in answers if isinstance(answer, ClaimedJob))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(work)

    assert sorted(won) == [one.job_id for one in claimed]
    for one in claimed:
        assert await outcomes_of(db, one.job_id) == ["expired", None]


async def test_a_thousand_messages_are_one_statement(db: Database) -> None:
    ids = await make_many(db, 1000)

    answers = await claim_all(db, *map(ask, ids), *map(ask, new_ids(10)))

    assert sum(isinstance(answer, ClaimedJob) for answer in answers) == 1000
    assert await db.pool.fetchval("SELECT count(*) FROM outbox WHERE event = 'running'") == 1
