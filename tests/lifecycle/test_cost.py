"""What a verb costs does not grow with the table: looked at in pages touched, and by the clock in the slow form."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from jobd.job.retry import RetryPolicy
from jobd.lifecycle.claim import Ask, ClaimedJob, claim
from jobd.lifecycle.complete import Completion, complete, complete_and_take
from jobd.lifecycle.enqueue import IdempotencyKey, enqueue
from jobd.lifecycle.enqueue_insert import insert, insert_keyed
from jobd.lifecycle.heartbeat import heartbeat
from jobd.lifecycle.lease import LeaseProof
from jobd.lifecycle.modes import change_mode
from jobd.lifecycle.publish import select_for_publish
from jobd.lifecycle.reap import reap
from jobd.lifecycle.take import TakeTerms, Want, take
from jobd.store.ids import new_id
from tests.lifecycle.bulk import fill
from tests.support.factories import new_job, truncate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from jobd.store.postgres import Database
    from jobd.store.session import Session

BATCH = 100
WANTS = [Want("backlog", ["w"] * BATCH)]
KEYS: dict[str, Callable[[], list[IdempotencyKey | None]]] = {
    "enqueue_and_take": lambda: [None] * BATCH,
    "enqueue_keyed_and_take": lambda: [IdempotencyKey("p", str(new_id()), b"body", 3600.0) for _ in range(BATCH)],
}


@pytest.fixture
async def connection(db: Database) -> AsyncIterator[Session]:
    async with db.pool.acquire() as connection:
        yield connection
    await truncate(db)


async def claimed_batch(db: Database, connection: Session, *, ttl_s: float = 600) -> list[ClaimedJob]:
    jobs = [new_job(max_attempts=100) for _ in range(BATCH)]
    await enqueue(db, jobs)
    asks = [Ask(job_id=job.id, enqueue_id=1, owner_id="w") for job in jobs]
    found = await claim(connection, asks, ttl_s=ttl_s)
    return [one for one in found if isinstance(one, ClaimedJob)]


def proof(claimed: ClaimedJob) -> dict[str, Any]:
    return {"job_id": claimed.job_id, "attempt_id": claimed.attempt_id, "lease_token": claimed.lease_token}


async def measured(db: Database, connection: Session, rounds: int) -> dict[str, tuple[float, float]]:
    """For each verb over 100 jobs: the median of pages touched and of seconds."""
    await change_mode(connection, "backlog", "direct", mode_no=1)
    await enqueue(db, [new_job(queue="backlog", max_attempts=100) for _ in range(2 * BATCH)])  # so some always wait
    runs: dict[str, list[tuple[float, float]]] = {}

    async def run(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        before, started = await pages(connection), time.perf_counter()
        answer = await call()
        runs.setdefault(name, []).append((await pages(connection) - before, time.perf_counter() - started))
        return answer

    for _ in range(rounds):
        jobs = [new_job(max_attempts=100) for _ in range(BATCH)]
        await enqueue(db, jobs)
        await run("publish", partial(select_for_publish, connection, ["default"], most=BATCH))
        asks = [Ask(job_id=job.id, enqueue_id=1, owner_id="w") for job in jobs]
        held = await run("claim", partial(claim, connection, asks, ttl_s=600))
        beats = [LeaseProof(resource_id=one.job_id, lease_token=one.lease_token) for one in held]
        await run("heartbeat", partial(heartbeat, connection, beats, ttl_s=600))
        reports = [Completion(**proof(one)) for one in held]
        await run("complete", partial(complete, connection, reports))
        # The queue `backlog` is the long one of a full table.
        await enqueue(db, [new_job(queue="backlog", max_attempts=100) for _ in range(2 * BATCH)])
        held = await run("take", partial(take, connection, WANTS, ttl_s=600))
        reports = [Completion(**proof(one)) for one in held]
        _, held = await run("complete_and_take", partial(complete_and_take, connection, reports, WANTS, ttl_s=600))
        await complete(connection, [Completion(**proof(one)) for one in held])
        for name, keys in KEYS.items():
            fresh = [new_job(queue="backlog", max_attempts=100, key=key) for key in keys()]
            verb = insert if fresh[0].key is None else partial(insert_keyed, locked_ms=20)
            taken = await run(name, partial(verb, connection, fresh, 10**7, TakeTerms(WANTS, 600), None))
            await complete(connection, [Completion(**proof(one)) for one in taken.claimed])
        await claimed_batch(db, connection, ttl_s=-1)
        await run("reap", partial(reap, connection, policy=RetryPolicy(base_s=3600, cap_s=3600)))
    return {
        name: (statistics.median(one[0] for one in found), statistics.median(one[1] for one in found))
        for name, found in runs.items()
    }


async def pages(connection: Session) -> int:
    """Pages that this session has touched in tables and indexes."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    number = await connection.fetchval(
        """SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::bigint
        FROM pg_statio_user_tables WHERE schemaname = 'jobd'"""
    )
    assert isinstance(number, int)
    return number


@pytest.mark.timeout(300)
async def test_pages_touched_do_not_grow_with_the_table(db: Database, connection: Session) -> None:
    small = await measured(db, connection, 5)
    await truncate(db)
    await fill(connection, finished=50_000, queued=10_000)

    large = await measured(db, connection, 5)

    # Few rows lie side by side and share pages, so a few pages for each job are no growth.
    grown = {name: (small[name][0], large[name][0]) for name in small if large[name][0] > 2 * small[name][0]}
    assert {name: both for name, both in grown.items() if both[1] > 4 * BATCH} == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_time_does_not_grow_with_a_million_finished_and_a_hundred_thousand_queued(
    db: Database, connection: Session
) -> None:
    await fill(connection, finished=1_000, queued=0)
    small = await measured(db, connection, 30)
    await truncate(db)
    await fill(connection, finished=1_000_000, queued=100_000)

    large = await measured(db, connection, 30)

    ratios = {name: round(large[name][1] / small[name][1], 2) for name in small}
    assert max(ratios.values()) <= 1.5, ratios


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_direct", [False, True])
async def test_lifecycles_without_a_pause_do_not_slow_down(db: Database, connection: Session, is_direct: bool) -> None:
    wants = [Want("default", ["w"] * 500)]
    await change_mode(connection, "default", "direct", mode_no=1)
    held: Sequence[object] = []
    times: list[float] = []
    for n in range(400):
        if n % 40 == 0:  # 20 000 jobs, as many as autovacuum waits for: a take goes past what others took since
            await connection.execute("VACUUM jobs")
        jobs = [new_job() for _ in range(500)]
        await enqueue(db, jobs)
        asks = [Ask(job_id=job.id, enqueue_id=1, owner_id="w") for job in jobs]
        started = time.perf_counter()
        if is_direct:
            reports = [Completion(**proof(one)) for one in held if isinstance(one, ClaimedJob)]
            _, held = await complete_and_take(connection, reports, wants, ttl_s=600)
        else:
            held = await claim(connection, asks, ttl_s=600)
            reports = [Completion(**proof(one)) for one in held if isinstance(one, ClaimedJob)]
            await complete(connection, reports)
        times.append(time.perf_counter() - started)

    ratio = statistics.median(times[-40:]) / statistics.median(times[10:50])
    assert ratio <= 1.5, ratio
