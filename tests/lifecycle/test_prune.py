"""Prune: old finished jobs go with all that belongs to them, and leave their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.job.status import FINAL_STATUSES, JobStatus
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, enqueue
from jobd.lifecycle.prune import delete_jobs, prune, prune_memories, read_result_refs
from jobd.lifecycle.read import gone_among, list_dead_letters, read_jobs
from jobd.lifecycle.search import search_jobs
from jobd.store.ids import new_id
from tests.support.factories import (
    NOW,
    assert_counters_are_right,
    at,
    completion,
    make_job,
    make_many,
    make_queued,
    make_running,
    new_job,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database

DAY_S = 86400.0


@pytest.mark.parametrize("status", list(JobStatus))
async def test_only_finished_jobs_are_pruned(db: Database, status: JobStatus) -> None:
    job_id = await make_job(db, status)

    pruned = await prune(db, keep_s=DAY_S, now=at(DAY_S + 1))

    assert pruned.jobs == (status in FINAL_STATUSES)
    assert (await read_jobs(db, [job_id]) == {}) == (status in FINAL_STATUSES)
    await assert_counters_after_prune(db)


async def assert_counters_after_prune(db: Database) -> None:
    """The counters of a queue that became empty stay, at nought."""
    if await db.pool.fetchval("SELECT count(*) FROM jobs"):
        await assert_counters_are_right(db)
    else:
        total = await db.pool.fetchval("SELECT sum(queued + running + done + error + canceled) FROM queue_counts")
        assert total == 0


@pytest.mark.parametrize(("seconds", "pruned"), [(DAY_S, 0), (DAY_S + 0.001, 1)])
async def test_a_job_is_kept_for_the_whole_time(db: Database, seconds: float, pruned: int) -> None:
    await make_job(db, JobStatus.DONE)

    assert (await prune(db, keep_s=DAY_S, now=at(seconds))).jobs == pruned


async def test_all_that_belongs_to_a_job_goes_with_it(db: Database) -> None:
    dead, other = await make_job(db, JobStatus.ERROR), await make_job(db, JobStatus.ERROR, at(DAY_S))
    for job_id in (dead, other):
        await db.pool.execute("INSERT INTO event_log VALUES ($1, 1, 1, 2, '[]', $2)", job_id, NOW)

    await prune(db, keep_s=DAY_S, now=at(DAY_S + 1))

    for table in ("attempts", "event_log", "dead_letters"):
        assert [row["job_id"] for row in await db.pool.fetch(f"SELECT job_id FROM {table}")] == [other]
    assert [letter.job_id for letter in (await list_dead_letters(db)).letters] == [other]


async def test_the_files_of_pruned_results_are_told(db: Database) -> None:
    large, later = await make_running(db), await make_running(db, at(DAY_S))
    await complete(db, [completion(large, result=None, result_ref="results/ab/old.json")], now=NOW)
    await complete(db, [completion(later, result=None, result_ref="results/ab/new.json")], now=at(DAY_S))
    await make_job(db, JobStatus.DONE)
    ids = [large.job_id, later.job_id, new_id()]
    assert await read_result_refs(db, ids) == {"results/ab/old.json", "results/ab/new.json"}

    pruned = await prune(db, keep_s=DAY_S, now=at(DAY_S + 1))

    assert (pruned.jobs, pruned.result_refs) == (2, ["results/ab/old.json"])
    assert await read_result_refs(db, ids) == {"results/ab/new.json"}


async def test_a_pruned_id_is_gone_and_not_unknown_for_a_while(db: Database) -> None:
    old, unknown = await make_job(db, JobStatus.DONE), new_id()
    await prune(db, keep_s=DAY_S, now=at(DAY_S + 1))

    assert await gone_among(db, [old, unknown]) == {old}
    await prune_memories(db, keep_gone_s=DAY_S, now=at(2 * DAY_S + 1))
    assert await gone_among(db, [old, unknown]) == {old}
    await prune_memories(db, keep_gone_s=DAY_S, now=at(2 * DAY_S + 2))
    assert await gone_among(db, [old, unknown]) == set()


async def test_batches_of_bounded_size_reach_every_old_job(db: Database) -> None:
    for _ in range(5):
        await make_job(db, JobStatus.DONE)
    kept = await make_job(db, JobStatus.DONE, at(DAY_S))
    queued = await make_queued(db)

    counts = [(await prune(db, keep_s=DAY_S, most=2, now=at(DAY_S + 1))).jobs for _ in range(4)]

    assert counts == [2, 2, 1, 0]
    assert {job.id for job in (await search_jobs(db)).jobs} == {kept, queued}
    assert await db.pool.fetchval("SELECT count(*) FROM gone_jobs") == 5
    await assert_counters_are_right(db)


async def test_two_who_prune_at_once_skip_what_the_other_is_pruning(db: Database) -> None:
    for _ in range(4):
        await make_job(db, JobStatus.DONE)
    async with db.pool.acquire() as other, other.transaction():
        assert (await prune(other, keep_s=DAY_S, most=3, now=at(DAY_S + 1))).jobs == 3

        with anyio.fail_after(20):
            assert (await prune(db, keep_s=DAY_S, now=at(DAY_S + 1))).jobs == 1


async def test_expired_keys_are_forgotten_and_others_are_not(db: Database) -> None:
    def key(name: str, life_s: float) -> IdempotencyKey:
        return IdempotencyKey(principal="p", key=name, body_hash=b"b", life_s=life_s)

    short, long = new_job(key=key("short", 10)), new_job(key=key("long", 100))
    await enqueue(db, [short, long], now=NOW)

    assert await prune_memories(db, keep_gone_s=DAY_S, now=at(10)) == 0
    assert await prune_memories(db, keep_gone_s=DAY_S, now=at(11)) == 1

    again = [new_job(key=key("short", 10)), new_job(key=key("long", 100))]
    assert await enqueue(db, again, now=at(11)) == [Created(again[0].id), Existing(long.id)]


async def test_memories_go_in_batches_too(db: Database) -> None:
    ids = await make_many(db, 5)
    await db.pool.execute("INSERT INTO gone_jobs SELECT unnest($1::uuid[]), $2", ids, NOW)

    counts = [await prune_memories(db, keep_gone_s=1, most=2, now=at(2)) for _ in range(4)]

    assert counts == [2, 2, 1, 0]


# Deleted by somebody


@pytest.mark.parametrize("status", list(JobStatus))
async def test_only_finished_jobs_are_deleted(db: Database, status: JobStatus) -> None:
    job_id, other = await make_job(db, status), await make_job(db, status)

    deleted = await delete_jobs(db, [job_id, new_id(), job_id])

    is_final = status in FINAL_STATUSES
    assert deleted.jobs == is_final
    assert set(await read_jobs(db, [job_id, other])) == ({other} if is_final else {job_id, other})
    assert await gone_among(db, [job_id, other]) == ({job_id} if is_final else set())
    await assert_counters_are_right(db)


async def test_all_that_belongs_to_a_deleted_job_goes_with_it(db: Database) -> None:
    changes: dict[str, Any] = {"labels": '{"team": "vision"}', "owner": "ann", "spec_hash": b"s" * 32}
    dead, other = await make_job(db, JobStatus.ERROR, **changes), await make_job(db, JobStatus.ERROR, **changes)
    for job_id in (dead, other):
        await db.pool.execute("INSERT INTO event_log VALUES ($1, 1, 1, 2, '[]', $2)", job_id, NOW)

    await delete_jobs(db, [dead])

    for table in ("attempts", "event_log", "dead_letters", "job_labels", "job_specs"):
        assert {row["job_id"] for row in await db.pool.fetch(f"SELECT job_id FROM {table}")} == {other}, table


async def test_deleted_results_are_told_and_what_changes_meanwhile_is_left(db: Database) -> None:
    claimed, locked = await make_running(db), await make_job(db, JobStatus.DONE)
    await complete(db, [completion(claimed, result=None, result_ref="results/ab/x.json")], now=NOW)

    async with db.connection() as connection, connection.transaction():
        await connection.fetch("SELECT FROM jobs WHERE id = $1 FOR UPDATE", locked)
        deleted = await delete_jobs(db, [claimed.job_id, locked])

    assert (deleted.jobs, deleted.result_refs) == (1, ["results/ab/x.json"])
    assert set(await read_jobs(db, [claimed.job_id, locked])) == {locked}


async def test_what_is_recorded_with_a_delete_stands_and_falls_with_it(db: Database) -> None:
    job_id = await make_job(db, JobStatus.DONE)

    async def fail(_: object, number: int) -> None:
        raise ZeroDivisionError(number)

    with pytest.raises(ZeroDivisionError, match="1"):
        await delete_jobs(db, [job_id], before_commit=fail)

    assert set(await read_jobs(db, [job_id])) == {job_id}
