"""Steps of Postgres' clock while nodes are at work, on real servers."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.auth.table import create_token, read_tokens
from jobd.config.model import Config, Leases, Retention
from jobd.engine.results import Results
from jobd.job.model import Completed, NotClaimable, NotClaimableReason
from jobd.job.retry import RetryPolicy
from jobd.lifecycle.admit import QueueLimits, admit
from jobd.lifecycle.claim import Ask, claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, NewJob, enqueue
from jobd.lifecycle.expire import expire
from jobd.lifecycle.fail import fail
from jobd.lifecycle.heartbeat import heartbeat
from jobd.lifecycle.lease import LeaseProof, acquire
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.reap import reap
from jobd.maintenance.janitor import Janitor
from jobd.store.ids import new_id
from jobd.store.postgres import Database
from jobd.store.statements import all_statements
from jobd.supervise.service import Handle
from tests.support import servers
from tests.support.claims import take_first
from tests.support.clock import TO_1970_S, TO_2056_S, set_clock
from tests.support.factories import completion, failure, new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob

PACKAGES = (
    *("jobd.lifecycle", "jobd.auth", "jobd.tickets", "jobd.tickets.pollers", "jobd.store"),
    *("jobd.files", "jobd.batches", "jobd.schedules"),
)
CONFIG = Config(leases=Leases(ttl_s=3, heartbeat_s=0.3))


@pytest.fixture
async def node(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as node:
            yield node


async def take(node: Node, most: int = 1) -> list[ClaimedJob]:
    with anyio.fail_after(15):
        return await node.dispatcher.take(("default",), f"test-{new_id()}", most)


@pytest.mark.parametrize("off_by_s", [-3600.0, TO_1970_S, TO_2056_S])
async def test_jobs_in_line_are_taken_by_their_messages_whatever_the_clock_says(node: Node, off_by_s: float) -> None:
    jobs = [await node.enqueue() for _ in range(3)]
    await wait_until_async(lambda: _all_offered(node, len(jobs)))
    epoch = await node.redis.get("jobd:epoch")

    await set_clock(node.database.pool, off_by_s)
    taken = [job for _ in jobs for job in await take(node)]

    assert [job.job_id for job in taken] == [job.id for job in jobs]
    assert all(job.message_id is not None for job in taken)
    assert await node.redis.get("jobd:epoch") == epoch


# Retention and keys


@pytest.mark.parametrize("restarts", [False, True], ids=["while it runs", "while it is off"])
async def test_no_step_deletes_a_finished_job_or_ends_a_key(
    shared_postgres: str, tmp_path: Path, restarts: bool
) -> None:
    url, jobs = await new_database(shared_postgres), list[NewJob]()
    database, opened = await _open(url)
    try:
        for off_by_s in (TO_1970_S, 0.0, TO_2056_S, -3600.0, TO_2056_S, TO_1970_S, 3600.0, 0.0):
            if restarts:
                await database.clock.mark_last()
                await set_clock(database.pool, off_by_s)
                await opened.aclose()
                database, opened = await _open(url)
            else:
                await set_clock(database.pool, off_by_s)
            jobs.append(await _finished_with_key(database, f"key-{len(jobs)}"))
            swept = await Janitor(database, Results(tmp_path, lambda: CONFIG), lambda: CONFIG).run_once(_handle())

            assert (swept.jobs, swept.memories) == (0, 0)
            again = [(await enqueue(database, [_with_key(f"key-{n}")]))[0] for n in range(len(jobs))]
            assert again == [Existing(job.id) for job in jobs]
    finally:
        await opened.aclose()


async def test_what_ended_in_the_future_goes_when_its_time_is_over(shared_postgres: str, tmp_path: Path) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    async with opened:
        await set_clock(database.pool, TO_2056_S)
        await database.clock.check()
        await _finished_with_key(database, "key")
        await set_clock(database.pool, 0.0)

        config = Config(retention=Retention(jobs_s=0))
        swept = await Janitor(database, Results(tmp_path, lambda: config), lambda: config).run_once(_handle())

        assert swept.jobs == 1


# Waits

STEPS = [TO_1970_S, TO_2056_S, -3600.0, 3600.0]


async def _waits_s(database: Database) -> list[float]:
    """How long each delayed job waits from now on by Postgres' clock, in the order of their ids."""
    rows = await database.pool.fetch(
        "SELECT extract(epoch FROM due_at - clock(NULL))::float8 AS s FROM jobs WHERE due_at IS NOT NULL ORDER BY id"
    )
    return [row["s"] for row in rows]


