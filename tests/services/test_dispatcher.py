"""The dispatcher on real servers: who gets which job, what becomes of bad messages, which leases are kept."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from jobd.config.model import Config, Leases, Queue
from jobd.dispatch.dispatcher import Dispatcher
from jobd.dispatch.stream_reader import BLOCK_S, LONGEST_BLOCK_S
from jobd.dispatch.waiting_line import Caller
from jobd.job.model import Completed
from jobd.store.ids import new_id
from jobd.supervise.service import Handle
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import datetime
    from pathlib import Path
    from uuid import UUID

    from jobd.lifecycle.claim import Ask, ClaimAnswer, ClaimedJob

CONFIG = Config(leases=Leases(ttl_s=3, heartbeat_s=0.3), queues={"default": Queue(), "gpu": Queue(), "slow": Queue()})


@pytest.fixture
async def quick(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    """A node with three queues and leases of three seconds."""
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as node:
            yield node


async def take(node: Node, *queues: str, most: int = 1) -> list[ClaimedJob]:
    with anyio.fail_after(30):
        return await node.dispatcher.take(queues or ("default",), f"test-{new_id()}", most)


async def status_of(node: Node, job_id: object) -> str:
    status: str = await node.database.pool.fetchval("SELECT status FROM jobs WHERE id = $1", job_id)
    return status


async def find_nothing(*_: object) -> bool:
    """In place of a poll of Postgres, which would hand the job out if Redis were slow."""
    return False


async def test_waiting_caller_gets_a_job_as_soon_as_there_is_one(quick: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick.dispatcher.streams, "_poll_postgres", find_nothing)
    got: list[ClaimedJob] = []

    async def wait() -> None:
        got.extend(await take(quick))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await wait_until_async(quick.is_reading)
        job = await quick.enqueue()

    assert [one.job_id for one in got] == [job.id]
    assert got[0].stream == "jobs:stream"
    assert got[0].message_id is not None


async def test_caller_is_served_from_the_queue_it_likes_best(quick: Node) -> None:
    jobs = {queue: await quick.enqueue(queue=queue) for queue in ("slow", "default", "gpu")}
    for stream in ("jobs:stream", "jobs:stream:gpu", "jobs:stream:slow"):
        await wait_until_async(lambda stream=stream: quick.redis.xlen(stream))  # type: ignore[misc]  # a default binds it

    (first,) = await take(quick, "gpu", "default", "slow")
    (second,) = await take(quick, "slow", "default")
    (third,) = await take(quick, "slow", "default", "gpu")

    assert [first.job_id, second.job_id, third.job_id] == [jobs[queue].id for queue in ("gpu", "slow", "default")]


async def test_caller_with_another_queue_need_not_wait_for_the_first_read_to_end(quick: Node) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, quick, "gpu")
        await wait_until_async(quick.is_reading)
        job = await quick.enqueue(queue="slow")

        (got,) = await take(quick, "slow")

        assert got.job_id == job.id
        tasks.cancel_scope.cancel()


async def test_read_waits_longer_while_nobody_may_leave(quick: Node) -> None:
    dispatcher = Dispatcher(quick.engine, quick.database, quick.transport, new_id(), lambda: CONFIG)
    dispatcher.streams._next_poll = time.monotonic() + 600

    dispatcher._callers.join(Caller(["default"], "slot", 1, patient=True))
    longer = dispatcher.streams._block_ms()
    dispatcher._callers.join(Caller(["default"], "remote", 1, patient=False))
    shorter = dispatcher.streams._block_ms()
    dispatcher.streams._next_poll = 0.0

    assert (longer, shorter) == (LONGEST_BLOCK_S * 1000, BLOCK_S * 1000)
    assert dispatcher.streams._block_ms() == 1  # none at all would mean for ever


async def test_job_that_no_message_brings_is_found_however_long_there_was_nothing(
    quick: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick.dispatcher.streams, "_poll_s", LONGEST_BLOCK_S)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, quick, "gpu")
        await wait_until_async(quick.is_reading)
        monkeypatch.setattr(quick.relay.window, "room", dict)  # its streams are full, as far as it knows
        monkeypatch.setattr(quick.relay.window, "_emptied", set())
        job = await quick.enqueue(queue="gpu")

    assert await status_of(quick, job.id) == "running"  # the caller got it
    assert quick.dispatcher.streams._poll_s == BLOCK_S


async def test_hundred_callers_get_a_hundred_different_jobs(quick: Node) -> None:
    got: list[ClaimedJob] = []

    async def wait() -> None:
        got.extend(await take(quick))

    jobs = [new_job() for _ in range(100)]
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(wait)
        await quick.engine.enqueue_whole(jobs)

    assert {one.job_id for one in got} == {job.id for job in jobs}


BAD_MESSAGES: list[dict[bytes | str, bytes | str]] = [
    {"nothing": "here"},
    {"job_id": ""},
    {"job_id": "not-a-uuid"},
    {"job_id": b"\xff\xfe"},
    {"job_id": "x" * 1_000_000},
    {"job_id": "01a1e28e-3dc9-7005-903d-e355a45694d1", "enqueue_id": "1"},
    {"job_id": "01a1e28e-3dc9-7005-903d-e355a45694d1", "enqueue_id": "many"},
    {"job_id": "01a1e28e-3dc9-7005-903d-e355a45694d1", "enqueue_id": "99999999999999999999"},
]


@pytest.mark.parametrize("fields", BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
async def test_bad_message_is_acknowledged_away_and_the_next_is_served(
    quick: Node, fields: dict[bytes | str, bytes | str]
) -> None:
    await quick.redis.xadd("jobs:stream", fields)
    job = await quick.enqueue()

    (got,) = await take(quick)

    assert got.job_id == job.id
    await quick.done(got)

    async def is_clean() -> bool:
        return bool(await quick.redis.xlen("jobs:stream") == 0)

    with anyio.move_on_after(0.5):
        await take(quick)
    await wait_until_async(is_clean)


async def test_doubled_and_stale_messages_claim_nothing(quick: Node) -> None:
    job = await quick.enqueue()
    await wait_until_async(lambda: quick.redis.xlen("jobs:stream"))
    for enqueue_id in (1, 1, 0, 7):
        await quick.redis.xadd(
            "jobs:stream", {"job_id": str(job.id), "task": "evil", "payload": '{"forged": 1}', "enqueue_id": enqueue_id}
        )

    (got,) = await take(quick)
    with anyio.move_on_after(0.7):
        await take(quick)

    assert (got.task, got.payload) == ("chat", '{"text": "hello"}')
    attempts = await quick.database.pool.fetchval("SELECT attempt_no FROM jobs WHERE id = $1", job.id)
    assert attempts == 1


async def test_message_of_a_job_that_is_not_due_is_not_acknowledged(quick: Node) -> None:
    await quick.enqueue()
    await take(quick)  # by its message, so the relay is through with clearing the stream
    later = await quick.enqueue(delay_s=600)
    message = {"job_id": str(later.id), "enqueue_id": 1}
    message_id = await quick.redis.xadd("jobs:stream", message)

    with anyio.move_on_after(0.7):
        await take(quick)

    assert await status_of(quick, later.id) == "queued"
    assert await quick.redis.xrange("jobs:stream", message_id, message_id) == [(message_id, _as_text(message))]


def _as_text(fields: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in fields.items()}


async def test_caller_that_went_away_gives_its_job_back_uncharged(quick: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves while its job is being claimed."""
    claim, leave = quick.engine.claim, anyio.CancelScope()

    async def claim_slowly(asks: Sequence[Ask]) -> list[ClaimAnswer | Exception]:
        answers = await claim(asks)
        leave.cancel()
        await anyio.sleep(0.05)
        return answers

    monkeypatch.setattr(quick.engine, "claim", claim_slowly)
    job = await quick.enqueue()
    with leave:
        await take(quick)
    monkeypatch.setattr(quick.engine, "claim", claim)

    (got,) = await take(quick)

    assert (got.job_id, got.attempt_no, got.attempt_count) == (job.id, 2, 1)
    outcomes = await quick.database.pool.fetch("SELECT outcome FROM attempts WHERE job_id = $1", job.id)
    assert [row["outcome"] for row in outcomes] == ["released"]


