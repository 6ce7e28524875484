"""Rollups: whatever ends an attempt or a job is counted once, in its minute, with how long it waited and ran."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import ClaimedJob, claim
from jobd.lifecycle.complete import complete, complete_and_take
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.fail import fail
from jobd.lifecycle.modes import change_mode, ensure_queues
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import release
from jobd.lifecycle.rollups import (
    BOUNDS_S,
    Rollup,
    RunTimes,
    prune_rollups,
    read_rollups,
    read_run_times,
    roll_up,
)
from jobd.lifecycle.take import Want
from jobd.store.clock_eras import Past
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
    make_job,
    make_many,
    make_queued,
    make_running,
    new_job,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jobd.store.postgres import Database

LATER = NOW + timedelta(days=1)
COUNTS = ("done", "error", "canceled", "failed", "expired")


async def rolled(db: Database, **terms: Any) -> list[Rollup]:
    """Everything that has ended so far, and at NOW or later."""
    while await roll_up(db, most=100):
        pass
    found = await read_rollups(db, **{"since": NOW, "until": LATER, **terms})
    assert found.next_at is None
    return found.rollups


def counts(rollup: Rollup) -> dict[str, int]:
    return {name: getattr(rollup, name) for name in COUNTS if getattr(rollup, name)}


def bucket(seconds: float) -> list[int]:
    """One attempt of this duration."""
    place = sum(seconds >= bound for bound in BOUNDS_S)
    return [int(n == place) for n in range(len(BOUNDS_S) + 1)]


# -- what is counted ---------------------------------------------------------------------------------------------------


async def done(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db), now=at(3))
    await complete(db, [completion(claimed)], now=at(10))


async def failed_for_good(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db), now=at(3))
    await fail(db, [failure(claimed, retryable=False)], policy=POLICY, now=at(10))


async def failed_and_queued_again(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db), now=at(3))
    await fail(db, [failure(claimed)], policy=POLICY, now=at(10))


async def canceled_while_running(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db), now=at(3))
    await cancel(db, [claimed.job_id], now=at(4))
    await release(db, [held(claimed)], now=at(10))


async def expired(db: Database) -> None:
    await claim_one(db, await make_queued(db), now=at(3), ttl_s=1)
    assert len(await reap(db, policy=POLICY, now=at(10))) == 1


async def expired_for_good(db: Database) -> None:
    await claim_one(db, await make_queued(db, max_attempts=1), now=at(3), ttl_s=1)
    assert len(await reap(db, policy=POLICY, now=at(10))) == 1


async def taken_over(db: Database) -> None:
    job_id = await make_queued(db)
    await claim_one(db, job_id, now=at(3), ttl_s=1)
    await claim(db, [ask(job_id)], ttl_s=TTL_S, now=at(10))


ENDS: list[tuple[Callable[[Database], Awaitable[None]], dict[str, int]]] = [
    (done, {"done": 1}),
    (failed_for_good, {"error": 1, "failed": 1}),
    (failed_and_queued_again, {"failed": 1}),
    (canceled_while_running, {"canceled": 1}),
    (expired, {"expired": 1}),
    (expired_for_good, {"error": 1, "expired": 1}),
    (taken_over, {"expired": 1}),
]


@pytest.mark.parametrize(("end", "counted"), ENDS, ids=lambda value: getattr(value, "__name__", ""))
async def test_an_attempt_is_counted_with_its_wait_and_its_run(
    db: Database, end: Callable[[Database], Awaitable[None]], counted: dict[str, int]
) -> None:
    await end(db)

    (rollup,) = await rolled(db)

    assert (rollup.at, rollup.queue, rollup.task) == (NOW, "default", "chat")
    assert counts(rollup) == counted
    assert (rollup.wait_s, rollup.run_s) == (3, 7)
    assert (rollup.waits, rollup.runs) == (bucket(3), bucket(7))


async def test_a_queued_job_that_is_canceled_is_counted_without_an_attempt(db: Database) -> None:
    await make_job(db, JobStatus.CANCELED)

    (rollup,) = await rolled(db)

    assert counts(rollup) == {"canceled": 1}
    assert (rollup.wait_s, rollup.run_s, sum(rollup.waits), sum(rollup.runs)) == (0, 0, 0, 0)


async def test_what_does_not_end_an_attempt_is_not_counted(db: Database) -> None:
    await make_queued(db)
    await cancel(db, [(await make_running(db)).job_id], now=NOW)
    await release(db, [held(await make_running(db))], now=at(1))

    assert await rolled(db) == []


async def test_a_report_that_is_sent_again_is_counted_once(db: Database) -> None:
    claimed = await make_running(db)
    for _ in range(2):
        await complete(db, [completion(claimed)], now=at(1))

    assert [counts(rollup) for rollup in await rolled(db)] == [{"done": 1}]


async def test_a_retry_waits_from_the_end_of_its_backoff(db: Database) -> None:
    first = await make_running(db)
    await fail(db, [failure(first)], policy=POLICY, jitter=1.0, now=NOW)  # due again after 8 s
    again = await claim_one(db, first.job_id, 2, now=at(10))
    await complete(db, [completion(again)], now=at(10))

    (rollup,) = await rolled(db)

    assert counts(rollup) == {"done": 1, "failed": 1}
    assert rollup.wait_s == 2


async def test_complete_and_take_counts_what_it_completes(db: Database) -> None:
    await ensure_queues(db, ["default"])
    await change_mode(db, "default", "direct", mode_no=1)
    claimed = await make_running(db)
    await make_queued(db)
    wants = [Want("default", ["w"])]

    await complete_and_take(db, [completion(claimed)], wants, ttl_s=TTL_S, now=at(1))

    assert [counts(rollup) for rollup in await rolled(db)] == [{"done": 1}]


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.02, 7199, 7200, 1e6])
async def test_sql_and_python_know_the_same_buckets(db: Database, seconds: float) -> None:
    assert await db.fetchval("SELECT bucket_of($1)", seconds) == bucket(seconds).index(1)


async def test_a_clock_that_was_set_back_makes_no_negative_time(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db, at(100)), now=at(100))
    await complete(db, [completion(claimed)], now=at(50))

    (rollup,) = await rolled(db)

    assert (rollup.run_s, rollup.runs) == (0, bucket(0))


# -- by minute, queue and task -----------------------------------------------------------------------------------------


async def end_at(db: Database, seconds: float, **changes: Any) -> None:
    claimed = await make_running(db, at(seconds), **changes)
    await complete(db, [completion(claimed)], now=at(seconds))


async def test_each_minute_queue_and_task_has_one_row(db: Database) -> None:
    for seconds in (0, 59, 60):
        for queue, task in (("default", "chat"), ("fast", "chat"), ("fast", "embed")):
            await end_at(db, seconds, queue=queue, task=task)
            await roll_up(db, most=100)

    found = await rolled(db)

    assert [(rollup.at, rollup.queue, rollup.task, rollup.done) for rollup in found] == [
        (minute, queue, task, number)
        for minute, number in ((NOW, 2), (at(60), 1))
        for queue, task in (("default", "chat"), ("fast", "chat"), ("fast", "embed"))
    ]
    assert await db.fetchval("SELECT count(*) FROM rollups") == 6
    assert [rollup.task for rollup in await rolled(db, queue="fast", until=at(60))] == ["chat", "embed"]
    assert [rollup.queue for rollup in await rolled(db, task="chat", until=at(60))] == ["default", "fast"]


async def test_minutes_are_added_up_to_hours(db: Database) -> None:
    for seconds in (0, 60, 3599, 3600):
        await end_at(db, seconds)

    found = await rolled(db, step="hour")

    assert [(rollup.at, rollup.done, sum(rollup.runs)) for rollup in found] == [(NOW, 3, 3), (at(3600), 1, 1)]


@pytest.mark.parametrize("step", ["minute", "hour"])
async def test_a_stretch_of_many_rows_goes_on_where_it_was_cut_and_loses_none(db: Database, step: Any) -> None:
    for seconds in range(0, 7200, 600):
        for queue in ("default", "fast"):
            await end_at(db, seconds, queue=queue)
    whole = await rolled(db, step=step)

    found, since = [], NOW
    for _ in range(100):
        stretch = await read_rollups(db, since=since, until=LATER, step=step, most=3)
        found += stretch.rollups
        if stretch.next_at is None:
            break
        since = stretch.next_at

    assert found == whole


async def test_parts_of_a_large_batch_and_of_many_commits_add_up(db: Database) -> None:
    job_ids = await make_many(db, 500)
    claimed = await claim(db, [ask(job_id) for job_id in job_ids], ttl_s=TTL_S, now=NOW)
    await complete(db, [completion(job) for job in claimed if isinstance(job, ClaimedJob)], now=at(1))
    for _ in range(3):
        await end_at(db, 2)

    taken = [await roll_up(db, most=2) for _ in range(3)]

    assert taken == [2, 2, 0]
    (rollup,) = await rolled(db)
    assert (rollup.done, sum(rollup.waits), sum(rollup.runs), rollup.run_s) == (503, 503, 503, 500)


async def test_two_nodes_roll_up_at_once_and_count_once(db: Database) -> None:
    for _ in range(40):
        await end_at(db, 0)

    async def node() -> None:
        while await roll_up(db, most=3):
            pass

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(node)

    assert [rollup.done for rollup in await rolled(db)] == [40]


async def test_a_commit_that_is_undone_leaves_no_part(db: Database) -> None:
    claimed = await make_running(db)
    with pytest.raises(ZeroDivisionError):
        async with db.connection() as connection, connection.transaction():
            await complete(connection, [completion(claimed)], now=NOW)
            raise ZeroDivisionError

    assert await rolled(db) == []


# -- run times and retention -------------------------------------------------------------------------------------------


async def test_run_times_are_of_the_latest_minutes_only(db: Database) -> None:
    for started, ended in ((0, 10), (3600, 3604), (3600, 3602)):
        claimed = await make_running(db, at(started))
        await complete(db, [completion(claimed)], now=at(ended))
    await rolled(db)

    assert await read_run_times(db, at(3600)) == {"default": RunTimes(2, 6.0)}
    assert await read_run_times(db, LATER) == {}


async def test_old_rollups_are_pruned_in_batches_and_not_those_to_be_kept(db: Database) -> None:
    for seconds in range(0, 600, 60):
        await end_at(db, seconds)
    await rolled(db)
    kept = (at(120).timestamp(), at(180).timestamp())

    pruned = [await prune_rollups(db, Past(at(540).timestamp(), [kept]), most=4) for _ in range(3)]

    assert pruned == [4, 3, 0]
    assert [rollup.at for rollup in await rolled(db)] == [at(120), at(180), at(540)]


async def test_rollups_outlive_their_jobs(db: Database) -> None:
    await enqueue(db, [new_job()], now=NOW)
    await end_at(db, 0)
    before = await rolled(db)
    await db.execute("DELETE FROM jobs")

    assert await rolled(db) == before
