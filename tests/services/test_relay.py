"""The relay on real servers: order, bounds, and a Redis that may vanish."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING

import anyio.lowlevel
import msgspec
import pytest

from jobd.config.model import Config, RelayConfig
from jobd.job.history import HandlerEvent
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.events import CHUNKS, EventBatch, Kept
from jobd.lifecycle.publish import LOOK_AHEAD, look_ahead, promote_due
from jobd.lifecycle.read import pause_queue
from jobd.stream.relay import Relay
from jobd.supervise.service import Handle
from jobd.supervise.wakeup import Wakeup
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.enqueue import NewJob

WINDOW = 20


@pytest.fixture
async def small(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    """A node whose streams take 20 messages."""
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, Config(relay=RelayConfig(stream_window=WINDOW))).running() as node:
            yield node


async def messages(node: Node, stream: str = "jobs:stream") -> list[dict[str, str]]:
    return [fields for _, fields in await node.redis.xrange(stream)]


async def is_filled(node: Node) -> bool:
    return await node.outbox_is_empty() and len(await messages(node)) >= WINDOW


async def test_stream_holds_no_more_than_its_window(small: Node) -> None:
    jobs = [new_job() for _ in range(200)]
    await small.engine.enqueue_whole(jobs)

    await wait_until_async(partial(is_filled, small))

    assert [message["job_id"] for message in await messages(small)] == [str(job.id) for job in jobs[:WINDOW]]


async def test_urgent_job_has_no_more_than_a_window_before_it(small: Node) -> None:
    jobs = [new_job() for _ in range(100)]
    await small.engine.enqueue_whole(jobs)
    await wait_until_async(partial(is_filled, small))
    urgent = await small.enqueue(priority=10)
    await wait_until_async(small.outbox_is_empty)

    done: list[str] = []
    offered = [message["job_id"] for message in await messages(small)]
    while str(urgent.id) not in offered and len(done) < WINDOW:
        await small.done(await small.claim(jobs[len(done)]))
        done.append(str(jobs[len(done)].id))
        await wait_until_async(small.outbox_is_empty)
        offered = [message["job_id"] for message in await messages(small)]

    before = [job_id for job_id in offered[: offered.index(str(urgent.id))] if job_id not in done]
    assert len(done) + len(before) <= WINDOW


async def test_new_jobs_do_not_overtake_those_that_found_the_window_full(small: Node) -> None:
    jobs = [new_job() for _ in range(WINDOW + 10)]
    await small.engine.enqueue_whole(jobs)
    await wait_until_async(partial(is_filled, small))

    seen = [message["job_id"] for message in await messages(small)]
    for n in range(WINDOW + 20):
        if n < 10:
            jobs.append(await small.enqueue())
        await small.done(await small.claim(jobs[n]))
        await wait_until_async(small.outbox_is_empty)
        seen += [message["job_id"] for message in await messages(small) if message["job_id"] not in seen]

    assert seen == [str(job.id) for job in jobs]


async def test_delayed_job_is_offered_when_its_time_has_come(small: Node) -> None:
    job = await small.enqueue(delay_s=0.3)
    await wait_until_async(small.outbox_is_empty)
    before = await messages(small)

    await wait_until_async(lambda: small.redis.xlen("jobs:stream"))

    due = await small.database.pool.fetchval("SELECT run_after <= clock_timestamp() FROM jobs WHERE id = $1", job.id)
    assert before == []
    assert due


async def test_what_other_nodes_do_without_a_ring_is_obeyed(small: Node) -> None:
    """A queue is paused and resumed, and a delayed job gets its place."""
    pool = small.database.pool
    first, late = await small.enqueue(), await small.enqueue(delay_s=3600)

    async def are_offered(*jobs: NewJob) -> bool:
        return {message["job_id"] for message in await messages(small)} == {str(job.id) for job in jobs}

    await wait_until_async(lambda: are_offered(first))
    await pause_queue(pool, "default", paused=True)
    await wait_until_async(are_offered)
    await pause_queue(pool, "default", paused=False)
    await wait_until_async(lambda: are_offered(first))
    await promote_due(pool, now=datetime.now(timezone.utc) + timedelta(hours=2))
    await wait_until_async(lambda: are_offered(first, late))


async def test_a_commit_that_nobody_rang_for_is_told(small: Node) -> None:
    job = new_job()
    await enqueue(small.database, [job])

    async def is_offered() -> bool:
        return [message["job_id"] for message in await messages(small)] == [str(job.id)]

    await wait_until_async(is_offered)


async def test_an_idle_relay_asks_one_question_a_tick(small: Node) -> None:
    await wait_until_async(lambda: small.redis.exists("jobd:epoch"))  # else this one would begin by making it
    handle, asked = Handle(lambda: None), list[str]()

    class Ticks(Wakeup):
        """Ten of them pass at once."""

        left = 10

        async def wait(self, timeout_s: float) -> bool:
            self.left -= 1
            if not self.left:
                handle.stop.set()
            return False

    relay = Relay(small.database, small.transport, Ticks(), lambda: small.config)
    async with small.database.pool.acquire() as session:
        await relay._forget(session)
        await look_ahead(session)  # the first time, the driver has questions of its own
        with session.query_logger(lambda query: asked.append(query.query)):
            await relay._rest(handle, session)
            await anyio.lowlevel.checkpoint()

    assert asked == [LOOK_AHEAD] * 10


@pytest.mark.parametrize("command", [("FLUSHALL",), ("SCRIPT", "FLUSH"), ("DEL", "jobd:epoch"), ("DEL", "jobs:stream")])
async def test_forgotten_redis_is_told_everything_again(
    small: Node, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobd.stream.relay.SWEEP_S", 0.05)
    waiting = [await small.enqueue() for _ in range(10)]
    running = await small.claim(waiting[0])
    await wait_until_async(small.outbox_is_empty)

    await small.redis.execute_command(*command)
    late = await small.enqueue()

    async def all_are_there() -> bool:
        offered = {message["job_id"] for message in await messages(small)}
        hashes = [await small.hash_of(job.id) for job in (*waiting, late)]
        return {str(job.id) for job in (*waiting[1:], late)} <= offered and all(hashes)

    small.relay._next_sweep = 0.0
    await wait_until_async(all_are_there)
    assert (await small.hash_of(waiting[0].id))["status"] == "running"
    await small.done(running)

    async def is_done() -> bool:
        return (await small.hash_of(waiting[0].id))["status"] == "done"

    await wait_until_async(is_done)


@pytest.mark.parametrize("key", ["jobs:stream", "job", "events"])
async def test_key_of_the_wrong_type_is_moved_aside(small: Node, key: str) -> None:
    first = await small.enqueue()
    await wait_until_async(small.outbox_is_empty)
    name = {"jobs:stream": "jobs:stream", "job": f"job:{first.id}", "events": f"job:{first.id}:events"}[key]
    await small.redis.delete(name)
    await small.redis.set(name, "in the way")

    claimed = await small.claim(first)
    await small.done(claimed)
    second = await small.enqueue()

    async def second_is_offered() -> bool:
        return await small.redis.type("jobs:stream") == "stream" and str(second.id) in [
            message["job_id"] for message in await messages(small)
        ]

    await wait_until_async(second_is_offered)
    await wait_until_async(small.outbox_is_empty)


async def test_end_of_a_waiting_job_is_mirrored_though_its_stream_is_no_stream(small: Node) -> None:
    job = await small.enqueue()
    await wait_until_async(small.outbox_is_empty)
    await small.redis.delete("jobs:stream")
    await small.redis.set("jobs:stream", "in the way")

    await small.engine.cancel([job.id])

    await wait_until_async(small.outbox_is_empty)
    assert (await small.hash_of(job.id))["status"] == "canceled"


async def test_change_told_twice_changes_nothing(small: Node) -> None:
    job = await small.enqueue()
    claimed = await small.claim(job)
    await small.done(claimed, '{"a": 1}')
    await wait_until_async(small.outbox_is_empty)
    before = (await small.hash_of(job.id), await small.events_of(job.id), await messages(small))

    await small.database.pool.execute(
        """INSERT INTO outbox (at, event, job_ids, versions) VALUES
        (now(), 'queued', ARRAY[$1::uuid], ARRAY[1]), (now(), 'running', ARRAY[$1::uuid], ARRAY[2]),
        (now(), 'done', ARRAY[$1::uuid], ARRAY[3])""",
        job.id,
    )
    small.wakeup.set()
    await wait_until_async(small.outbox_is_empty)

    assert (await small.hash_of(job.id), await small.events_of(job.id), await messages(small)) == before


async def test_row_that_commits_late_is_told(small: Node) -> None:
    late, soon = new_job(), new_job()
    async with small.database.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT nextval(pg_get_serial_sequence('jobd.outbox', 'seq'))")
        await enqueue(small.database, [soon])
        await wait_until_async(small.outbox_is_empty)
        await connection.execute(
            "INSERT INTO outbox (seq, at, event, job_ids, versions) OVERRIDING SYSTEM VALUE "
            "VALUES (0, now(), 'queued', ARRAY[$1::uuid], ARRAY[1])",
            soon.id,
        )
        await transaction.commit()
    await enqueue(small.database, [late])
    small.wakeup.set()

    await wait_until_async(small.outbox_is_empty)
    assert await small.hash_of(late.id)


async def test_hash_that_expired_before_the_end_is_told_whole(small: Node) -> None:
    job = await small.enqueue()
    claimed = await small.claim(job)
    await wait_until_async(small.outbox_is_empty)
    await small.redis.delete(f"job:{job.id}", f"job:{job.id}:events")

    await small.done(claimed, '{"a": 1}')

    async def is_whole() -> bool:
        found = await small.hash_of(job.id)
        return found.get("status") == "done" and found["result"] == '{"a": 1}' and found["task"] == "chat"

    await wait_until_async(is_whole)
    assert (await small.events_of(job.id))[-1][1]["type"] == "done"


@pytest.mark.timeout(180)
async def test_jobs_are_accepted_and_finished_while_redis_is_away(shared_postgres: str, folder: Path) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        node = Node(url, redis_url, Config())
        async with node.running():
            before = await node.enqueue()
            await wait_until_async(node.outbox_is_empty)
            servers.kill_valkey(folder)

            jobs = [await node.enqueue() for _ in range(5)]
            finished = [await node.done(await node.claim(job)) for job in jobs[:3]]
            with servers.valkey(folder):
                await wait_until_async(node.outbox_is_empty, timeout_s=20)
                await wait_until_async(lambda: node.redis.xlen("jobs:stream"), timeout_s=10)
                statuses = [(await node.hash_of(job.id))["status"] for job in (before, *jobs)]
                offered = {message["job_id"] for message in await messages(node)}

    assert len(finished) == 3
    assert statuses == ["queued", "done", "done", "done", "queued", "queued"]
    assert offered == {str(job.id) for job in (before, *jobs[3:])}


async def test_second_relay_stands_by_and_takes_over(small: Node) -> None:
    second = Node(small.database.url, small.transport.url, small.config)
    async with second.running():
        jobs = [await small.enqueue(), await second.enqueue()]
        await wait_until_async(small.outbox_is_empty)

        async def both_are_offered() -> bool:
            return {message["job_id"] for message in await messages(small)} == {str(job.id) for job in jobs}

        await wait_until_async(both_are_offered)
        assert [len(await small.events_of(job.id)) for job in jobs] == [1, 1]


async def test_a_commit_of_another_node_wakes_the_relay(small: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobd.stream.relay.TICK_S", 60.0)
    second = Node(small.database.url, small.transport.url, small.config)
    async with second.running():
        first = await small.enqueue()  # the relay now sleeps until it is woken
        await wait_until_async(small.outbox_is_empty)

        async def is_heard() -> bool:
            return bool(await small.redis.pubsub_numsub("jobd:wake") == [("jobd:wake", 1)])

        await wait_until_async(is_heard)
        late = await second.enqueue()

        async def is_offered() -> bool:
            return {message["job_id"] for message in await messages(small)} == {str(first.id), str(late.id)}

        await wait_until_async(is_offered)


async def emit(node: Node, job: ClaimedJob, number: int, data: bytes = b"{}") -> None:
    events = [HandlerEvent("log", n, "", msgspec.Raw(data)) for n in range(number)]
    answer = await node.engine.emit(EventBatch(job_id=job.job_id, lease_token=job.lease_token, events=events))
    assert isinstance(answer, Kept)


@pytest.mark.parametrize(("chunks", "data"), [(CHUNKS + 10, b"{}"), (12, b'"%s"' % (b"x" * 16_000))])
async def test_redis_that_forgot_a_long_job_is_told_its_last_events_after_a_gap(
    small: Node, chunks: int, data: bytes
) -> None:
    job = await small.claim(await small.enqueue())
    for _ in range(chunks):
        await emit(small, job, 3, data)
    await wait_until_async(small.outbox_is_empty)

    await small.redis.flushall()
    await emit(small, job, 2)

    async def is_told() -> bool:
        return (await small.hash_of(job.job_id)).get("jobd_event") == f"1-{3 * chunks + 2}"

    await wait_until_async(is_told)
    await small.done(job)
    await wait_until_async(small.outbox_is_empty)
    found = [(event_id, fields["type"]) for event_id, fields in await small.events_of(job.job_id)]
    (gap,) = [n for n, (_, kind) in enumerate(found) if kind == "gap"]
    first = int(found[gap][0].partition("-")[2]) + 1
    assert [kind for _, kind in found[:gap]] == ["queued"]
    assert [event_id for event_id, _ in found[gap + 1 :]] == [f"1-{n}" for n in range(first, 3 * chunks + 4)]
    assert found[-1][1] == "done"
    assert 0 < len(found) - gap < 3 * chunks


async def test_stream_of_a_job_that_tells_a_lot_is_shortened_and_live_readers_miss_nothing(small: Node) -> None:
    job = await small.claim(await small.enqueue())
    key, read = f"job:{job.job_id}:events", ["0-0"]

    async def tail() -> None:
        """As a client does that knows only Redis."""
        kinds: list[str] = []
        while "done" not in kinds:
            for _, entries in await small.redis.xread({key: read[-1]}, block=500):
                read.extend(event_id for event_id, _ in entries)
                kinds = [fields["type"] for _, fields in entries]

    async def has_read(last: str) -> bool:
        return read[-1] == last

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tail)
        for n in range(1, 16):
            await emit(small, job, 15, b'"%s"' % (b"x" * 16_000))
            await wait_until_async(partial(has_read, f"1-{n * 15}"), lambda: (read[-3:], small.relay.lag_s()))
        sizes = await small.redis.memory_usage(key)
        await small.done(job)

    found = [(event_id, fields["type"]) for event_id, fields in await small.events_of(job.job_id)]
    assert sizes < 2_000_000
    assert read[1:] == ["0-1", *(f"1-{n}" for n in range(15 * 15 + 2))]
    assert [kind for _, kind in found[:2]] == ["gap", "log"]
    assert [event_id for event_id, _ in found] == read[-len(found) :]
    assert found[-1][1] == "done"
    assert await small.redis.ttl(key) > 0
