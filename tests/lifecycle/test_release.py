"""Release: the job goes back to its old place, or comes back after a delay, uncharged; its number is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from jobd.job.model import AlreadyFinished, Canceled, Conflicting, Requeued, Superseded
from jobd.job.status import AttemptOutcome, JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import fail
from jobd.lifecycle.publish import promote_due, select_for_publish
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import Release, release
from tests.support.claims import take_first
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
    make_many,
    make_running,
    outcomes_of,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.report import Held
    from jobd.store.postgres import Database

RELEASED = AttemptOutcome.RELEASED
SUPERSEDED = Superseded()
REPLAY = AlreadyFinished(outcome=RELEASED, requeued=True, dead_lettered=False)


async def give_back(db: Database, *holders: Held, seconds: float = 0) -> list[Any]:
    return list(await release(db, holders, now=at(seconds)))


def requeued(enqueue_id: int = 2) -> Requeued:
    return Requeued(outcome=RELEASED, enqueue_id=enqueue_id, run_after=NOW.timestamp())


async def test_a_released_job_is_queued_again_and_not_charged(db: Database) -> None:
    claimed = await make_running(db)

    assert await give_back(db, held(claimed), seconds=5) == [requeued()]

    job = await read(db, claimed.job_id)
    assert (job.status, job.enqueue_id, job.attempt_no, job.attempt_count) == ("queued", 2, 1, 0)
    assert (job.run_after, job.updated_at, job.error, job.lease_owner) == (NOW, at(5), None, None)
    (attempt,) = await attempts_of(db, claimed.job_id)
    assert (attempt.number, attempt.outcome, attempt.ended_at) == (1, "released", at(5))
    assert await told_of(db, claimed.job_id) == [("queued", 1), ("running", 2), ("requeued", 3)]
    await assert_counters_are_right(db)


async def test_releases_never_use_up_the_attempts_but_their_numbers_do_not_recur(db: Database) -> None:
    claimed = await make_running(db, max_attempts=1)

    for enqueue_id in range(2, 6):
        await give_back(db, held(claimed))
        claimed = await claim_one(db, claimed.job_id, enqueue_id)

    assert (claimed.attempt_no, claimed.attempt_count) == (5, 1)
    assert await outcomes_of(db, claimed.job_id) == ["released"] * 4 + [None]


async def test_a_released_job_keeps_its_place_in_the_queue(db: Database) -> None:
    ids = await make_many(db, 3)
    later = await make_many(db, 2, at(10))
    claims = await take_first(db, ["default"], owner_id="w", most=2, ttl_s=TTL_S, now=at(20))

    await give_back(db, *map(held, claims), seconds=30)

    offers = await select_for_publish(db, ["default"], most=10)
    assert [offer.job_id for offer in offers] == ids + later


async def test_a_released_job_can_be_claimed_at_once(db: Database) -> None:
    claimed = await make_running(db)
    await give_back(db, held(claimed), seconds=5)

    (again,) = await take_first(db, ["default"], owner_id="w", most=1, ttl_s=TTL_S, now=at(5))

    assert (again.job_id, again.attempt_no, again.enqueue_id) == (claimed.job_id, 2, 2)


async def test_a_release_of_a_job_that_was_to_be_canceled_cancels_it(db: Database) -> None:
    claimed = await make_running(db)
    await cancel(db, [claimed.job_id], now=NOW)

    assert await give_back(db, held(claimed), seconds=5) == [Canceled(AttemptOutcome.CANCELED)]

    job = await read(db, claimed.job_id)
    assert (job.status, job.finished_at, job.enqueue_id, job.attempt_count) == ("canceled", at(5), 1, 1)
    assert await outcomes_of(db, claimed.job_id) == ["canceled"]
    await assert_counters_are_right(db)


async def test_an_expired_lease_that_nobody_took_over_is_released(db: Database) -> None:
    claimed = await make_running(db)

    assert await give_back(db, held(claimed), seconds=1000) == [requeued()]


async def test_the_same_release_again_hears_the_same_and_changes_nothing(db: Database) -> None:
    back, stopped = await make_running(db), await make_running(db)
    await cancel(db, [stopped.job_id], now=NOW)
    await give_back(db, held(back), held(stopped))
    before = await all_rows(db)

    answers = await give_back(db, held(stopped), held(back))

    canceled = AlreadyFinished(outcome=AttemptOutcome.CANCELED, requeued=False, dead_lettered=False)
    assert answers == [canceled, REPLAY]
    assert await all_rows(db) == before


@pytest.mark.parametrize("report", ["complete", "fail"])
async def test_release_after_another_report_is_a_conflict(db: Database, report: str) -> None:
    claimed = await make_running(db)
    if report == "complete":
        await complete(db, [completion(claimed)], now=NOW)
    else:
        await fail(db, [failure(claimed)], policy=POLICY, now=NOW)

    outcome = AttemptOutcome.DONE if report == "complete" else AttemptOutcome.FAILED
    assert await give_back(db, held(claimed)) == [Conflicting(outcome)]


@pytest.mark.parametrize("ended_by", ["reap", "takeover"])
async def test_release_of_an_attempt_that_was_taken_away_is_superseded(db: Database, ended_by: str) -> None:
    claimed = await make_running(db)
    if ended_by == "reap":
        await reap(db, policy=POLICY, now=at(TTL_S + 1))
    else:
        await claim_one(db, claimed.job_id, now=at(TTL_S + 1))

    assert await give_back(db, held(claimed)) == [SUPERSEDED]


@pytest.mark.parametrize("wrong", ["lease_token", "attempt_id", "job_id"])
async def test_a_release_must_prove_job_attempt_and_token(db: Database, wrong: str) -> None:
    claimed = await make_running(db)

    assert await give_back(db, held(claimed, **{wrong: uuid4()})) == [SUPERSEDED]
    assert await status_of(db, claimed.job_id) is JobStatus.RUNNING


async def test_a_batch_is_answered_in_its_order(db: Database) -> None:
    back, stopped, done = [await make_running(db) for _ in range(3)]
    await cancel(db, [stopped.job_id], now=NOW)
    await complete(db, [completion(done)], now=NOW)

    answers = await give_back(db, held(stopped), held(done), held(back), held(back))

    expected = [Canceled(AttemptOutcome.CANCELED), Conflicting(AttemptOutcome.DONE), requeued(), REPLAY]
    assert answers == expected
    assert await give_back(db) == []
    await assert_counters_are_right(db)


@pytest.mark.parametrize("zombie_first", [True, False])
async def test_the_release_of_a_zombie_does_not_hide_that_of_the_holder(db: Database, zombie_first: bool) -> None:
    zombie = await make_running(db)
    holder = await claim_one(db, zombie.job_id, now=at(TTL_S + 1))
    holders = [held(zombie), held(holder)]

    answers = await give_back(db, *(holders if zombie_first else holders[::-1]), seconds=100)

    expected = [SUPERSEDED, requeued()]
    assert answers == (expected if zombie_first else expected[::-1])


# With a delay


def snooze(claimed: ClaimedJob, delay_s: float) -> Release:
    return Release(
        job_id=claimed.job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, delay_s=delay_s
    )


@pytest.mark.parametrize(("delay_s", "after_s"), [(30.0, 30.0), (0.001, 1.0)])
async def test_a_snoozed_job_comes_back_when_its_delay_has_passed(db: Database, delay_s: float, after_s: float) -> None:
    claimed = await make_running(db, max_attempts=1)

    (answer,) = await give_back(db, snooze(claimed, delay_s), seconds=5)

    assert answer == Requeued(outcome=RELEASED, enqueue_id=2, run_after=at(5 + after_s).timestamp())
    job = await read(db, claimed.job_id)
    assert (job.attempt_count, job.attempt_no, job.snoozes, job.run_after) == (0, 1, 1, at(5 + after_s))
    assert await promote_due(db, now=at(5 + after_s - 0.001)) == []
    assert await take_first(db, ["default"], owner_id="w", most=1, ttl_s=TTL_S, now=at(5)) == []
    assert await promote_due(db, now=at(5 + after_s)) == [claimed.job_id]
    await assert_counters_are_right(db)


async def test_snoozes_are_counted_and_never_use_up_the_attempts(db: Database) -> None:
    claimed = await make_running(db, max_attempts=1)

    for enqueue_id in range(2, 5):
        await give_back(db, snooze(claimed, 10.0))
        await promote_due(db, now=at(10))
        claimed = await claim_one(db, claimed.job_id, enqueue_id, now=at(10))

    assert ((await read(db, claimed.job_id)).snoozes, claimed.attempt_count) == (3, 1)


async def test_a_snooze_of_a_job_that_was_to_be_canceled_cancels_it(db: Database) -> None:
    claimed = await make_running(db)
    await cancel(db, [claimed.job_id], now=NOW)

    assert await give_back(db, snooze(claimed, 10.0)) == [Canceled(AttemptOutcome.CANCELED)]
    assert (await read(db, claimed.job_id)).snoozes == 0
