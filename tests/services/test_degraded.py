"""A Redis that is there and yet of no use: jobs are accepted, started and finished all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest

from jobd.config.model import Config, RelayConfig
from jobd.job.history import START, HandlerEvent
from jobd.lifecycle.events import EventBatch, HistoryPlace, Kept, read_history
from tests.support import servers
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob

    Fault = Callable[[Node], Awaitable[object]]

JOBS = 30


@pytest.fixture
async def small(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, Config(relay=RelayConfig(stream_window=5))).running() as node:
            yield node


async def work(node: Node) -> None:
    while True:
        for job in await node.dispatcher.take(("default",), "w", 10):
            await node.done(job, '{"ok": true}')


def command(text: str) -> Fault:
    async def send(node: Node) -> None:
        await node.redis.execute_command(*text.split())

    return send


async def count(node: Node, status: str) -> int:
    found: int = await node.database.pool.fetchval("SELECT count(*) FROM jobs WHERE status = $1", status)
    return found


async def emit(node: Node, job: ClaimedJob, number: int, data: bytes) -> None:
    events = [HandlerEvent("log", n, "", msgspec.Raw(data)) for n in range(number)]
    answer = await node.engine.emit(EventBatch(job_id=job.job_id, lease_token=job.lease_token, events=events))
    assert isinstance(answer, Kept)


LARGE = b'"%s"' % (b"x" * 16_000)


async def set_memory_left(node: Node, number: int) -> None:
    used = (await node.redis.info("memory"))["used_memory"]
    await node.redis.config_set("maxmemory", used + number)


async def fill_with_events(node: Node) -> list[ClaimedJob]:
    """Twice as much as there is room for, none of it too much for one job."""
    jobs = [await node.claim(await node.enqueue(queue="told")) for _ in range(14)]
    await set_memory_left(node, 6 << 20)
    for job in jobs:
        await emit(node, job, 30, LARGE)
        await emit(node, job, 30, LARGE)
    return jobs


#: How to make it useless, and how to mend it; None: it mends itself.
FAULTS: dict[str, tuple[Fault, Fault | None]] = {
    "full of events": (fill_with_events, None),
    "full of something else": (command("CONFIG SET maxmemory 1"), command("CONFIG SET maxmemory 0")),
    "read-only": (command("REPLICAOF 127.0.0.1 1"), command("REPLICAOF NO ONE")),
    "refusing": (command("CONFIG SET min-replicas-to-write 1"), command("CONFIG SET min-replicas-to-write 0")),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.timeout(180)
async def test_jobs_go_on_while_redis_is(small: Node, fault: str) -> None:
    broken, mended = FAULTS[fault]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work, small)
        before = await small.enqueue()
        await broken(small)
        during = [await small.enqueue() for _ in range(JOBS)]

        async def all_done() -> bool:
            return await count(small, "done") == JOBS + 1

        await wait_until_async(all_done, timeout_s=30)
        if mended is not None:
            await mended(small)
        after = await small.enqueue()

        async def is_told() -> bool:
            return (await small.hash_of(after.id)).get("status") == "done" and await small.outbox_is_empty()

        await wait_until_async(is_told, timeout_s=60)
        tasks.cancel_scope.cancel()

    attempts = await small.database.pool.fetch(
        "SELECT job_id FROM attempts JOIN jobs ON id = job_id AND queue = 'default'"
    )
    assert len(attempts) == JOBS + 2
    assert {row["job_id"] for row in attempts} == {job.id for job in (before, *during, after)}


@pytest.mark.timeout(180)
async def test_events_that_filled_redis_leave_it_and_the_last_one_stays(small: Node) -> None:
    running = await fill_with_events(small)
    await wait_until_async(small.outbox_is_empty, timeout_s=90)
    for job in running:
        await small.done(job)
    await wait_until_async(small.outbox_is_empty, timeout_s=90)

    streams = [[fields["type"] for _, fields in await small.events_of(job.job_id)] for job in running]
    records = await read_history(small.database.pool, [HistoryPlace(job.job_id, START) for job in running])
    there = [types for types in streams if types]  # those that ended while it was full are soon forgotten
    assert {types[-1] for types in there} <= {"done"}
    assert any(types[0] == "gap" for types in there)
    assert all(record is not None and record.finished_ts is not None for record in records)
    assert await small.database.pool.fetchval("SELECT min(last_n) FROM event_log WHERE first_n > 1") == 60


async def test_unread_messages_of_a_paused_queue_are_taken_back(small: Node) -> None:
    jobs = [await small.enqueue() for _ in range(8)]

    async def length(number: int) -> bool:
        return bool(await small.redis.xlen("jobs:stream") == number)

    await wait_until_async(lambda: length(5))
    await small.engine.pause_queue("default", paused=True)
    await wait_until_async(lambda: length(0))
    await small.engine.pause_queue("default", paused=False)
    await wait_until_async(lambda: length(5))

    taken = [job for _ in range(8) for job in await small.dispatcher.take(("default",), "w")]
    assert [job.job_id for job in taken] == [job.id for job in jobs]


async def test_waiting_jobs_beyond_the_window_have_no_hash_until_they_are_offered(small: Node) -> None:
    jobs = [await small.enqueue() for _ in range(40)]
    await wait_until_async(small.outbox_is_empty)

    keys = {key async for key in small.redis.scan_iter("job:*") if not key.endswith(":events")}
    last = jobs[-1]
    before = await small.hash_of(last.id)
    for _ in range(40):
        for job in await small.dispatcher.take(("default",), "w"):
            await small.done(job)
    await wait_until_async(small.outbox_is_empty)

    assert len(keys) <= 15  # five in the stream, five more, and what was in between
    assert before == {}
    assert (await small.hash_of(last.id))["status"] == "done"
    assert [fields["type"] for _, fields in await small.events_of(last.id)] == ["queued", "running", "done"]
