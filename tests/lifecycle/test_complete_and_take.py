"""Complete and take: the holders' reports and the next jobs, in one statement and one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import asyncpg
import pytest

from jobd.job.model import AlreadyFinished, Completed, Superseded
from jobd.job.status import AttemptOutcome, JobStatus
from jobd.lifecycle.complete import complete_and_take
from jobd.lifecycle.take import Want, take
from tests.lifecycle.direct import set_mode, want
from tests.support.factories import (
    NOW,
    TTL_S,
    all_rows,
    assert_counters_are_right,
    at,
    completion,
    make_many,
    make_queued,
    make_running,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database

DONE = Completed()
REPLAY = AlreadyFinished(outcome=AttemptOutcome.DONE, requeued=False, dead_lettered=False)


@pytest.fixture(autouse=True)
async def direct(db: Database) -> None:
    await set_mode(db, "direct", "default", "other")


async def test_a_report_ends_its_job_and_the_next_one_starts(db: Database) -> None:
    held, waiting = await make_running(db), await make_queued(db, payload='{"a": 1}')

    answers, (taken,) = await complete_and_take(db, [completion(held)], [want(1)], ttl_s=TTL_S, now=at(5))

    assert answers == [DONE]
    assert (taken.job_id, taken.payload, taken.attempt_no, taken.owner_id) == (waiting, '{"a": 1}', 1, "default-1")
    assert (taken.stream, taken.message_id, taken.lease_expires_at) == (None, None, at(5 + TTL_S))
    job = await read(db, waiting)
    assert (job.status, job.started_at, job.lease_owner) == ("running", at(5), "default-1")
    assert (await read(db, held.job_id)).finished_at == at(5)
    assert await told_of(db, held.job_id) == [("queued", 1), ("running", 2), ("done", 3)]
    assert await told_of(db, waiting) == [("queued", 1), ("running", 2)]
    await assert_counters_are_right(db)


async def test_both_are_told_by_one_row_of_the_outbox_each(db: Database) -> None:
    held = [await make_running(db) for _ in range(3)]
    await make_many(db, 2)
    last = await db.fetchval("SELECT max(seq) FROM outbox")

    await complete_and_take(db, [completion(job) for job in held], [want(2)], ttl_s=TTL_S, now=NOW)

    rows = await db.fetch(
        "SELECT event, cardinality(job_ids) AS jobs, streams, message_ids, event_ns FROM outbox WHERE seq > $1", last
    )
    assert {row["event"]: row["jobs"] for row in rows} == {"done": 3, "running": 2}
    assert {row["event"]: row["streams"] for row in rows} == {"done": [None] * 3, "running": [""] * 2}
    assert {row["event"]: row["event_ns"] for row in rows} == {"done": [1] * 3, "running": None}


async def test_queues_of_both_halves_are_counted_once_each(db: Database) -> None:
    """A queue whose jobs end and start, one whose jobs only end, one whose jobs only start."""
    ended = [await make_running(db), await make_running(db, queue="ends"), await make_running(db)]
    await make_many(db, 2)
    await make_many(db, 2, queue="other")

    answers, taken = await complete_and_take(
        db, [completion(job) for job in ended], [want(2, "other"), want(1)], ttl_s=TTL_S, now=NOW
    )

    assert (answers, sorted(job.queue for job in taken)) == ([DONE] * 3, ["default", "other", "other"])
    await assert_counters_are_right(db)


async def test_reports_that_are_refused_do_not_keep_anyone_from_a_job(db: Database) -> None:
    done, zombie, waiting = await make_running(db), await make_running(db), await make_queued(db)
    await complete_and_take(db, [completion(done)], [], ttl_s=TTL_S, now=NOW)
    await db.execute("DELETE FROM leases WHERE resource_id = $1", zombie.job_id)

    answers, taken = await complete_and_take(
        db, [completion(zombie), completion(done)], [want(1)], ttl_s=TTL_S, now=NOW
    )

    assert answers == [Superseded(), REPLAY]
    assert [job.job_id for job in taken] == [waiting]


async def test_a_queue_that_may_not_be_taken_from_does_not_keep_a_report_from_its_end(db: Database) -> None:
    held, waiting = await make_running(db), await make_queued(db)
    await set_mode(db, "stream")

    answers, taken = await complete_and_take(db, [completion(held)], [want(1)], ttl_s=TTL_S, now=NOW)

    assert (answers, taken) == ([DONE], [])
    assert await status_of(db, waiting) is JobStatus.QUEUED


async def test_a_result_that_is_no_json_fails_both_halves(db: Database) -> None:
    held = await make_running(db)
    await make_queued(db)
    before = await all_rows(db)

    with pytest.raises(asyncpg.DataError):
        await complete_and_take(db, [completion(held, result="{")], [want(1)], ttl_s=TTL_S, now=NOW)

    assert await all_rows(db) == before


async def test_nothing_reported_and_nothing_wanted_writes_nothing(db: Database) -> None:
    before = await all_rows(db)

    assert await complete_and_take(db, [], [], ttl_s=TTL_S, now=NOW) == ([], [])

    assert await all_rows(db) == before


async def test_of_many_who_complete_and_take_at_once_each_job_runs_once_and_ends_once(db: Database) -> None:
    ids = await make_many(db, 200)
    ended: list[object] = []

    async def work(owner: str) -> None:
        wants = [Want("default", [owner] * 7)]
        held = await take(db, wants, ttl_s=TTL_S)
        while held:
            reports = [completion(job) for job in held]
            answers, held = await complete_and_take(db, reports, wants, ttl_s=TTL_S)
            assert answers == [DONE] * len(reports)
            ended.extend(report.job_id for report in reports)

    async with anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(work, f"owner-{n}")

    assert sorted(map(str, ended)) == sorted(map(str, ids))
    assert {await status_of(db, job_id) for job_id in ids} == {JobStatus.DONE}
    await assert_counters_are_right(db)
