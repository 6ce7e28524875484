"""Reap: only the overdue, page by page, never twice, and never what a holder still renews."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from jobd.job.history import INTERRUPTIONS_EXHAUSTED
from jobd.job.model import NotClaimable, NotClaimableReason, Superseded
from jobd.job.retry import RetryPolicy, backoff_s
from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.heartbeat import heartbeat
from jobd.lifecycle.lease import acquire
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import list_dead_letters
from jobd.lifecycle.reap import ReapCounts, counted, reap
from jobd.store.ids import new_id
from jobd.store.leader import NODE_PREFIX
from tests.support.factories import (
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
    make_queued,
    make_running,
    one_row,
    outcomes_of,
    read,
    status_of,
    told_of,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database

OVERDUE = TTL_S + 2


async def sweep(db: Database, seconds: float = OVERDUE, jitter: float = 0.5, **changes: Any) -> ReapCounts:
    return counted(await reap(db, policy=POLICY, jitter=jitter, now=at(seconds), **changes))


async def test_a_job_whose_lease_expired_is_put_back_after_a_backoff(db: Database) -> None:
    claimed = await make_running(db)

    assert await sweep(db) == ReapCounts(requeued=1, late_s=2.0)

    job = await read(db, claimed.job_id)
    assert (job.status, job.enqueue_id, job.run_after) == ("queued", 2, at(OVERDUE + 4))
    assert (job.attempt_no, job.attempt_count, job.lease_owner, job.finished_at) == (1, 1, None, None)
    assert job.error is not None and "lease_expired" in job.error
    (attempt,) = await attempts_of(db, claimed.job_id)
    assert (attempt.attempt_id, attempt.outcome, attempt.ended_at) == (claimed.attempt_id, "expired", at(OVERDUE))
    assert (await told_of(db, claimed.job_id))[-1] == ("requeued", 3)
    await assert_counters_are_right(db)


async def test_the_message_that_brought_the_job_is_told_to_be_acknowledged(db: Database) -> None:
    await claim_one(db, await make_queued(db), stream="s", message_id="1-1")

    await sweep(db)

    row = await one_row(db, "SELECT streams, message_ids FROM outbox WHERE event = 'requeued'")
    assert row == (["s"], ["1-1"])


@pytest.mark.parametrize(
    ("seconds", "grace_s", "reaped"), [(TTL_S, 0, 0), (TTL_S + 0.001, 0, 1), (TTL_S + 5, 5, 0), (TTL_S + 5.1, 5, 1)]
)
async def test_a_lease_must_be_past_its_expiry_by_the_grace(
    db: Database, seconds: float, grace_s: float, reaped: int
) -> None:
    await make_running(db)

    assert (await sweep(db, seconds, grace_s=grace_s)).total == reaped


async def test_a_renewed_lease_is_left_alone(db: Database) -> None:
    claimed = await make_running(db)
    await heartbeat(db, [beat(claimed)], ttl_s=TTL_S, now=at(30))

    assert await sweep(db) == ReapCounts()
    assert await status_of(db, claimed.job_id) is JobStatus.RUNNING


async def test_the_backoff_is_that_of_a_failure(db: Database) -> None:
    policy = RetryPolicy(base_s=8.0, cap_s=20.0)
    claimed, seconds = await make_running(db, max_attempts=5), 0.0
    for attempt in range(1, 5):
        seconds += OVERDUE

        await reap(db, policy=policy, jitter=1.0, now=at(seconds))

        seconds += backoff_s(policy, attempt - 1, 1.0)
        assert (await read(db, claimed.job_id)).run_after == at(seconds)
        await claim_one(db, claimed.job_id, attempt + 1, now=at(seconds))


async def test_every_job_draws_its_own_jitter(db: Database) -> None:
    claims = [await make_running(db) for _ in range(10)]

    await reap(db, policy=POLICY, now=at(OVERDUE))

    assert len({(await read(db, claimed.job_id)).run_after for claimed in claims}) > 1


async def test_a_job_that_always_silences_its_worker_ends_as_a_dead_letter(db: Database) -> None:
    claimed, seconds = await make_running(db, max_attempts=3), 0.0
    for enqueue_id in (2, 3):
        seconds += OVERDUE
        assert (await sweep(db, seconds, jitter=0.0)).requeued == 1
        await claim_one(db, claimed.job_id, enqueue_id, now=at(seconds))

    seconds += OVERDUE
    assert await sweep(db, seconds) == ReapCounts(dead_lettered=1, late_s=2.0)

    job = await read(db, claimed.job_id)
    assert (job.status, job.attempt_count, job.finished_at) == ("error", 3, at(seconds))
    assert await outcomes_of(db, claimed.job_id) == ["expired"] * 3
    assert [letter.reason for letter in (await list_dead_letters(db)).letters] == ["attempts_exhausted"]
    await assert_counters_are_right(db)


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_a_job_that_was_to_be_canceled_is_canceled(db: Database, max_attempts: int) -> None:
    claimed = await make_running(db, max_attempts=max_attempts)
    await cancel(db, [claimed.job_id], now=at(0))

    assert await sweep(db) == ReapCounts(canceled=1, late_s=2.0)
    assert await status_of(db, claimed.job_id) is JobStatus.CANCELED
    assert await outcomes_of(db, claimed.job_id) == ["expired"]
    assert (await list_dead_letters(db)).letters == []
    await assert_counters_are_right(db)


async def test_what_was_completed_is_not_reaped(db: Database) -> None:
    claimed = await make_running(db)
    await complete(db, [completion(claimed)], now=at(OVERDUE))
    before = await all_rows(db)

    assert await sweep(db) == ReapCounts()
    assert await all_rows(db) == before


async def test_leases_that_are_not_of_jobs_are_left_alone(db: Database) -> None:
    await acquire(db, "EVENT", [new_id()], owner_id="w", ttl_s=TTL_S, now=at(0))

    assert await sweep(db, 10 * OVERDUE) == ReapCounts()
    assert await db.pool.fetchval("SELECT count(*) FROM leases") == 1


async def test_pages_of_bounded_size_reach_every_overdue_lease_once(db: Database) -> None:
    claims = [await make_running(db, max_attempts=1 + n % 2) for n in range(10)]
    await make_running(db, ttl_s=1000)

    totals = [(await sweep(db, most=4)).total for _ in range(4)]

    assert totals == [4, 4, 2, 0]
    assert {tuple(await outcomes_of(db, claimed.job_id)) for claimed in claims} == {("expired",)}
    await assert_counters_are_right(db)


async def test_the_counts_say_what_became_of_a_mixed_page(db: Database) -> None:
    for n in range(6):
        claimed = await make_running(db, at(n), max_attempts=1 if n < 2 else 3)
        if n == 5:
            await cancel(db, [claimed.job_id], now=at(n))

    assert await sweep(db, 100) == ReapCounts(requeued=3, dead_lettered=2, canceled=1, late_s=100 - TTL_S)


async def test_a_lease_that_another_is_working_on_is_skipped_without_waiting(db: Database) -> None:
    busy, free = await make_running(db), await make_running(db)
    async with db.pool.acquire() as other, other.transaction():
        await heartbeat(other, [beat(busy)], ttl_s=TTL_S, now=at(OVERDUE))

        with anyio.fail_after(20):
            assert (await sweep(db)).total == 1

    assert await status_of(db, busy.job_id) is JobStatus.RUNNING
    assert await status_of(db, free.job_id) is JobStatus.QUEUED
    assert (await sweep(db)).total == 0


async def test_two_reapers_at_once_share_the_work(db: Database) -> None:
    for _ in range(60):
        await make_running(db)
    totals: list[int] = []

    async def work() -> None:
        while total := len(await reap(db, policy=POLICY, most=7, now=at(OVERDUE))):
            totals.append(total)

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(work)

    # One that finds only leases which others hold just then goes home early; nothing is reaped twice.
    totals.append((await sweep(db)).total)
    assert sum(totals) == 60
    assert await db.pool.fetchval("SELECT count(*) FROM attempts WHERE outcome = 'expired'") == 60
    await assert_counters_are_right(db)


async def test_a_reaped_job_runs_again(db: Database) -> None:
    claimed = await make_running(db)
    await sweep(db)

    assert await promote_due(db, now=at(OVERDUE + 4)) == [claimed.job_id]
    again = await claim_one(db, claimed.job_id, 2, now=at(OVERDUE + 4))
    assert (again.attempt_no, again.attempt_count) == (2, 2)


# Interruptions: the leases of the slots of a node

NODE = f"{NODE_PREFIX}host:{new_id()}"


async def cut(db: Database, seconds: float, **policy: Any) -> ReapCounts:
    """The node starts again."""
    return counted(await reap(db, policy=replace(POLICY, **policy), jitter=0.5, now=at(seconds), dead_owners=[NODE]))


async def test_the_stop_of_a_node_is_an_interruption_and_costs_no_attempt(db: Database) -> None:
    claimed = await make_running(db, owner_id=NODE)

    assert await sweep(db) == ReapCounts(requeued=1, interrupted=1, late_s=2.0)

    job = await read(db, claimed.job_id)
    assert (job.status, job.enqueue_id, job.run_after) == ("queued", 2, at(OVERDUE + 4))
    assert (job.attempt_no, job.attempt_count, job.interruptions) == (1, 0, 1)
    assert job.error is not None and '"interrupted"' in job.error
    assert await outcomes_of(db, claimed.job_id) == ["interrupted"]
    again = await claim_one(db, claimed.job_id, 2, now=at(OVERDUE + 4))
    assert (again.attempt_no, again.attempt_count) == (2, 1)
    assert again.lease_token != claimed.lease_token
    await assert_counters_are_right(db)


async def test_a_node_that_starts_again_does_not_wait_for_its_leases_to_expire(db: Database) -> None:
    own, other = await make_running(db, owner_id=NODE), await make_running(db, owner_id="w")

    assert await cut(db, 1) == ReapCounts(requeued=1, interrupted=1, late_s=1 - TTL_S)

    assert await status_of(db, own.job_id) is JobStatus.QUEUED
    assert await status_of(db, other.job_id) is JobStatus.RUNNING


async def test_a_name_from_before_names_had_a_prefix_is_known_to_be_dead_too(db: Database) -> None:
    claimed = await make_running(db, owner_id="host:old")

    reaped = await reap(db, policy=POLICY, now=at(1), dead_owners=["host:old"])

    assert [job.interrupted for job in reaped] == [True]
    assert (await read(db, claimed.job_id)).attempt_count == 0


async def test_more_cuts_than_attempts_make_no_dead_letter(db: Database) -> None:
    claimed = await make_running(db, max_attempts=1, owner_id=NODE)
    for enqueue_id in range(2, 10):
        assert (await cut(db, 1000 * enqueue_id)).requeued == 1
        claimed = await claim_one(db, claimed.job_id, enqueue_id, now=at(1000 * enqueue_id + 500), owner_id=NODE)

    await complete(db, [completion(claimed)], now=at(10_000))

    job = await read(db, claimed.job_id)
    assert (job.status, job.attempt_no, job.attempt_count, job.interruptions) == ("done", 9, 1, 8)


@pytest.mark.parametrize("most", [0, 2])
async def test_a_job_that_always_takes_its_node_down_ends_as_a_dead_letter(db: Database, most: int) -> None:
    claimed = await make_running(db, owner_id=NODE)
    for enqueue_id in range(2, 2 + most):
        assert (await cut(db, 1000 * enqueue_id, max_interruptions=most)).requeued == 1
        await claim_one(db, claimed.job_id, enqueue_id, now=at(1000 * enqueue_id + 500), owner_id=NODE)

    counts = await cut(db, 100_000, max_interruptions=most)

    assert (counts.dead_lettered, counts.interrupted) == (1, 1)
    job = await read(db, claimed.job_id)
    assert (job.status, job.attempt_count, job.interruptions) == ("error", 0, most + 1)
    assert job.error is not None and msgspec.json.decode(job.error) == msgspec.json.decode(INTERRUPTIONS_EXHAUSTED)
    assert [letter.reason for letter in (await list_dead_letters(db)).letters] == ["interruptions_exhausted"]
    await assert_counters_are_right(db)


async def test_the_bound_is_that_of_the_task(db: Database) -> None:
    strict, usual = await make_running(db, task="strict", owner_id=NODE), await make_running(db, owner_id=NODE)
    policies = {"strict": replace(POLICY, max_interruptions=0)}

    await reap(db, policy=POLICY, task_policies=policies, now=at(1), dead_owners=[NODE])

    assert await status_of(db, strict.job_id) is JobStatus.ERROR
    assert await status_of(db, usual.job_id) is JobStatus.QUEUED


async def test_failures_and_interruptions_have_their_bounds_apart(db: Database) -> None:
    claimed = await make_running(db, max_attempts=2, owner_id=NODE)
    await cut(db, 1, max_interruptions=1)
    claimed = await claim_one(db, claimed.job_id, 2, now=at(100), owner_id="w")

    assert await sweep(db, 100 + OVERDUE, jitter=0.0) == ReapCounts(requeued=1, late_s=2.0)

    job = await read(db, claimed.job_id)
    assert (job.attempt_no, job.attempt_count, job.interruptions) == (2, 1, 1)
    assert await outcomes_of(db, claimed.job_id) == ["interrupted", "expired"]


async def test_an_interrupted_job_that_was_to_be_canceled_is_canceled(db: Database) -> None:
    claimed = await make_running(db, owner_id=NODE)
    await cancel(db, [claimed.job_id], now=at(0))

    assert (await cut(db, 1, max_interruptions=0)).canceled == 1
    assert await outcomes_of(db, claimed.job_id) == ["interrupted"]
    await assert_counters_are_right(db)


async def test_what_a_node_that_stood_still_reports_late_is_refused(db: Database) -> None:
    zombie = await make_running(db, owner_id=NODE)
    await sweep(db)
    await claim_one(db, zombie.job_id, 2, now=at(OVERDUE + 4))

    (answer,) = await complete(db, [completion(zombie)], now=at(OVERDUE + 5))

    assert answer == Superseded()
    assert await status_of(db, zombie.job_id) is JobStatus.RUNNING


async def test_the_expired_lease_of_a_node_is_not_taken_over_by_a_message(db: Database) -> None:
    claimed = await make_running(db, owner_id=NODE)

    (answer,) = await claim(db, [ask(claimed.job_id)], ttl_s=TTL_S, now=at(OVERDUE))

    assert answer == NotClaimable(NotClaimableReason.LEASED)
