"""Complete: the holder's report ends the job, once; the same report again hears the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio
import asyncpg
import pytest

from jobd.job.model import AlreadyFinished, Completed, Conflicting, Superseded
from jobd.job.status import AttemptOutcome, JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import Completion, complete, complete_and_take
from jobd.lifecycle.fail import fail
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import release
from jobd.store.ids import new_id
from tests.lifecycle.direct import set_mode, want
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
    make_queued,
    make_running,
    one_row,
    outcomes_of,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from jobd.lifecycle.report import Refusal
    from jobd.store.postgres import Database
    from jobd.store.session import Session

DONE = Completed()
REPLAY = AlreadyFinished(outcome=AttemptOutcome.DONE, requeued=False, dead_lettered=False)
SUPERSEDED = Superseded()


async def complete_with_take(
    session: Session, reports: Sequence[Completion], *, now: datetime | None = None
) -> list[Completed | Refusal]:
    """The verb that also takes, with nothing there to take."""
    answers, taken = await complete_and_take(session, reports, [want(3, "empty")], ttl_s=TTL_S, now=now)
    assert taken == []
    return answers


@pytest.fixture(autouse=True, params=[complete, complete_with_take])
async def each_verb(db: Database, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is for each verb that completes."""
    monkeypatch.setattr(sys.modules[__name__], "complete", request.param)
    await set_mode(db, "direct", "empty")


async def finish(db: Database, *reports: Completion, seconds: float = 0) -> list[Any]:
    return list(await complete(db, reports, now=at(seconds)))


async def test_a_report_of_the_holder_ends_the_job(db: Database) -> None:
    claimed = await make_running(db)

    assert await finish(db, completion(claimed, result='{"a": 1}', result_ref="r/1.json"), seconds=5) == [DONE]

    job = await read(db, claimed.job_id)
    assert (job.status, job.result, job.result_ref, job.error) == ("done", '{"a": 1}', "r/1.json", None)
    assert (job.finished_at, job.updated_at, job.version, job.lease_owner) == (at(5), at(5), 3, None)
    (attempt,) = await attempts_of(db, claimed.job_id)
    assert (attempt.number, attempt.attempt_id, attempt.outcome) == (1, claimed.attempt_id, "done")
    assert (attempt.started_at, attempt.ended_at, attempt.owner_id) == (NOW, at(5), "worker-1")
    assert await told_of(db, claimed.job_id) == [("queued", 1), ("running", 2), ("done", 3)]
    await assert_counters_are_right(db)


async def test_the_message_that_brought_the_job_is_told_to_be_acknowledged(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db), stream="jobs:stream", message_id="7-1")

    await finish(db, completion(claimed))

    row = await one_row(db, "SELECT streams, message_ids FROM outbox WHERE event = 'done'")
    assert row == (["jobs:stream"], ["7-1"])


async def test_a_result_may_be_missing(db: Database) -> None:
    claimed = await make_running(db)

    assert await finish(db, completion(claimed, result=None)) == [DONE]
    assert (await read(db, claimed.job_id)).result is None


async def test_the_error_of_an_earlier_attempt_is_gone_when_a_later_one_succeeds(db: Database) -> None:
    first = await make_running(db)
    await fail(db, [failure(first)], policy=POLICY, jitter=0.0, now=NOW)
    second = await claim_one(db, first.job_id, 2)

    await finish(db, completion(second))

    assert (await read(db, first.job_id)).error is None
    assert [attempt.error for attempt in await attempts_of(db, first.job_id)] == ['{"code": "boom"}', None]


async def test_an_expired_lease_that_nobody_took_over_still_completes(db: Database) -> None:
    claimed = await make_running(db)

    assert await finish(db, completion(claimed), seconds=10 * TTL_S) == [DONE]


async def test_a_completion_beats_a_cancel_request(db: Database) -> None:
    claimed = await make_running(db)
    await cancel(db, [claimed.job_id], now=NOW)

    assert await finish(db, completion(claimed)) == [DONE]
    assert await status_of(db, claimed.job_id) is JobStatus.DONE


# The same again, and something else


async def test_the_same_report_again_hears_the_same_and_changes_nothing(db: Database) -> None:
    claimed = await make_running(db)
    await finish(db, completion(claimed))
    before = await all_rows(db)

    assert await finish(db, completion(claimed), seconds=9) == [REPLAY]
    assert await finish(db, completion(claimed), completion(claimed), seconds=99) == [REPLAY, REPLAY]
    assert await all_rows(db) == before


async def test_another_result_for_the_same_attempt_is_a_conflict(db: Database) -> None:
    claimed = await make_running(db)
    await finish(db, completion(claimed))
    before = await all_rows(db)

    (answer,) = await finish(db, completion(claimed, result="{}", outcome_hash=b"other"))

    assert answer == Conflicting(AttemptOutcome.DONE)
    assert (answer.ok, answer.ack) == (False, True)
    assert await all_rows(db) == before


@pytest.mark.parametrize("retryable", [True, False])
async def test_complete_after_fail_is_a_conflict(db: Database, retryable: bool) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed, retryable=retryable)], policy=POLICY, now=NOW)

    assert await finish(db, completion(claimed)) == [Conflicting(AttemptOutcome.FAILED)]


async def test_complete_after_a_failure_that_canceled_is_a_conflict(db: Database) -> None:
    claimed = await make_running(db)
    await cancel(db, [claimed.job_id], now=NOW)
    await fail(db, [failure(claimed)], policy=POLICY, now=NOW)

    assert await finish(db, completion(claimed)) == [Conflicting(AttemptOutcome.CANCELED)]
    assert await status_of(db, claimed.job_id) is JobStatus.CANCELED


