"""Steps of Postgres' clock while nodes are at work, on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.config import Config, Leases
from jobd.ids import new_id
from tests.support import servers
from tests.support.clock import TO_1970_S, TO_2056_S, set_clock
from tests.support.node import Node, eventually, new_database

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


async def _all_offered(node: Node, number: int) -> bool:
    return bool(await node.redis.xlen("jobs:stream") == number)
