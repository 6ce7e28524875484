"""Steps of Postgres' clock while nodes are at work, on real servers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.config import Config, Leases, Retention
from jobd.ids import new_id
from jobd.lifecycle.claim import poll_claim
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, NewJob, enqueue
from jobd.results import Results
from jobd.service import Handle
from jobd.services.janitor import Janitor
from jobd.store.postgres import Database
from tests.support import servers
from tests.support.clock import TO_1970_S, TO_2056_S, set_clock
from tests.support.factories import completion
from tests.support.node import Node, eventually, new_database, new_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob

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
    await eventually(lambda: _all_offered(node, len(jobs)))
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
        await database.clock.look()
        await _finished_with_key(database, "key")
        await set_clock(database.pool, 0.0)

        config = Config(retention=Retention(jobs_s=0))
        swept = await Janitor(database, Results(tmp_path, lambda: config), lambda: config).run_once(_handle())

        assert swept.jobs == 1


async def _open(url: str) -> tuple[Database, contextlib.AsyncExitStack]:
    """As a jobd that starts: it looks at the clock before anything else."""
    database, stack = Database(url, 4), contextlib.AsyncExitStack()
    await stack.enter_async_context(database.opened())
    await database.clock.look()
    return database, stack


async def _finished_with_key(database: Database, key: str) -> NewJob:
    job = _with_key(key)
    assert await enqueue(database, [job]) == [Created(job.id)]
    (claimed,) = await poll_claim(database.pool, ["default"], owner_id="w", most=1, ttl_s=60)
    await complete(database.pool, [completion(claimed)])
    return job


def _with_key(key: str) -> NewJob:
    return new_job(key=IdempotencyKey(principal="p", key=key, body_hash=b"body", life_s=86_400))


def _handle() -> Handle:
    return Handle(lambda: None)


async def _all_offered(node: Node, number: int) -> bool:
    return bool(await node.redis.xlen("jobs:stream") == number)
