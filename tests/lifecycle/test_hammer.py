"""Eight connections hammer two hundred jobs with every verb: no deadlock shows, no job ends twice, none is lost."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import anyio
import asyncpg
import pytest

from jobd.job.machine import TRANSITIONS
from jobd.job.retry import RetryPolicy
from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import Ask, ClaimedJob, claim
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.fail import Failure, fail
from jobd.lifecycle.heartbeat import heartbeat
from jobd.lifecycle.lease import LeaseProof
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.read import queue_stats
from jobd.lifecycle.reap import reap
from jobd.lifecycle.release import release
from jobd.lifecycle.report import Held
from tests.support.claims import take_first
from tests.support.factories import new_job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.store.postgres import Database

JOBS, CONNECTIONS = 200, 8
#: Leases so short that many expire while their holders are still at it, and hardly a wait before the next attempt.
TTL_S = 0.05
POLICY = RetryPolicy(base_s=0.001, cap_s=0.01)

LEGAL = {(row.source, row.target) for row in TRANSITIONS}
STATUS_AFTER = {
    **{status.value: status for status in JobStatus},
    "requeued": JobStatus.QUEUED,
    "cancel_requested": JobStatus.RUNNING,
}


@pytest.mark.timeout(180)
async def test_hammering_loses_and_doubles_nothing(db: Database) -> None:
    await hammer(db, seconds=4.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_hammering_for_half_a_minute_loses_and_doubles_nothing(db: Database) -> None:
    await hammer(db, seconds=30.0)


async def hammer(db: Database, *, seconds: float) -> None:
    jobs = [new_job(max_attempts=100) for _ in range(JOBS)]
    await enqueue(db, jobs)
    ids = [job.id for job in jobs]
    claims: list[ClaimedJob] = []
    calls = [0]
    deadline = time.monotonic() + seconds
    deadlocks = await db.pool.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")

    async def work() -> None:
        while time.monotonic() < deadline:
            await one_call(db, ids, claims)
            calls[0] += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(CONNECTIONS):
            tasks.start_soon(work)
    await run_to_the_end(db)

    after = await db.pool.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    doubled = await db.pool.fetchval(
        "SELECT count(*) FROM (SELECT FROM attempts WHERE outcome = 'done' GROUP BY job_id HAVING count(*) > 1) t"
    )
    unfinished = await db.pool.fetchval("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
    (stats,) = await queue_stats(db)
    counted = await db.pool.fetch("SELECT status, count(*) AS n FROM jobs GROUP BY status")
    assert (doubled, unfinished) == (0, 0)
    assert {row["status"]: row["n"] for row in counted} == {
        name: number
        for name, number in (("done", stats.done), ("error", stats.error), ("canceled", stats.canceled))
        if number
    }
    assert (stats.queued, stats.running) == (0, 0)
    assert await db.pool.fetchval("SELECT count(*) FROM leases") == 0
    await check_history(db)
    assert calls[0] > 100
    assert after - deadlocks <= calls[0] / 100, f"{after - deadlocks} deadlocks were mended in {calls[0]} calls"


async def check_history(db: Database) -> None:
    """By its outbox rows, each job took every step once, along legal edges, and none after its end."""
    statuses: dict[UUID, list[JobStatus]] = {}
    for row in await db.pool.fetch(
        "SELECT event, t.* FROM outbox, unnest(job_ids, versions) AS t (job_id, version) ORDER BY seq"
    ):
        statuses.setdefault(row["job_id"], []).append(STATUS_AFTER[row["event"]])
        assert row["version"] == len(statuses[row["job_id"]]), "a change is missing or is there twice"
    ended: dict[UUID, list[str]] = {}
    for row in await db.pool.fetch("SELECT job_id, number, outcome FROM attempts ORDER BY job_id, number"):
        ended.setdefault(row["job_id"], []).append(row["outcome"])
        assert row["number"] == len(ended[row["job_id"]]), "an attempt is missing"
    for job in await db.pool.fetch("SELECT id, status, version, attempt_no, attempt_count FROM jobs"):
        passed, outcomes = statuses[job["id"]], ended.get(job["id"], [])
        assert set(zip([None, *passed[:-1]], passed, strict=True)) <= LEGAL
        assert (passed[-1].value, len(passed)) == (job["status"], job["version"])
        assert outcomes.count("done") == (job["status"] == "done")
        assert (job["attempt_no"], job["attempt_count"]) == (len(outcomes), len(outcomes) - outcomes.count("released"))


async def one_call(db: Database, ids: Sequence[UUID], claims: list[ClaimedJob]) -> None:
    """One verb over a random batch; claims are kept for ever, so most of what is reported comes from zombies."""
    batch = random.sample(ids, random.randint(1, 50))
    held = random.sample(claims, min(len(claims), random.randint(1, 50)))
    match random.randrange(8):
        case 0:
            asks = [Ask(job_id=job_id, enqueue_id=random.randint(1, 30), owner_id="w") for job_id in batch]
            found = await claim(db, asks, ttl_s=TTL_S)
            claims += [answer for answer in found if isinstance(answer, ClaimedJob)]
        case 1 | 2:
            claims += await take_first(db, ["default"], owner_id="w", most=len(batch), ttl_s=TTL_S)
        case 3:
            await heartbeat(
                db, [LeaseProof(resource_id=one.job_id, lease_token=one.lease_token) for one in held], ttl_s=TTL_S
            )
        case 4 if random.random() < 0.1:
            await complete(db, [completion(one) for one in held])
        case 5:
            await fail(db, [failure(one) for one in held], policy=POLICY)
        case 6:
            await release(db, [holder(one) for one in held])
        case _:
            await promote_due(db)
            await reap(db, policy=POLICY, most=len(batch))
            if random.random() < 0.01:
                await cancel(db, batch[:2])


def completion(job: ClaimedJob) -> Completion:
    return Completion(job_id=job.job_id, attempt_id=job.attempt_id, lease_token=job.lease_token)


def failure(job: ClaimedJob) -> Failure:
    return Failure(job_id=job.job_id, attempt_id=job.attempt_id, lease_token=job.lease_token, error='{"code": "x"}')


def holder(job: ClaimedJob) -> Held:
    return Held(job_id=job.job_id, attempt_id=job.attempt_id, lease_token=job.lease_token)


async def run_to_the_end(db: Database) -> None:
    """Heal: reap what is left, then claim and complete until nothing is."""
    with anyio.fail_after(20):
        while await db.pool.fetchval("SELECT EXISTS (SELECT FROM jobs WHERE finished_at IS NULL)"):
            try:
                await reap(db, policy=POLICY)
                await promote_due(db)
                claimed = await take_first(db, ["default"], owner_id="healer", most=100, ttl_s=60)
                await complete(db, [completion(one) for one in claimed])
            except asyncpg.PostgresError as error:
                raise AssertionError(f"healing failed: {error}") from error
