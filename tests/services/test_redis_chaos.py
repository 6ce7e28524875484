"""Redis loses, doubles, shuffles or forgets what it holds in the middle of many jobs; each is finished once."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
import redis.asyncio
import redis.exceptions

from jobd.config.model import Config, Limits, RelayConfig
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

#: More than the stream's window, so that it has to be filled again after the fault.
JOBS, MANY_JOBS = 500, 2000
WORKERS, BATCH, WINDOW = 4, 10, 200
STREAM = "jobs:stream"


class Chaos:
    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.finished = 0
        self.restarted: Any = None

    async def work(self) -> None:
        while True:
            for job in await self.node.dispatcher.take(("default",), "w", BATCH):
                answer: Any = await self.node.done(job, '{"ok": true}')
                assert answer.ok
                self.finished += 1

    async def wait_for(self, number: int) -> None:
        await wait_until_async(lambda: self.finished >= number, timeout_s=60)

    def restart(self) -> None:
        servers.kill_valkey(self.folder)
        self.restarted = servers.valkey(self.folder)
        self.restarted.__enter__()


async def flush_all(chaos: Chaos) -> None:
    await chaos.node.redis.flushall()


async def flush_scripts(chaos: Chaos) -> None:
    await chaos.node.redis.script_flush()


async def kill_valkey(chaos: Chaos) -> None:
    chaos.restart()


async def bring_back_an_old_copy(chaos: Chaos) -> None:
    await chaos.node.redis.save()
    shutil.copy(chaos.folder / "dump.rdb", chaos.folder / "old.rdb")
    await chaos.wait_for(chaos.finished + 150)
    shutil.copy(chaos.folder / "old.rdb", chaos.folder / "dump.rdb")
    chaos.restart()


async def put_a_string_in_the_way(chaos: Chaos) -> None:
    async with chaos.node.redis.pipeline() as pipeline:
        await pipeline.delete(STREAM).set(STREAM, "in the way").execute()


async def double_every_message(chaos: Chaos) -> None:
    for _, fields in await chaos.node.redis.xrange(STREAM):
        if fields:
            await chaos.node.redis.xadd(STREAM, fields)


async def shuffle_the_messages(chaos: Chaos) -> None:
    found = await chaos.node.redis.xrange(STREAM)
    random.shuffle(found)
    for message_id, fields in found:
        await chaos.node.redis.xadd(STREAM, fields)
        await chaos.node.redis.xdel(STREAM, message_id)


FAULTS: list[Callable[[Chaos], Awaitable[None]]] = [
    flush_all,
    flush_scripts,
    kill_valkey,
    bring_back_an_old_copy,
    put_a_string_in_the_way,
    double_every_message,
    shuffle_the_messages,
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [JOBS, pytest.param(MANY_JOBS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_every_job_is_finished_exactly_once_after(
    fault: Callable[[Chaos], Awaitable[None]], number: int, shared_postgres: str, folder: Path
) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        node = Node(url, redis_url, Config(relay=RelayConfig(stream_window=WINDOW)))
        async with node.running():
            chaos = Chaos(node, folder)
            jobs = [new_job(max_attempts=1) for _ in range(number)]
            await node.engine.enqueue_whole(jobs)
            async with anyio.create_task_group() as tasks:
                for _ in range(WORKERS):
                    tasks.start_soon(chaos.work)
                await chaos.wait_for(number // 4)
                await fault(chaos)
                await chaos.wait_for(number)
                tasks.cancel_scope.cancel()
            await wait_until_async(node.outbox_is_empty, timeout_s=30)

            async def is_published() -> bool:
                try:
                    return (await node.hash_of(jobs[-1].id)).get("status") == "done"
                except redis.exceptions.ConnectionError:
                    return False

            await wait_until_async(is_published)
            rows = await node.database.pool.fetch("SELECT job_id, outcome FROM attempts")
            statuses = await node.database.pool.fetch("SELECT status, count(*) FROM jobs GROUP BY 1")
    if chaos.restarted is not None:
        chaos.restarted.__exit__(None, None, None)

    assert [tuple(row) for row in statuses] == [("done", number)]
    assert len(rows) == number
    assert {row["outcome"] for row in rows} == {"done"}
    assert {row["job_id"] for row in rows} == {job.id for job in jobs}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("thousands", [20, pytest.param(100, marks=pytest.mark.slow)])
async def test_many_thousand_waiting_jobs_leave_redis_small_and_an_urgent_one_overtakes(
    node: Node, thousands: int
) -> None:
    window = node.config.relay.stream_window
    node.config = msgspec.structs.replace(node.config, limits=Limits(max_queued=200_000))
    empty = (await node.redis.info("memory"))["used_memory"]
    for _ in range(thousands):
        await node.engine.enqueue_whole([new_job() for _ in range(1000)])
    await wait_until_async(node.outbox_is_empty, timeout_s=60)
    full = (await node.redis.info("memory"))["used_memory"]
    keys = await node.redis.dbsize()
    urgent = await node.enqueue(priority=1000)

    started = 0
    while started < 10 * window:
        taken = await node.dispatcher.take(("default",), "w", 50)
        started += len(taken)
        for job in taken:
            await node.done(job)
        if urgent.id in [job.job_id for job in taken]:
            break

    assert keys <= 2 * 3 * window
    assert full - empty < 4000 * 3 * window
    assert started <= window + 100  # what was offered before it, and what was on its way
