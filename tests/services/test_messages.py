"""One message for each job that is to be had, and none for any other: whatever Redis loses and whoever ends the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from jobd.config.model import Config, Leases, RelayConfig
from jobd.lifecycle.outbox import read_epoch
from jobd.lifecycle.read import pause_queue
from tests.support import servers
from tests.support.claims import take_any
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.enqueue import NewJob

STREAM, GROUP = "jobs:stream", "workers"


@pytest.fixture
async def small(shared_postgres: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node that soon sees what is missing from its streams."""
    monkeypatch.setattr("jobd.stream.relay.SWEEP_S", 0.05)
    url = await new_database(shared_postgres)
    config = Config(relay=RelayConfig(stream_window=20), leases=Leases(ttl_s=30, heartbeat_s=10))
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, config).running() as node:
            yield node


async def offered(node: Node) -> list[str]:
    return [fields["job_id"] for _, fields in await node.redis.xrange(STREAM)]


async def are_offered(node: Node, *jobs: NewJob) -> bool:
    return sorted(await offered(node)) == sorted(str(job.id) for job in jobs)


async def read_raw(node: Node, consumer: str = "raw-1", count: int = 1) -> list[str]:
    """Messages that a raw worker has in hand, as their ids."""
    answer: Any = await node.redis.xreadgroup(GROUP, consumer, {STREAM: ">"}, count=count)
    return [message_id for _, messages in answer for message_id, _ in messages]


async def look_elsewhere(session: object) -> None:
    """In place of a look at raw workers."""


async def status_of(node: Node, job: NewJob) -> str:
    status: str = await node.database.pool.fetchval("SELECT status FROM jobs WHERE id = $1", job.id)
    return status


async def epoch_of(node: Node) -> str:
    epoch: str = await node.redis.get("jobd:epoch")
    return epoch


# -- a Redis that forgot something ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["jobd:epoch", "a message", "the hashes", "jobd:run"])
async def test_redis_that_forgot_a_little_has_one_message_for_each_job_afterwards(small: Node, lost: str) -> None:
    jobs = [await small.enqueue() for _ in range(10)]
    await wait_until_async(lambda: are_offered(small, *jobs))
    before = await epoch_of(small)

    if lost == "a message":
        await small.redis.xdel(STREAM, (await small.redis.xrange(STREAM))[3][0])
    elif lost == "the hashes":
        await small.redis.delete("jobd:epoch", *(f"job:{job.id}" for job in jobs))
    else:
        await small.redis.delete(lost)
    late = await small.enqueue()

    async def is_over() -> bool:
        return await epoch_of(small) not in (None, before) and await are_offered(small, *jobs, late)

    await wait_until_async(is_over)
    await wait_until_async(small.outbox_is_empty)
    assert len(await offered(small)) == 11


@pytest.mark.parametrize("lost", ["jobd:epoch", "the hashes"])
async def test_message_in_the_hands_of_a_worker_is_not_offered_again_after_a_loss(
    small: Node, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await small.enqueue() for _ in range(3)]
    await wait_until_async(lambda: are_offered(small, *jobs))
    monkeypatch.setattr(small.raw_workers, "run_once", look_elsewhere)  # what was read is not known yet
    before = await epoch_of(small)
    (message_id,) = await read_raw(small)

    await small.redis.delete("jobd:epoch", *([f"job:{jobs[0].id}"] if lost == "the hashes" else []))
    late = await small.enqueue()

    async def is_over() -> bool:
        return await epoch_of(small) not in (None, before) and await are_offered(small, *jobs, late)

    await wait_until_async(is_over)
    await wait_until_async(small.outbox_is_empty)
    assert len(await offered(small)) == 4
    assert [entry["message_id"] for entry in await small.redis.xpending_range(STREAM, GROUP, "-", "+", 9)] == [
        message_id
    ]


# -- a Postgres that went back in time -----------------------------------------------------------------------------


async def go_back(node: Node, job: NewJob) -> None:
    """As a restore or a failover does that lost what happened to the job since it was accepted."""
    async with node.database.pool.acquire() as connection, connection.transaction():
        for table in ("attempts", "event_log"):
            await connection.execute(f"DELETE FROM {table} WHERE job_id = $1", job.id)
        await connection.execute("DELETE FROM leases WHERE resource_id = $1", job.id)
        await connection.execute("DELETE FROM jobs WHERE id = $1", job.id)
        await connection.execute(
            """INSERT INTO jobs (id, task, queue, payload, run_after, order_at, max_attempts, timeout_s, ttl_s,
                created_at, updated_at) SELECT $1, 'chat', 'default', '{}', now(), now(), 3, 60, 600, now(), now()""",
            job.id,
        )
        await connection.execute("INSERT INTO queue_counts (queue, shard, queued, done) VALUES ('default', 99, 1, -1)")