async def test_lease_is_renewed_while_held_and_lost_when_taken(quick: Node) -> None:
    await quick.enqueue()
    (got,) = await take(quick)
    hold = quick.leases.hold(got)

    async def expires_at() -> datetime:
        at: datetime = await quick.database.pool.fetchval("SELECT lease_expires_at FROM leases")
        return at

    async def is_renewed() -> bool:
        return await expires_at() > began

    began = await expires_at()
    await wait_until_async(is_renewed)
    kept = not hold.lost.is_set()
    await quick.database.pool.execute("DELETE FROM leases WHERE resource_id = $1", got.job_id)

    with anyio.fail_after(20):
        await hold.lost.wait()
    assert kept


async def test_holder_is_told_to_cancel(quick: Node) -> None:
    await quick.enqueue()
    (got,) = await take(quick)
    hold = quick.leases.hold(got)

    await quick.engine.cancel([got.job_id])

    with anyio.fail_after(20):
        await hold.cancel.wait()
    assert not hold.lost.is_set()


async def read_as(node: Node, consumer: str) -> str:
    """Read one message; its id."""
    await wait_until_async(lambda: node.redis.xlen("jobs:stream"))
    ((_, ((message_id, _),)),) = await node.redis.xreadgroup("workers", consumer, {"jobs:stream": ">"}, count=1)
    return str(message_id)


