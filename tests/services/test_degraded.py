"""A Redis that is there and yet of no use: jobs are accepted, started and finished all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.config import Config, Relay
from tests.support import servers
from tests.support.node import Node, eventually, new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

JOBS = 30


@pytest.fixture
async def small(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, Config(relay=Relay(stream_window=5))).running() as node:
            yield node


async def work(node: Node) -> None:
    while True:
        for job in await node.dispatcher.take(("default",), "w", 10):
            await node.done(job, '{"ok": true}')


async def count(node: Node, status: str) -> int:
    found: int = await node.database.pool.fetchval("SELECT count(*) FROM jobs WHERE status = $1", status)
    return found


#: How to make it useless, and how to mend it.
FAULTS = {
    "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    "read-only": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "refusing": (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.timeout(180)
async def test_jobs_go_on_while_redis_is(small: Node, fault: str) -> None:
    broken, mended = FAULTS[fault]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, small)
        before = await small.enqueue()
        await small.redis.execute_command(*broken)
        during = [await small.enqueue() for _ in range(JOBS)]

        async def all_done() -> bool:
            return await count(small, "done") == JOBS + 1

        await eventually(all_done, 30)
        await small.redis.execute_command(*mended)
        after = await small.enqueue()

        async def told() -> bool:
            return (await small.hash_of(after.id)).get("status") == "done" and await small.outbox_is_empty()

        await eventually(told, 20)
        tasks.cancel_scope.cancel()

    attempts = await small.database.pool.fetch("SELECT job_id FROM attempts")
    assert len(attempts) == JOBS + 2
    assert {row["job_id"] for row in attempts} == {job.id for job in (before, *during, after)}


async def test_unread_messages_of_a_paused_queue_are_taken_back(small: Node) -> None:
    jobs = [await small.enqueue() for _ in range(8)]

    async def length(number: int) -> bool:
        return bool(await small.redis.xlen("jobs:stream") == number)

    await eventually(lambda: length(5))
    await small.engine.pause_queue("default", paused=True)
    await eventually(lambda: length(0))
    await small.engine.pause_queue("default", paused=False)
    await eventually(lambda: length(5))

    taken = [job for _ in range(8) for job in await small.dispatcher.take(("default",), "w")]
    assert [job.job_id for job in taken] == [job.id for job in jobs]


async def test_waiting_jobs_beyond_the_window_have_no_hash_until_they_are_offered(small: Node) -> None:
    jobs = [await small.enqueue() for _ in range(40)]
    await eventually(small.outbox_is_empty)

    keys = {key async for key in small.redis.scan_iter("job:*") if not key.endswith(":events")}
    last = jobs[-1]
    before = await small.hash_of(last.id)
    for _ in range(40):
        for job in await small.dispatcher.take(("default",), "w"):
            await small.done(job)
    await eventually(small.outbox_is_empty)

    assert len(keys) <= 15  # five in the stream, five more, and what was in between
    assert before == {}
    assert (await small.hash_of(last.id))["status"] == "done"
    assert [fields["type"] for _, fields in await small.events_of(last.id)] == ["queued", "running", "done"]
