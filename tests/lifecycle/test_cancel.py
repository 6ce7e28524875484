"""Cancel: at once while queued, through the holder while running, never when final."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.job.model import AlreadyFinal, Canceled, CancelRequested
from jobd.job.status import AttemptOutcome, JobStatus
from jobd.lifecycle.cancel import CancelAnswer, cancel
from jobd.lifecycle.claim import ClaimedJob, Unknown, claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import fail
from jobd.lifecycle.publish import look_ahead, promote_due, select_for_publish
from jobd.store.ids import new_id
from tests.support.claims import take_first
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    all_rows,
    ask,
    assert_counters_are_right,
    at,
    completion,
    failure,
    make_job,
    make_queued,
    make_running,
    outcomes_of,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database

CANCELED = Canceled(None)
REQUESTED = CancelRequested()


async def stop(db: Database, *job_ids: UUID, seconds: float = 0) -> list[CancelAnswer]:
    return await cancel(db, job_ids, now=at(seconds))


async def test_a_queued_job_is_canceled_at_once(db: Database) -> None:
    job_id = await make_queued(db)

    assert await stop(db, job_id, seconds=5) == [CANCELED]

    job = await read(db, job_id)
    assert (job.status, job.finished_at, job.cancel_requested, job.version) == ("canceled", at(5), True, 2)
    assert await outcomes_of(db, job_id) == []
    assert await told_of(db, job_id) == [("queued", 1), ("canceled", 2)]
    await assert_counters_are_right(db)


@pytest.mark.parametrize("delay_s", [0, 60])
async def test_a_canceled_job_is_never_offered_or_claimed(db: Database, delay_s: float) -> None:
    job_id = await make_queued(db, delay_s=delay_s)
    await stop(db, job_id)

    assert await promote_due(db, now=at(100)) == []
    assert (await look_ahead(db, now=NOW)).due_in_s is None
    assert await select_for_publish(db, ["default"], most=5) == []
    assert await take_first(db, ["default"], owner_id="w", most=5, ttl_s=TTL_S, now=at(100)) == []
    (answer,) = await claim(db, [ask(job_id)], ttl_s=TTL_S, now=at(100))
    assert not isinstance(answer, ClaimedJob)


async def test_a_job_that_waits_for_its_retry_is_canceled_at_once(db: Database) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed)], policy=POLICY, now=NOW)

    assert await stop(db, claimed.job_id) == [CANCELED]
    assert await outcomes_of(db, claimed.job_id) == ["failed"]


async def test_a_running_job_is_marked_and_runs_on(db: Database) -> None:
    claimed = await make_running(db)

    assert await stop(db, claimed.job_id, seconds=5) == [REQUESTED]

    job = await read(db, claimed.job_id)
    assert (job.status, job.cancel_requested, job.finished_at, job.version) == ("running", True, None, 3)
    assert (job.lease_owner, job.updated_at) == ("worker-1", at(5))
    assert (await told_of(db, claimed.job_id))[-1] == ("cancel_requested", 3)
    await assert_counters_are_right(db)


async def test_a_running_job_may_be_canceled_again(db: Database) -> None:
    claimed = await make_running(db)

    assert await stop(db, claimed.job_id) == [REQUESTED]
    assert await stop(db, claimed.job_id) == [REQUESTED]
    assert await status_of(db, claimed.job_id) is JobStatus.RUNNING


@pytest.mark.parametrize("status", [JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELED])
async def test_a_final_job_does_not_change(db: Database, status: JobStatus) -> None:
    job_id = await make_job(db, status)
    before = await all_rows(db)

    assert await stop(db, job_id, seconds=5) == [AlreadyFinal(status)]
    assert await all_rows(db) == before


async def test_an_unknown_job_is_unknown(db: Database) -> None:
    assert await stop(db, new_id()) == [Unknown()]


async def test_a_mixed_batch_is_answered_in_its_order(db: Database) -> None:
    queued, running = await make_queued(db), (await make_running(db)).job_id
    done, nobody = await make_job(db, JobStatus.DONE), new_id()

    answers = await stop(db, nobody, done, running, queued, running, queued)

    expected = [Unknown(), AlreadyFinal(JobStatus.DONE), REQUESTED, CANCELED, REQUESTED, CANCELED]
    assert answers == expected
    assert await stop(db) == []
    events = await db.pool.fetch("SELECT event, job_ids FROM outbox WHERE event LIKE 'cancel%' ORDER BY event")
    assert [tuple(row) for row in events] == [("cancel_requested", [running]), ("canceled", [queued])]
    await assert_counters_are_right(db)


async def test_a_cancel_that_races_with_a_completion_lets_one_of_them_be_first(db: Database) -> None:
    for _ in range(20):
        claimed = await make_running(db)
        answers: list[CancelAnswer] = []

        async def ask_to_stop(job_id: UUID = claimed.job_id, answers: list[CancelAnswer] = answers) -> None:
            answers.extend(await cancel(db, [job_id]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_to_stop)
            await complete(db, [completion(claimed)])

        assert answers in ([REQUESTED], [AlreadyFinal(JobStatus.DONE)])
        assert await status_of(db, claimed.job_id) is JobStatus.DONE
        assert await outcomes_of(db, claimed.job_id) == [AttemptOutcome.DONE.value]


async def test_batches_in_any_order_do_not_deadlock(db: Database) -> None:
    claims = [await make_running(db) for _ in range(30)]
    ids = [claimed.job_id for claimed in claims]

    async def work(turn: int) -> None:
        await cancel(db, ids if turn % 2 else ids[::-1])

    async with anyio.create_task_group() as tasks:
        for turn in range(20):
            tasks.start_soon(work, turn)

    assert await db.pool.fetchval("SELECT count(*) FROM jobs WHERE cancel_requested") == 30