async def test_redis_follows_a_postgres_that_went_back(small: Node) -> None:
    job = await small.enqueue()
    (lost,) = await small.dispatcher.take(("default",), "test", 1)
    await small.done(lost, '{"by": "a run that was lost"}')
    await wait_until_async(small.outbox_is_empty)
    before = await epoch_of(small)
    await go_back(small, job)
    await small.redis.delete("jobd:epoch")
    small.wakeup.set()

    (got,) = await small.dispatcher.take(("default",), "test", 1)
    while_running = await until_in_epoch_after(small, before, job)
    await small.done(got, '{"by": "the run that counts"}')

    async def is_told() -> bool:
        found = await small.hash_of(job.id)
        return (found["status"], found["result"]) == ("done", '{"by": "the run that counts"}')

    await wait_until_async(is_told)
    assert while_running["result"] == ""
    assert [fields["type"] for _, fields in await small.events_of(job.id)] == ["queued", "running", "done"]


async def until_in_epoch_after(node: Node, before: str, job: NewJob) -> dict[str, str]:
    """The hash as soon as the relay has told it in a later epoch."""
    await node.enqueue(queue="default", delay_s=3600)  # something to tell, or the relay would not look

    async def is_told() -> bool:
        later = await epoch_of(node) not in (None, before)
        return later and (await node.hash_of(job.id))["status"] == "running"

    await wait_until_async(is_told)
    return await node.hash_of(job.id)


async def test_stale_end_of_a_raw_worker_is_not_carried_into_the_attempt_after_it(small: Node) -> None:
    job = await small.enqueue()
    await wait_until_async(lambda: are_offered(small, job))
    await read_raw(small)
    await small.redis.hset(f"job:{job.id}", mapping={"status": "done", "result": '{"by": "a run that was lost"}'})

    async def is_done() -> bool:
        return await status_of(small, job) == "done"

    await wait_until_async(is_done)
    await wait_until_async(small.outbox_is_empty)
    await go_back(small, job)
    await small.redis.delete("jobd:epoch")
    late = await small.enqueue()
    await wait_until_async(lambda: are_offered(small, job, late))

    await read_raw(small, count=2)

    async def is_met() -> bool:
        return await status_of(small, job) != "queued"

    await wait_until_async(is_met)
    await small.raw_workers._look_at_hashes()
    assert await status_of(small, job) == "running"
    assert (await small.hash_of(job.id))["status"] == "queued"