async def test_complete_after_release_is_superseded(db: Database) -> None:
    claimed = await make_running(db)
    await release(db, [held(claimed)], now=NOW)

    assert await finish(db, completion(claimed)) == [SUPERSEDED]


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_complete_after_reap_is_superseded(db: Database, max_attempts: int) -> None:
    claimed = await make_running(db, max_attempts=max_attempts)
    await reap(db, policy=POLICY, now=at(TTL_S + 1))
    before = await all_rows(db)

    assert await finish(db, completion(claimed), seconds=TTL_S + 1) == [SUPERSEDED]
    assert await all_rows(db) == before


# Not the holder


@pytest.mark.parametrize("wrong", ["lease_token", "attempt_id", "job_id"])
async def test_a_report_must_prove_job_attempt_and_token(db: Database, wrong: str) -> None:
    claimed = await make_running(db)
    before = await all_rows(db)

    assert await finish(db, completion(claimed, **{wrong: uuid4()})) == [SUPERSEDED]
    assert await all_rows(db) == before


@pytest.mark.parametrize("wrong", ["lease_token", "attempt_id"])
async def test_a_report_on_a_finished_attempt_must_prove_it_too(db: Database, wrong: str) -> None:
    claimed = await make_running(db)
    await finish(db, completion(claimed))

    assert await finish(db, completion(claimed, **{wrong: uuid4()})) == [SUPERSEDED]


async def test_the_token_of_another_job_in_the_same_batch_is_no_proof(db: Database) -> None:
    one, other = await make_running(db), await make_running(db)
    swapped = [
        completion(one, lease_token=other.lease_token, attempt_id=other.attempt_id),
        completion(other, lease_token=one.lease_token),
    ]

    assert await finish(db, *swapped) == [SUPERSEDED, SUPERSEDED]
    assert [await status_of(db, claimed.job_id) for claimed in (one, other)] == [JobStatus.RUNNING] * 2


async def test_the_attempt_of_a_zombie_with_the_token_of_the_holder_is_no_proof(db: Database) -> None:
    zombie = await make_running(db)
    holder = await claim_one(db, zombie.job_id, now=at(TTL_S + 1))

    answers = await finish(
        db,
        completion(zombie, lease_token=holder.lease_token),
        completion(holder, lease_token=zombie.lease_token),
        seconds=TTL_S + 2,
    )

    assert answers == [SUPERSEDED, SUPERSEDED]
    assert await status_of(db, zombie.job_id) is JobStatus.RUNNING


async def test_an_unknown_job_is_not_finished(db: Database) -> None:
    report = Completion(job_id=new_id(), attempt_id=uuid4(), lease_token=uuid4())

    assert await finish(db, report) == [SUPERSEDED]


# Batches


async def test_answers_are_in_the_order_of_the_reports(db: Database) -> None:
    finished, zombie, fine = [await make_running(db) for _ in range(3)]
    await finish(db, completion(finished))
    await claim_one(db, zombie.job_id, now=at(TTL_S + 1))

    answers = await finish(
        db,
        completion(finished, outcome_hash=b"other"),
        completion(fine),
        completion(zombie),
        completion(finished),
        seconds=TTL_S + 2,
    )

    assert answers == [Conflicting(AttemptOutcome.DONE), DONE, SUPERSEDED, REPLAY]
    await assert_counters_are_right(db)


async def test_no_reports_are_no_work(db: Database) -> None:
    assert await finish(db) == []


async def test_a_doubled_report_finishes_once(db: Database) -> None:
    claimed = await make_running(db)

    answers = await finish(db, completion(claimed), completion(claimed), completion(claimed, outcome_hash=b"other"))

    assert answers == [DONE, REPLAY, Conflicting(AttemptOutcome.DONE)]
    assert await outcomes_of(db, claimed.job_id) == ["done"]


@pytest.mark.parametrize("zombie_first", [True, False])
async def test_the_report_of_a_zombie_does_not_cost_the_holder_its_result(db: Database, zombie_first: bool) -> None:
    zombie = await make_running(db)
    holder = await claim_one(db, zombie.job_id, now=at(TTL_S + 1))
    reports = [completion(zombie, result='"zombie"'), completion(holder, result='"holder"')]

    answers = await finish(db, *(reports if zombie_first else reports[::-1]), seconds=TTL_S + 2)

    assert answers == ([SUPERSEDED, DONE] if zombie_first else [DONE, SUPERSEDED])
    assert (await read(db, zombie.job_id)).result == '"holder"'


async def test_a_result_that_is_no_json_fails_the_batch_whole(db: Database) -> None:
    good, bad = await make_running(db), await make_running(db)
    before = await all_rows(db)

    with pytest.raises(asyncpg.DataError):
        await finish(db, completion(good), completion(bad, result="{"))

    assert await all_rows(db) == before


async def test_a_batch_is_told_in_one_row_of_the_outbox(db: Database) -> None:
    claims = [await claim_one(db, job_id) for job_id in await make_many(db, 5)]

    await finish(db, *map(completion, claims))

    assert await db.pool.fetchval("SELECT array_agg(cardinality(job_ids)) FROM outbox WHERE event = 'done'") == [5]


async def test_of_many_who_report_the_same_at_once_one_finishes_and_the_others_hear_so(db: Database) -> None:
    claimed = await make_running(db)
    answers: list[Any] = []

    async def send() -> None:
        answers.extend(await complete(db, [completion(claimed)]))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(send)

    assert answers.count(DONE) == 1
    assert answers.count(REPLAY) == 19
