"""The tally: each verb moves exactly the numbers of what it did, by queue and task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import ClaimedJob, claim
from jobd.lifecycle.complete import complete, complete_and_take
from jobd.lifecycle.expire import expire
from jobd.lifecycle.fail import fail
from jobd.lifecycle.histogram import Histogram
from jobd.lifecycle.reap import reap
from jobd.lifecycle.redrive import redrive, redrive_once
from jobd.lifecycle.release import release
from jobd.lifecycle.rollups import BOUNDS_S
from jobd.lifecycle.tally import OTHER, Tally
from tests.lifecycle.direct import set_mode, want
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    ask,
    at,
    claim_one,
    completion,
    failure,
    held,
    make_many,
    make_queued,
    make_running,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database

pytestmark = pytest.mark.anyio

CHAT = ("default", "chat")
Numbers = dict[tuple[str, ...], int]


def numbers(tally: Tally) -> Numbers:
    """All that is counted, without zeros."""
    found: Numbers = {}
    for key, counts in tally.tasks.items():
        found |= {(*key, "submitted"): counts.submitted, (*key, "ran"): sum(counts.run.counts)}
        found |= {(*key, "finished", outcome): number for outcome, number in counts.finished.items()}
        found |= {(*key, "attempts", outcome): number for outcome, number in counts.attempts.items()}
    found |= {(queue, "waited"): sum(waits.counts) for queue, waits in tally.waits.items()}
    found[("expired",)] = tally.leases_expired
    return {name: number for name, number in found.items() if number}


async def test_done_jobs_count_by_queue_and_task_with_the_time_that_each_ran(db: Database) -> None:
    tally = Tally()
    jobs = [await make_running(db, queue=queue, task=task) for queue, task in (CHAT, CHAT, ("fast", "chat"))]

    await complete(db, [completion(job) for job in jobs], tally=tally, now=at(3.0))

    assert numbers(tally) == {
        (*CHAT, "finished", "done"): 2,
        (*CHAT, "attempts", "done"): 2,
        (*CHAT, "ran"): 2,
        ("fast", "chat", "finished", "done"): 1,
        ("fast", "chat", "attempts", "done"): 1,
        ("fast", "chat", "ran"): 1,
    }
    assert tally.tasks[CHAT].run.sum_s == pytest.approx(6.0)


async def test_report_that_is_repeated_or_refused_moves_nothing(db: Database) -> None:
    tally, job = Tally(), await make_running(db)
    await complete(db, [completion(job)], tally=tally, now=NOW)
    before = numbers(tally)

    await complete(db, [completion(job)], tally=tally, now=NOW)
    await fail(db, [failure(job)], policy=POLICY, tally=tally, now=NOW)
    await release(db, [held(job)], tally=tally, now=NOW)

    assert numbers(tally) == before


async def test_commit_that_finishes_and_takes_counts_the_end_and_gives_the_wait(db: Database) -> None:
    await set_mode(db, "direct")
    tally, running = Tally(), await make_running(db)
    await make_queued(db, now=at(1.0))

    _, taken = await complete_and_take(db, [completion(running)], [want()], ttl_s=TTL_S, tally=tally, now=at(4.0))

    assert numbers(tally) == {(*CHAT, "finished", "done"): 1, (*CHAT, "attempts", "done"): 1, (*CHAT, "ran"): 1}
    assert [job.waited_s for job in taken] == [pytest.approx(3.0)]


@pytest.mark.parametrize(
    ("retryable", "finished"), [(True, {}), (False, {(*CHAT, "finished", "error"): 1})], ids=["requeued", "dead letter"]
)
async def test_failed_attempt_counts_and_ends_its_job_only_as_dead_letter(
    db: Database, retryable: bool, finished: Numbers
) -> None:
    tally, job = Tally(), await make_running(db)

    await fail(db, [failure(job, retryable=retryable)], policy=POLICY, tally=tally, now=at(0.2))

    assert numbers(tally) == {(*CHAT, "attempts", "failed"): 1, (*CHAT, "ran"): 1, **finished}
    assert tally.tasks[CHAT].run.sum_s == pytest.approx(0.2)


async def test_failure_after_a_cancel_counts_as_canceled(db: Database) -> None:
    tally, job = Tally(), await make_running(db)
    await cancel(db, [job.job_id], tally=tally, now=NOW)
    assert numbers(tally) == {}

    await fail(db, [failure(job)], policy=POLICY, tally=tally, now=NOW)

    assert numbers(tally) == {
        (*CHAT, "attempts", "canceled"): 1,
        (*CHAT, "finished", "canceled"): 1,
        (*CHAT, "ran"): 1,
    }


async def test_released_attempt_counts_without_its_time(db: Database) -> None:
    tally, job = Tally(), await make_running(db)

    await release(db, [held(job)], tally=tally, now=at(9.0))

    assert numbers(tally) == {(*CHAT, "attempts", "released"): 1}


async def test_job_canceled_while_it_waits_ends_without_an_attempt(db: Database) -> None:
    tally, job_ids = Tally(), await make_many(db, 3)

    await cancel(db, job_ids, tally=tally, now=NOW)
    await cancel(db, job_ids, tally=tally, now=NOW)

    assert numbers(tally) == {(*CHAT, "finished", "canceled"): 3}


async def test_job_that_expires_before_its_start_ends_without_an_attempt(db: Database) -> None:
    tally = Tally()
    await make_many(db, 2, expires_at=at(5.0))

    await expire(db, tally=tally, now=at(6.0))

    assert numbers(tally) == {(*CHAT, "finished", "canceled"): 2}


@pytest.mark.parametrize(
    ("max_attempts", "finished"), [(3, {}), (1, {(*CHAT, "finished", "error"): 1})], ids=["requeued", "dead letter"]
)
async def test_reaped_attempt_counts_as_expired(db: Database, max_attempts: int, finished: Numbers) -> None:
    tally = Tally()
    await make_running(db, max_attempts=max_attempts)

    await reap(db, policy=POLICY, tally=tally, now=at(TTL_S + 1))

    assert numbers(tally) == {(*CHAT, "attempts", "expired"): 1, ("expired",): 1, **finished}


async def test_claim_that_takes_over_counts_the_silent_attempt_and_no_wait(db: Database) -> None:
    tally, job = Tally(), await make_running(db)

    (taken,) = await claim(db, [ask(job.job_id)], ttl_s=TTL_S, tally=tally, now=at(TTL_S + 1))

    assert numbers(tally) == {(*CHAT, "attempts", "expired"): 1, ("expired",): 1}
    assert isinstance(taken, ClaimedJob)
    assert taken.waited_s is None


async def test_redriven_job_counts_as_submitted_however_it_is_redriven(db: Database) -> None:
    tally, dead = Tally(), [await _dead(db) for _ in range(2)]

    await redrive(db, [dead[0].job_id], tally=tally, now=NOW)
    await redrive_once(db, [job.job_id for job in dead], tally=tally, now=NOW)

    assert numbers(tally) == {(*CHAT, "submitted"): 2}


async def test_redrive_that_is_undone_counts_nothing(db: Database) -> None:
    tally, dead = Tally(), await _dead(db)

    async def refuse(*_: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await redrive_once(db, [dead.job_id], before_commit=refuse, tally=tally, now=NOW)

    assert numbers(tally) == {}


async def test_waits_count_from_when_a_job_was_due(db: Database) -> None:
    tally, job_id = Tally(), await make_queued(db, delay_s=5.0)

    tally.started([await claim_one(db, job_id, now=at(7.0))])

    assert tally.waits["default"].sum_s == pytest.approx(2.0)


async def test_names_that_are_not_configured_count_as_other(db: Database) -> None:
    tally = Tally({"default"}.__contains__, {"chat"}.__contains__)
    for n in range(50):
        await complete(db, [completion(await make_running(db, queue=f"q{n}", task=f"t{n}"))], tally=tally, now=NOW)
    await complete(db, [completion(await make_running(db, task="gone"))], tally=tally, now=NOW)

    assert numbers(tally) == {
        (OTHER, OTHER, "finished", "done"): 50,
        (OTHER, OTHER, "attempts", "done"): 50,
        (OTHER, OTHER, "ran"): 50,
        ("default", OTHER, "finished", "done"): 1,
        ("default", OTHER, "attempts", "done"): 1,
        ("default", OTHER, "ran"): 1,
    }
    assert len(tally.tasks) == 2


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(-3.0, 0), (0.0, 0), (0.005, 0), (0.0051, 1), (1.0, 4), (7200.0, 12), (1e9, 13)]
)
async def test_duration_falls_into_the_bucket_of_the_first_bound_that_is_not_below_it(
    seconds: float, bucket: int
) -> None:
    histogram = Histogram()

    histogram.add(seconds)

    assert histogram.counts.index(1) == bucket
    assert histogram.cumulative() == [0] * bucket + [1] * (len(BOUNDS_S) + 1 - bucket)
    assert histogram.sum_s == max(0.0, seconds)


async def _dead(db: Database) -> ClaimedJob:
    job = await make_running(db)
    await fail(db, [failure(job, retryable=False)], policy=POLICY, now=NOW)
    return job