@pytest.mark.parametrize("reader", ["jobd-dead", "own"])
async def test_message_left_by_a_dead_node_or_a_lost_read_is_taken_up(
    quick: Node, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    monkeypatch.setattr(quick.dispatcher.streams, "_poll_postgres", find_nothing)
    monkeypatch.setattr("jobd.dispatch.pending.LOST_S", 0.1)
    job = await quick.enqueue()
    message_id = await read_as(quick, quick.dispatcher.consumer if reader == "own" else reader)

    (got,) = await take(quick)

    assert (got.job_id, got.message_id) == (job.id, message_id)


async def test_messages_of_running_jobs_are_not_taken_for_lost(quick: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobd.dispatch.pending.LOST_S", 0.0)
    job = await quick.enqueue()
    (got,) = await take(quick)

    found = await quick.dispatcher.pending._lost_reads("default")
    await quick.done(got)

    assert (got.job_id, found) == (job.id, [])


@pytest.mark.timeout(120)
async def test_job_whose_message_was_lost_is_found_while_others_keep_coming(
    quick: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick.dispatcher.pending, "_search", find_nothing)
    job = await quick.enqueue()
    await read_as(quick, quick.dispatcher.consumer)
    jobs = [new_job() for _ in range(200)]
    await quick.engine.enqueue_whole(jobs)
    got: list[UUID] = []

    with anyio.fail_after(60):
        while job.id not in got:
            await quick.engine.enqueue_whole([new_job()])
            for one in await take(quick):
                got.append(one.job_id)
                await quick.done(one)

    remaining = await quick.database.pool.fetchval("SELECT count(*) FROM jobs WHERE status = 'queued'")
    assert remaining > 100  # it did not have to wait for them


async def test_consumers_of_dead_nodes_are_removed_and_others_stay(
    quick: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobd.dispatch.pending.SILENT_LEASES", 0)
    await quick.enqueue()
    await quick.enqueue()
    await read_as(quick, "jobd-busy")  # has a message in hand
    await read_as(quick, "raw-1")
    await quick.redis.xgroup_createconsumer("jobs:stream", "workers", "jobd-dead")
    await anyio.sleep(0.01)

    await quick.dispatcher.pending._search("default")

    names = {consumer["name"] for consumer in await quick.redis.xinfo_consumers("jobs:stream", "workers")}
    assert {"jobd-busy", "raw-1"} <= names
    assert "jobd-dead" not in names


@pytest.mark.timeout(180)
async def test_callers_are_served_while_redis_is_away_and_after_it_is_back(shared_postgres: str, folder: Path) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as node:
            servers.kill_valkey(folder)
            jobs = [await node.enqueue() for _ in range(20)]
            got = [one for _ in range(10) for one in await take(node)]
            for one in got:
                assert await node.done(one) == Completed()

            with servers.valkey(folder):
                got += [one for _ in range(10) for one in await take(node)]
                for one in got[10:]:
                    await node.done(one)
                await wait_until_async(node.outbox_is_empty, timeout_s=20)
                statuses = {(await node.hash_of(job.id))["status"] for job in jobs}

    assert sorted(one.job_id for one in got) == sorted(job.id for job in jobs)
    assert statuses == {"done"}


@pytest.mark.parametrize("queues", [("default", "gpu"), ("gpu", "default")])
@pytest.mark.parametrize("is_away", [True, False], ids=["redis is away", "redis is there"])
async def test_caller_of_two_queues_gets_the_job_of_either(
    shared_postgres: str, folder: Path, queues: tuple[str, str], is_away: bool
) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as node:
            if is_away:
                servers.kill_valkey(folder)
            job = await node.enqueue(queue="gpu")

            with anyio.fail_after(30):
                (got,) = await node.dispatcher.take(queues, "w")

    assert got.job_id == job.id


@pytest.mark.parametrize("deliver", ["stream", "direct"])
async def test_caller_is_served_from_the_queue_it_likes_best_without_redis_too(
    shared_postgres: str, folder: Path, deliver: Literal["stream", "direct"]
) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG, deliver=deliver).running() as node:
            if deliver == "direct":
                await wait_until_async(lambda: node.dispatcher.direct.is_direct("gpu"))
            servers.kill_valkey(folder)
            for queue in ("default", "gpu"):
                await node.enqueue(queue=queue)

            with anyio.fail_after(30):
                (got,) = await node.dispatcher.take(("gpu", "default"), "w")

    assert got.queue == "gpu"


async def test_dispatcher_that_nobody_calls_stops_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobd.dispatch.stream_reader.BLOCK_S", 3600.0)
    dispatcher = Dispatcher(node.engine, node.database, node.transport, new_id(), lambda: CONFIG)
    ready = anyio.Event()
    handle = Handle(ready.set)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.run, handle)
            await ready.wait()
            await anyio.sleep(0.05)  # it waits for a caller
            handle.stop.set()