@pytest.mark.parametrize("restarts", [False, True], ids=["while it runs", "while it is off"])
@pytest.mark.parametrize("off_by_s", STEPS)
async def test_delay_and_backoff_last_as_long_as_they_should(
    shared_postgres: str, off_by_s: float, restarts: bool
) -> None:
    url = await new_database(shared_postgres)
    database, opened = await _open(url)
    await enqueue(database, [new_job(delay_s=600)])
    await _failed(database, base_s=600)
    try:
        for step in (off_by_s, 0.0):
            if restarts:
                await database.clock.mark_last()
            await set_clock(database.pool, step)
            if restarts:
                await opened.aclose()
                database, opened = await _open(url)
            else:
                await enqueue(database, [new_job(delay_s=600)])  # before anybody has noticed
                assert await promote_due(database.pool) == []
                await database.clock.check()

            waits = await _waits_s(database)
            assert waits == pytest.approx([600.0] * len(waits), abs=60)
            assert await promote_due(database.pool) == []
            await enqueue(database, [new_job(delay_s=0.01)])
            await wait_until_async(functools.partial(promote_due, database.pool))
    finally:
        await opened.aclose()


@pytest.mark.parametrize("off_by_s", STEPS)
async def test_no_step_expires_a_job_or_uses_up_a_rate(shared_postgres: str, off_by_s: float) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    limits = {"default": QueueLimits(rate=1, rate_s=600.0)}
    async with opened:
        await enqueue(database, [new_job(expires_in_s=600), new_job(delay_s=300, expires_in_s=600)])
        await enqueue(database, [new_job(queue="rated", limit_key="a") for _ in range(2)])
        await database.execute("INSERT INTO limit_starts VALUES ('rated', 'a', clock(NULL))")

        for step in (off_by_s, 0.0):
            await set_clock(database.pool, step)
            assert await expire(database) == []  # before anybody has noticed
            await database.clock.check()

            assert await expire(database) == []
            assert await admit(database, {"rated": limits["default"]}) == set()
            left = await database.pool.fetch(
                "SELECT extract(epoch FROM expires_at - clock(NULL))::float8 AS s FROM jobs WHERE queue = 'default'"
            )
            assert [row["s"] for row in left] == pytest.approx([600.0, 600.0], abs=60)


async def test_run_after_is_an_instant_of_the_clock(shared_postgres: str) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    async with opened:
        instant = await database.pool.fetchval("SELECT clock_timestamp() + interval '1 hour'")
        job = new_job(run_after=instant)
        await enqueue(database, [job])

        await set_clock(database.pool, TO_1970_S)
        await database.clock.check()
        early = await promote_due(database.pool)
        await set_clock(database.pool, 7200.0)
        await database.clock.check()
        late = await promote_due(database.pool)

        assert (early, late) == ([], [job.id])
        assert await database.pool.fetchval("SELECT run_after FROM jobs") == instant


async def test_new_jobs_do_not_go_before_those_in_line_when_the_clock_went_back(shared_postgres: str) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    async with opened:
        jobs = [new_job(), new_job()]
        await enqueue(database, jobs[:1])

        await set_clock(database.pool, TO_1970_S)
        await database.clock.check()
        await enqueue(database, jobs[1:])

        claimed = await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=60)
        assert [job.job_id for job in claimed] == [jobs[0].id]


@pytest.mark.parametrize("off_by_s", STEPS)
async def test_no_step_lets_others_take_what_raw_workers_may_be_at_work_on(
    shared_postgres: str, off_by_s: float
) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    async with opened:
        await enqueue(database, [new_job()])
        await database.pool.execute("INSERT INTO queues (name, raw_seen_at) VALUES ('default', clock(NULL))")

        for step in (off_by_s, 0.0):
            await set_clock(database.pool, step)
            for _ in ("before anybody has noticed", "afterwards"):
                assert await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=60) == []
                await database.clock.check()


# Leases


@pytest.mark.parametrize("off_by_s", STEPS)
async def test_no_step_takes_a_lease_from_a_living_holder(shared_postgres: str, off_by_s: float) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    async with opened:
        job, order = new_job(), new_id()
        await enqueue(database, [job])
        (held,) = await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=60)
        await acquire(database.pool, "WORKORDER", [order], owner_id="w", ttl_s=60)

        for step in (off_by_s, 0.0):
            await set_clock(database.pool, step)
            for _ in ("before anybody has noticed", "afterwards"):
                message = Ask(job_id=job.id, enqueue_id=1, owner_id="other")
                assert await claim(database.pool, [message], ttl_s=60) == [NotClaimable(NotClaimableReason.LEASED)]
                assert await acquire(database.pool, "WORKORDER", [order], owner_id="other", ttl_s=60) == [None]
                assert await reap(database.pool, policy=RetryPolicy()) == []
                await heartbeat(database.pool, [LeaseProof(resource_id=job.id, lease_token=held.lease_token)], ttl_s=60)
                await database.clock.check()

            rows = await database.pool.fetch(
                "SELECT extract(epoch FROM lease_expires_at - clock(NULL))::float8 AS s FROM leases"
            )
            assert [row["s"] for row in rows] == pytest.approx([30.0, 30.0], abs=31)