async def test_end_of_a_raw_worker_that_jobd_has_not_seen_survives_a_new_epoch(
    small: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await small.enqueue()
    await wait_until_async(lambda: are_offered(small, job))
    look, before = small.raw_workers.run_once, await epoch_of(small)
    monkeypatch.setattr(small.raw_workers, "run_once", look_elsewhere)
    (message_id,) = await read_raw(small)
    await small.redis.hset(f"job:{job.id}", mapping={"status": "done", "result": '{"by": "raw"}'})
    await small.redis.xack(STREAM, GROUP, message_id)

    await small.redis.delete("jobd:epoch")
    await small.enqueue()

    async def is_later() -> bool:
        return await epoch_of(small) not in (None, before) and await small.outbox_is_empty()

    await wait_until_async(is_later)
    monkeypatch.setattr(small.raw_workers, "run_once", look)

    async def is_done() -> bool:
        query = "SELECT status = 'done' AND result->>'by' = 'raw' FROM jobs WHERE id = $1"
        return bool(await small.database.pool.fetchval(query, job.id))

    await wait_until_async(is_done)


async def test_epoch_is_another_after_a_failover(folder: Path) -> None:
    """A standby that was promoted goes on along a timeline of its own, and may lack commits."""
    with servers.postgres(folder) as url:
        before = await _epoch_in(url)
    with servers.postgres(folder, standby=True) as url:
        connection = await asyncpg.connect(url.replace("jobd@/jobd", "postgres@/postgres"))
        await connection.execute("SELECT pg_promote()")
        await connection.close()

        after = await _epoch_in(url)

    assert before != after
    assert before.split("/")[0] == after.split("/")[0]


async def _epoch_in(url: str) -> str:
    connection = await asyncpg.connect(url, server_settings={"search_path": "jobd"})
    try:
        return await read_epoch(connection)
    finally:
        await connection.close()


# -- jobs that end or start without their message ----------------------------------------------------------------------


async def test_message_of_a_canceled_job_leaves_the_stream(small: Node) -> None:
    jobs = [await small.enqueue() for _ in range(3)]
    await wait_until_async(lambda: are_offered(small, *jobs))

    await small.engine.cancel([jobs[1].id])

    await wait_until_async(lambda: are_offered(small, jobs[0], jobs[2]))


async def test_message_of_a_canceled_job_whose_hash_expired_leaves_the_stream(small: Node) -> None:
    jobs = [await small.enqueue() for _ in range(3)]
    await wait_until_async(lambda: are_offered(small, *jobs))
    await small.redis.delete(f"job:{jobs[1].id}", f"job:{jobs[1].id}:events")

    await small.engine.cancel([jobs[1].id])

    await wait_until_async(lambda: are_offered(small, jobs[0], jobs[2]))


async def test_message_of_a_job_that_was_taken_without_it_leaves_the_stream(small: Node) -> None:
    jobs = [await small.enqueue() for _ in range(3)]
    await wait_until_async(lambda: are_offered(small, *jobs))

    (first,) = await take_any(small.engine, "default", 1)

    assert first.job_id == jobs[0].id
    await wait_until_async(lambda: are_offered(small, *jobs[1:]))


async def test_message_that_brought_a_running_job_stays_until_the_job_is_done(small: Node) -> None:
    job = await small.enqueue()
    (got,) = await small.dispatcher.take(("default",), "test", 1)
    await wait_until_async(small.outbox_is_empty)
    while_running = await offered(small)

    await small.done(got)
    await wait_until_async(small.outbox_is_empty)

    assert while_running == [str(job.id)]
    assert await offered(small) == []


async def test_canceled_job_that_a_raw_worker_has_in_hand_stays_canceled_in_its_hash(
    small: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read, and canceled before jobd has seen that: the worker goes on, and what it writes is put right."""
    job = await small.enqueue()
    await wait_until_async(lambda: are_offered(small, job))
    look = small.raw_workers.run_once
    monkeypatch.setattr(small.raw_workers, "run_once", look_elsewhere)
    (message_id,) = await read_raw(small)
    await small.engine.cancel([job.id])
    await wait_until_async(small.outbox_is_empty)

    monkeypatch.setattr(small.raw_workers, "run_once", look)
    await small.redis.hset(f"job:{job.id}", mapping={"status": "done", "result": '{"by": "raw"}', "updated_ts": "1"})
    await small.redis.xack(STREAM, GROUP, message_id)

    async def is_right() -> bool:
        found = await small.hash_of(job.id)
        return (found["status"], found["result"]) == ("canceled", "")

    await wait_until_async(is_right)
    await wait_until_async(lambda: are_offered(small))


async def test_second_done_of_a_zombie_with_another_result_is_put_right(small: Node) -> None:
    job = await small.enqueue()
    (got,) = await small.dispatcher.take(("default",), "test", 1)
    await small.done(got, '{"by": "the first"}')
    await wait_until_async(small.outbox_is_empty)
    await small.redis.xadd(STREAM, {"job_id": str(job.id), "task": "chat", "payload": "{}", "enqueue_id": "1"})
    await read_raw(small)

    async def is_settled() -> bool:
        return not await small.redis.xlen(STREAM)

    await wait_until_async(is_settled)
    for result in ('{"by": "a zombie"}', '{"by": "them again"}'):
        await small.redis.hset(f"job:{job.id}", mapping={"status": "done", "result": result, "updated_ts": result})

        async def is_right() -> bool:
            return (await small.hash_of(job.id))["result"] == '{"by": "the first"}'

        await wait_until_async(is_right)


# -- pauses --------------------------------------------------------------------------------------------------------


async def test_job_that_comes_after_the_pause_is_not_offered_though_the_relay_has_not_heard_of_it(small: Node) -> None:
    """Nothing waits in the queue, so the relay offers new jobs without asking which are first."""
    first = await small.enqueue()
    await wait_until_async(lambda: str(first.id) in small.relay.window.offered["default"])
    await small.done(await small.claim(first))
    await wait_until_async(small.outbox_is_empty)
    await pause_queue(small.database.pool, "default", paused=True)

    later = await small.enqueue()
    await wait_until_async(small.outbox_is_empty)

    assert await small.hash_of(later.id)
    assert await small.redis.xlen("jobs:stream") == 0
    await small.engine.pause_queue("default", paused=False)
    await wait_until_async(lambda: str(later.id) in small.relay.window.offered["default"])


async def test_pausing_a_queue_whose_stream_is_gone_does_not_fail_the_relay(
    small: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small.relay, "_next_sweep", float("inf"))
    job = await small.enqueue()
    await wait_until_async(lambda: are_offered(small, job))
    await small.redis.delete(STREAM)

    await pause_queue(small.database.pool, "default", paused=True)
    await wait_until_async(lambda: _is_obeyed(small))

    assert "relay failed" not in caplog.text


async def _is_obeyed(node: Node) -> bool:
    return "default" in node.relay.window.paused
