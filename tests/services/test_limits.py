"""Limits per key and turns on a running node: for takes from Postgres, by message, and for raw Redis workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from jobd.config.model import Config, Queue
from jobd.store.ids import new_id
from tests.support import servers
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob

CONFIG = Config(queues={"default": Queue(slots=0, key_running=2), "fair": Queue(slots=0, fair=True)})


@pytest.fixture(params=["direct", "stream"])
async def node(shared_postgres: str, folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    url = await new_database(shared_postgres)
    deliver: Literal["direct", "stream"] = request.param
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG, deliver=deliver).running() as node:
            yield node


async def take(node: Node, most: int = 1, queue: str = "default") -> list[ClaimedJob]:
    with anyio.fail_after(30):
        return await node.dispatcher.take((queue,), f"test-{new_id()}", most)


async def running(node: Node) -> int:
    return int(await node.database.pool.fetchval("SELECT count(*) FROM jobs WHERE status = 'running'"))


async def test_no_more_jobs_of_a_key_run_at_once_than_may_and_the_next_starts_when_one_ends(node: Node) -> None:
    jobs = [await node.enqueue(limit_key="ann") for _ in range(5)]
    claims = [*await take(node), *await take(node)]

    async with anyio.create_task_group() as tasks:
        later: list[ClaimedJob] = []

        async def take_later() -> None:
            later.extend(await take(node))

        tasks.start_soon(take_later)
        other = await node.enqueue(limit_key="bob")
        await wait_until_async(lambda: _is(later), "another key was held back")
        assert later[0].job_id == other.id

    while claims:
        assert await running(node) <= 3
        await node.done(claims.pop())
        if len(jobs) > 2:
            claims += await take(node)
            jobs.pop()


async def _is(found: list[ClaimedJob]) -> bool:
    return bool(found)


async def test_every_job_of_keys_that_take_turns_is_done(node: Node) -> None:
    keys = ["a"] * 12 + ["b"] * 3 + [None] * 3
    jobs = {(await node.enqueue(queue="fair", limit_key=key)).id for key in keys}

    while jobs:
        for claimed in await take(node, 4, "fair"):
            jobs.discard(claimed.job_id)
            await node.done(claimed)

    assert await node.database.pool.fetchval("SELECT count(*) FROM limit_places") == 0
    assert await node.database.pool.fetchval("SELECT count(*) FROM jobs WHERE status = 'done'") == 18


async def test_a_raw_worker_is_offered_only_what_may_run(shared_postgres: str, folder: Path) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG, deliver="stream").running() as node:
            for _ in range(5):
                await node.enqueue(limit_key="ann")

            async def offered() -> bool:
                return bool(await node.redis.xlen("jobs:stream") == 2)

            await wait_until_async(offered, "not two messages")
            held = await node.database.pool.fetchval("SELECT count(*) FROM jobs WHERE held = 'limited'")

            assert (held, await node.redis.xlen("jobs:stream")) == (3, 2)