async def test_silent_holder_is_reaped_in_time_though_the_clock_went_back(shared_postgres: str) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    async with opened:
        await enqueue(database, [new_job()])
        await take_first(database.pool, ["default"], owner_id="silent", most=1, ttl_s=0.5)

        await set_clock(database.pool, TO_1970_S)
        await database.clock.check()

        async def is_reaped() -> bool:
            return len(await reap(database.pool, policy=RetryPolicy())) == 1

        await wait_until_async(is_reaped)


# Tokens


async def test_token_that_has_expired_stays_so_while_the_clock_is_behind(shared_postgres: str) -> None:
    database, opened = await _open(await new_database(shared_postgres))
    async with opened, database.pool.acquire() as session:
        for name, days in (("old", -0.01), ("new", 30.0)):
            await create_token(
                session,
                "test",
                id=f"{len(name) + int(days):08x}",
                name=name,
                sha256=b"x" * 32,
                scopes=["client"],
                expires_days=days,
            )

        async def valid() -> list[str]:
            return [row.name for row in await read_tokens(session) if (row.expires_in_s or 0) > 0]

        for off_by_s, names in ((-3600.0, ["new"]), (TO_1970_S, ["new"]), (TO_2056_S, []), (0.0, ["new"])):
            await set_clock(session, off_by_s)
            assert await valid() == names
            await database.clock.check()
            assert await valid() == names


# All together


async def test_two_nodes_run_each_job_once_and_in_its_time_over_steps(shared_postgres: str, folder: Path) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as first, Node(url, redis_url, CONFIG).running() as second:
            running = await first.enqueue()
            (held,) = await take(first)
            hold = first.leases.hold(held)
            submitted = time.monotonic()
            delayed = await second.enqueue(delay_s=6)

            for off_by_s in (TO_1970_S, TO_2056_S, -3600.0, 0.0):
                await set_clock(first.database.pool, off_by_s)
                due = await second.enqueue()
                (taken,) = await take(second)
                assert taken.job_id == due.id
                await second.done(taken)
                await anyio.sleep(1)

            (late,) = await take(second)
            assert late.job_id == delayed.id
            assert time.monotonic() - submitted > 5.5
            assert not hold.lost.is_set()
            assert isinstance(await first.done(held), Completed)
            await second.done(late)
            rows = await first.database.pool.fetch("SELECT status, attempt_no FROM jobs")
            assert {(row["status"], row["attempt_no"]) for row in rows} == {("done", 1)}
            assert running.id == held.job_id


# Nobody else looks at a clock


def test_every_statement_asks_the_clock_through_its_function() -> None:
    texts = {name: text for package in PACKAGES for name, text in all_statements(package).items()}

    assert len(texts) > 50
    strays = re.compile(
        r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp)\(\)|current_timestamp", re.I
    )
    assert [name for name, text in texts.items() if strays.search(text)] == []


def test_no_job_file_or_batch_ends_by_a_clock_that_may_be_wrong() -> None:
    """The ends of waits are compared with `agreed_clock`, which is null until a step has been noticed."""
    packages = ("jobd.lifecycle", "jobd.files", "jobd.batches")
    texts = {name: text for package in packages for name, text in all_statements(package).items()}

    strays = re.compile(r"(expires_at|due_at|next_at)\s*[<>]=?\s*\(?(SELECT\s+)?clock\(", re.I)
    assert [name for name, text in texts.items() if strays.search(text)] == []


async def _failed(database: Database, base_s: float) -> None:
    await enqueue(database, [new_job(queue="other")])
    (claimed,) = await take_first(database.pool, ["other"], owner_id="w", most=1, ttl_s=60)
    await fail(database.pool, [failure(claimed)], policy=RetryPolicy(base_s=base_s, cap_s=base_s), jitter=1.0)


async def _open(url: str) -> tuple[Database, contextlib.AsyncExitStack]:
    """As a jobd that starts: it looks at the clock before anything else."""
    database, stack = Database(url, 4), contextlib.AsyncExitStack()
    await stack.enter_async_context(database.opened())
    await database.clock.check()
    return database, stack


async def _finished_with_key(database: Database, key: str) -> NewJob:
    job = _with_key(key)
    assert await enqueue(database, [job]) == [Created(job.id)]
    (claimed,) = await take_first(database.pool, ["default"], owner_id="w", most=1, ttl_s=60)
    await complete(database.pool, [completion(claimed)])
    return job


def _with_key(key: str) -> NewJob:
    return new_job(key=IdempotencyKey(principal="p", key=key, body_hash=b"body", life_s=86_400))


def _handle() -> Handle:
    return Handle(lambda: None)


async def _all_offered(node: Node, number: int) -> bool:
    return bool(await node.redis.xlen("jobs:stream") == number)
