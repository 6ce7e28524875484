"""Fail: tried again after a backoff while that is allowed, then a dead letter, or canceled if that was asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from jobd.job.model import AlreadyFinished, Canceled, Conflicting, DeadLettered, Requeued, Superseded
from jobd.job.retry import RetryPolicy, backoff_s
from jobd.job.status import AttemptOutcome, DeadLetterReason, JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import Failure, fail
from jobd.lifecycle.publish import promote_due, select_for_publish
from jobd.lifecycle.read import list_dead_letters
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import release
from jobd.store.ids import new_id
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    all_rows,
    assert_counters_are_right,
    at,
    attempts_of,
    claim_one,
    completion,
    failure,
    held,
    make_running,
    outcomes_of,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database

FAILED = AttemptOutcome.FAILED
EXHAUSTED = DeadLettered(outcome=FAILED, reason=DeadLetterReason.ATTEMPTS_EXHAUSTED)
NOT_RETRYABLE = DeadLettered(outcome=FAILED, reason=DeadLetterReason.NOT_RETRYABLE)
SUPERSEDED = Superseded()


async def report(
    db: Database, *reports: Failure, seconds: float = 0, jitter: float = 0.5, policy: RetryPolicy = POLICY
) -> list[Any]:
    return list(await fail(db, reports, policy=policy, jitter=jitter, now=at(seconds)))


def requeued(seconds: float, enqueue_id: int = 2) -> Requeued:
    return Requeued(outcome=FAILED, enqueue_id=enqueue_id, run_after=at(seconds).timestamp())


def replay(outcome: AttemptOutcome, *, requeued: bool = False, dead_lettered: bool = False) -> AlreadyFinished:
    return AlreadyFinished(outcome=outcome, requeued=requeued, dead_lettered=dead_lettered)


async def test_a_failed_attempt_puts_the_job_back_after_a_backoff(db: Database) -> None:
    claimed = await make_running(db)

    assert await report(db, failure(claimed), seconds=5) == [requeued(5 + 4)]

    job = await read(db, claimed.job_id)
    assert (job.status, job.enqueue_id, job.run_after, job.error) == ("queued", 2, at(9), '{"code": "boom"}')
    assert (job.attempt_no, job.attempt_count, job.finished_at, job.lease_owner) == (1, 1, None, None)
    (attempt,) = await attempts_of(db, claimed.job_id)
    assert (attempt.outcome, attempt.error, attempt.ended_at) == ("failed", '{"code": "boom"}', at(5))
    assert await told_of(db, claimed.job_id) == [("queued", 1), ("running", 2), ("requeued", 3)]
    await assert_counters_are_right(db)


@pytest.mark.parametrize("jitter", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("cap_s", [300.0, 20.0])
async def test_the_backoff_doubles_with_every_charged_attempt_up_to_its_cap(
    db: Database, jitter: float, cap_s: float
) -> None:
    policy = RetryPolicy(base_s=8.0, cap_s=cap_s)
    claimed, seconds = await make_running(db, max_attempts=9), 0.0
    for attempt in range(1, 9):
        delay_s = backoff_s(policy, attempt - 1, jitter)

        answers = await report(db, failure(claimed), seconds=seconds, jitter=jitter, policy=policy)

        assert answers == [requeued(seconds + delay_s, attempt + 1)]
        seconds += delay_s
        claimed = await claim_one(db, claimed.job_id, attempt + 1, now=at(seconds))


async def test_every_job_draws_its_own_jitter(db: Database) -> None:
    claims = [await make_running(db) for _ in range(10)]

    await fail(db, [failure(claimed) for claimed in claims], policy=POLICY, now=NOW)

    waits = [(await read(db, claimed.job_id)).run_after - NOW for claimed in claims]
    assert len(set(waits)) > 1
    assert all(timedelta(0) <= wait <= timedelta(seconds=8) for wait in waits)


async def test_a_job_that_waits_for_its_retry_is_not_offered_before_its_time(db: Database) -> None:
    claimed = await make_running(db)
    await report(db, failure(claimed))

    assert await promote_due(db, now=at(3.9)) == []
    assert await select_for_publish(db, ["default"], most=5) == []
    assert await promote_due(db, now=at(4)) == [claimed.job_id]
    (offer,) = await select_for_publish(db, ["default"], most=5)
    assert (offer.job_id, offer.enqueue_id) == (claimed.job_id, 2)


async def test_the_last_attempt_makes_a_dead_letter(db: Database) -> None:
    first = await make_running(db, max_attempts=2)
    await report(db, failure(first), jitter=0.0)
    second = await claim_one(db, first.job_id, 2)

    assert await report(db, failure(second), seconds=7) == [EXHAUSTED]

    job = await read(db, first.job_id)
    assert (job.status, job.finished_at, job.enqueue_id, job.attempt_count) == ("error", at(7), 2, 2)
    (letter,) = (await list_dead_letters(db)).letters
    assert (letter.job_id, letter.reason, letter.at) == (first.job_id, "attempts_exhausted", at(7))
    assert await outcomes_of(db, first.job_id) == ["failed", "failed"]
    assert (await told_of(db, first.job_id))[-1] == ("error", 5)
    await assert_counters_are_right(db)


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_an_error_that_is_not_retryable_makes_a_dead_letter_at_once(db: Database, max_attempts: int) -> None:
    claimed = await make_running(db, max_attempts=max_attempts)

    assert await report(db, failure(claimed, retryable=False)) == [NOT_RETRYABLE]
    (letter,) = (await list_dead_letters(db)).letters
    assert letter.reason == "not_retryable"
    await assert_counters_are_right(db)


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_failure_of_a_job_that_was_to_be_canceled_cancels_it(
    db: Database, retryable: bool, max_attempts: int
) -> None:
    claimed = await make_running(db, max_attempts=max_attempts)
    await cancel(db, [claimed.job_id], now=NOW)

    assert await report(db, failure(claimed, retryable=retryable)) == [Canceled(AttemptOutcome.CANCELED)]
    assert await status_of(db, claimed.job_id) is JobStatus.CANCELED
    assert await outcomes_of(db, claimed.job_id) == ["canceled"]
    assert (await list_dead_letters(db)).letters == []
    await assert_counters_are_right(db)


async def test_an_expired_lease_that_nobody_took_over_still_fails(db: Database) -> None:
    claimed = await make_running(db)

    assert await report(db, failure(claimed), seconds=1000) == [requeued(1004)]


# The same again, and something else


async def test_the_same_failure_again_hears_the_same_and_changes_nothing(db: Database) -> None:
    back, dead, stopped = await make_running(db), await make_running(db, max_attempts=1), await make_running(db)
    await cancel(db, [stopped.job_id], now=NOW)
    reports = [failure(back), failure(dead), failure(stopped)]
    await report(db, *reports)
    before = await all_rows(db)

    answers = await report(db, *reports, seconds=99)

    assert answers == [
        replay(FAILED, requeued=True),
        replay(FAILED, dead_lettered=True),
        replay(AttemptOutcome.CANCELED),
    ]
    assert await all_rows(db) == before


async def test_a_failure_that_put_the_job_back_says_so_even_after_a_later_attempt_made_a_dead_letter(
    db: Database,
) -> None:
    first = await make_running(db, max_attempts=2)
    await report(db, failure(first), jitter=0.0)
    second = await claim_one(db, first.job_id, 2)
    await report(db, failure(second))

    answers = await report(db, failure(first), failure(second))

    assert answers == [replay(FAILED, requeued=True), replay(FAILED, dead_lettered=True)]


async def test_another_failure_for_the_same_attempt_is_a_conflict(db: Database) -> None:
    claimed = await make_running(db)
    await report(db, failure(claimed))
    before = await all_rows(db)

    assert await report(db, failure(claimed, outcome_hash=b"other")) == [Conflicting(FAILED)]
    assert await all_rows(db) == before


async def test_fail_after_complete_is_a_conflict(db: Database) -> None:
    claimed = await make_running(db)
    await complete(db, [completion(claimed)], now=NOW)

    assert await report(db, failure(claimed)) == [Conflicting(AttemptOutcome.DONE)]
    assert await status_of(db, claimed.job_id) is JobStatus.DONE


@pytest.mark.parametrize("ended_by", ["release", "reap", "takeover"])
async def test_fail_of_an_attempt_that_is_over_is_superseded(db: Database, ended_by: str) -> None:
    claimed = await make_running(db)
    if ended_by == "release":
        await release(db, [held(claimed)], now=NOW)
    elif ended_by == "reap":
        await reap(db, policy=POLICY, now=at(TTL_S + 1))
    else:
        await claim_one(db, claimed.job_id, now=at(TTL_S + 1))
    before = await all_rows(db)

    assert await report(db, failure(claimed)) == [SUPERSEDED]
    assert await all_rows(db) == before


# Not the holder


@pytest.mark.parametrize("wrong", ["lease_token", "attempt_id", "job_id"])
async def test_a_failure_must_prove_job_attempt_and_token(db: Database, wrong: str) -> None:
    claimed = await make_running(db)
    before = await all_rows(db)

    assert await report(db, failure(claimed, **{wrong: uuid4()})) == [SUPERSEDED]
    assert await all_rows(db) == before


async def test_the_token_of_another_job_in_the_same_batch_is_no_proof(db: Database) -> None:
    job, other = await make_running(db), await make_running(db)

    answers = await report(db, failure(job, lease_token=other.lease_token), failure(other, attempt_id=job.attempt_id))

    assert answers == [SUPERSEDED, SUPERSEDED]


async def test_an_unknown_job_cannot_fail(db: Database) -> None:
    unknown = Failure(job_id=new_id(), attempt_id=uuid4(), lease_token=uuid4(), error="{}")

    assert await report(db, unknown) == [SUPERSEDED]


# Batches


async def test_answers_are_in_the_order_of_the_reports(db: Database) -> None:
    names = ("done", "again", "fatal", "last", "stopped")
    claims: dict[str, ClaimedJob] = {
        name: await make_running(db, max_attempts=1 if name == "last" else 3) for name in names
    }
    await complete(db, [completion(claims["done"])], now=NOW)
    await cancel(db, [claims["stopped"].job_id], now=NOW)

    answers = await report(
        db,
        failure(claims["stopped"]),
        failure(claims["last"]),
        failure(claims["fatal"], retryable=False),
        failure(claims["again"]),
        failure(claims["done"]),
    )

    assert answers == [
        Canceled(AttemptOutcome.CANCELED),
        EXHAUSTED,
        NOT_RETRYABLE,
        requeued(4),
        Conflicting(AttemptOutcome.DONE),
    ]
    await assert_counters_are_right(db)


async def test_no_reports_are_no_work(db: Database) -> None:
    assert await report(db) == []


async def test_a_doubled_failure_is_charged_once(db: Database) -> None:
    claimed = await make_running(db)

    answers = await report(db, failure(claimed), failure(claimed))

    assert answers == [requeued(4), replay(FAILED, requeued=True)]
    assert (await read(db, claimed.job_id)).attempt_count == 1


@pytest.mark.parametrize("zombie_first", [True, False])
async def test_the_failure_of_a_zombie_does_not_hide_that_of_the_holder(db: Database, zombie_first: bool) -> None:
    zombie = await make_running(db)
    holder = await claim_one(db, zombie.job_id, now=at(TTL_S + 1))
    reports = [failure(zombie), failure(holder)]

    answers = await report(db, *(reports if zombie_first else reports[::-1]), seconds=100, jitter=0.0)

    expected = [SUPERSEDED, requeued(100)]
    assert answers == (expected if zombie_first else expected[::-1])


async def test_an_error_that_is_no_json_fails_the_batch_whole(db: Database) -> None:
    good, bad = await make_running(db), await make_running(db)
    before = await all_rows(db)

    with pytest.raises(asyncpg.DataError):
        await report(db, failure(good), failure(bad, error="{"))

    assert await all_rows(db) == before
