"""Queues go through their stream or directly to slots: who decides, and that no job is to be had in both ways."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis.asyncio

from jobd.config.model import Config, Leases, Queue, RelayConfig
from jobd.lifecycle.modes import QueueMode, change_mode, queue_modes
from jobd.lifecycle.outbox import raise_epoch
from jobd.lifecycle.read import pause_queue
from jobd.stream import work
from jobd.stream.changes import OfferArray
from jobd.stream.project import EpochChanged, OfferMode, Projector, RedisBatch, in_calls
from tests.support import servers
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from jobd.lifecycle.enqueue import NewJob

STREAM, GROUP = "jobs:stream", "workers"
CONFIG = Config(
    queues={"default": Queue(slots=4), "other": Queue(slots=0), "bare": Queue(slots=0, mirror=False)},
    relay=RelayConfig(stream_window=20),
    leases=Leases(ttl_s=30, heartbeat_s=10),
)


@pytest.fixture
async def auto(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    """A node that chooses the mode of its queues."""
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG, deliver="auto").running() as node:
            yield node


async def has_mode(node: Node, mode: str, queue: str = "default") -> bool:
    return (await queue_modes(node.database)).get(queue, QueueMode()).mode == mode


async def until_mode(node: Node, mode: str, queue: str = "default") -> None:
    await wait_until_async(partial(has_mode, node, mode, queue), lambda: f"queue {queue} is not in mode {mode}")


async def offered(node: Node) -> list[str]:
    return [fields["job_id"] for _, fields in await node.redis.xrange(STREAM)]


async def are_offered(node: Node, *jobs: NewJob) -> bool:
    return sorted(await offered(node)) == sorted(str(job.id) for job in jobs)


async def read(node: Node, consumer: str = "raw-1", count: int = 1, block: int | None = None) -> list[str]:
    """Messages that a worker has in hand, as their ids."""
    async with redis.asyncio.Redis.from_url(node.transport.url, decode_responses=True, socket_timeout=None) as client:
        answer: Any = await client.xreadgroup(GROUP, consumer, {STREAM: ">"}, count=count, block=block)
    return [message_id for _, messages in answer for message_id, _ in messages]


async def look_elsewhere(session: object) -> None:
    """In place of a look at raw workers."""


# -- who decides -----------------------------------------------------------------------------------------------------


async def test_queue_with_slots_is_direct_and_nothing_is_offered(auto: Node) -> None:
    await until_mode(auto, "direct")
    job = await auto.enqueue()
    await wait_until_async(auto.outbox_is_empty)
    await auto.enqueue(queue="other")
    await wait_until_async(lambda: auto.redis.xlen("jobs:stream:other"))

    assert await offered(auto) == []
    assert (await auto.hash_of(job.id))["status"] == "queued"
    assert await has_mode(auto, "stream", "other")


async def test_queue_without_a_mirror_is_direct_though_it_has_no_slots(auto: Node) -> None:
    await until_mode(auto, "direct", "bare")


@pytest.mark.parametrize("deliver", ["stream", "direct"])
async def test_configuration_decides(auto: Node, deliver: Any) -> None:
    await until_mode(auto, "direct")
    auto.config = Config(queues={"default": Queue(deliver=deliver), "other": Queue(slots=0, deliver=deliver)})

    await until_mode(auto, deliver)
    await until_mode(auto, deliver, "other")


async def test_queue_that_the_leader_does_not_know_keeps_its_mode(auto: Node) -> None:
    await until_mode(auto, "direct")
    auto.config = Config(queues={"other": Queue(deliver="direct")})

    await until_mode(auto, "direct", "other")

    assert await has_mode(auto, "direct")


async def test_dispatcher_hears_which_queues_are_direct(auto: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[frozenset[str]] = []
    monkeypatch.setattr(auto.relay.modes, "_on_modes", heard.append)
    await until_mode(auto, "direct")
    auto.config = Config(queues={"default": Queue(deliver="stream"), "bare": Queue(mirror=False)})

    await wait_until_async(lambda: heard and heard[-1] == {"bare"})


async def test_node_that_stands_by_hears_of_the_modes_too(auto: Node) -> None:
    await until_mode(auto, "direct")
    second = Node(auto.database.url, auto.transport.url, Config(queues={"default": Queue(slots=0)}), deliver="auto")
    async with second.running():
        await wait_until_async(lambda: second.relay.modes.is_direct("default"))

        assert await has_mode(auto, "direct")


# -- raw workers come and go -----------------------------------------------------------------------------------------


async def test_worker_that_waits_at_the_stream_gets_the_jobs(auto: Node) -> None:
    await until_mode(auto, "direct")
    jobs = [await auto.enqueue() for _ in range(3)]
    await wait_until_async(auto.outbox_is_empty)

    found = await read(auto, count=1, block=30_000)  # nothing is there yet

    assert len(found) == 1
    assert await has_mode(auto, "stream")
    await wait_until_async(lambda: are_offered(auto, *jobs))


async def test_queue_is_direct_again_when_its_raw_workers_were_silent_for_long(
    auto: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until_mode(auto, "direct")
    await read(auto)
    await until_mode(auto, "stream")
    job = await auto.enqueue()
    await wait_until_async(lambda: are_offered(auto, job))

    monkeypatch.setattr("jobd.stream.modes.SILENT_S", 0.0)

    await until_mode(auto, "direct")
    assert await offered(auto) == []
    monkeypatch.undo()
    await read(auto)
    await wait_until_async(lambda: are_offered(auto, job))  # offered again under its old enqueue_id


async def test_worker_that_has_waited_for_long_counts_as_there(auto: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await until_mode(auto, "direct")
    got: list[str] = []

    async def wait() -> None:
        got.extend(await read(auto, block=60_000))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await until_mode(auto, "stream")
        checks: list[object] = []
        monkeypatch.setattr("jobd.stream.modes.WAITING_CHECK_S", 0.0)
        monkeypatch.setattr("jobd.stream.modes.CHECK_S", 0.01)
        monkeypatch.setattr("jobd.stream.modes.SILENT_S", 0.0)
        still_waits = auto.relay.modes._still_waits

        async def counted(silent_s: Collection[float]) -> bool:
            checks.append(silent_s)
            return await still_waits(silent_s)

        monkeypatch.setattr(auto.relay.modes, "_still_waits", counted)
        await wait_until_async(lambda: len(checks) >= 5)
        assert await has_mode(auto, "stream")
        await auto.enqueue()

    assert len(got) == 1


async def test_queue_stays_with_the_stream_while_a_raw_worker_has_a_message_in_hand(
    auto: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobd.stream.modes.SILENT_S", 0.0)
    await until_mode(auto, "direct")
    auto.config = Config(queues={"default": Queue(deliver="stream"), "third": Queue(slots=0)})
    await until_mode(auto, "stream")
    job = await auto.enqueue()
    await wait_until_async(lambda: are_offered(auto, job))
    (message_id,) = await read(auto)
    before = await queue_modes(auto.database)
    ways: list[Any] = ["direct", "stream", "direct"]
    for deliver in ways:  # each change of another queue shows that all were looked at
        auto.config = Config(queues={"default": Queue(), "third": Queue(deliver=deliver)})
        await until_mode(auto, deliver, "third")
    held = await queue_modes(auto.database)

    await auto.redis.hset(f"job:{job.id}", mapping={"status": "done", "result": "{}"})
    await auto.redis.xack(STREAM, GROUP, message_id)

    await until_mode(auto, "direct")
    assert held["default"] == before["default"]
    assert await auto.database.pool.fetchval("SELECT status FROM jobs WHERE id = $1", job.id) == "done"


# -- the hand-over ---------------------------------------------------------------------------------------------------


async def test_message_in_the_hands_of_a_raw_worker_that_jobd_has_not_seen_holds_the_change_up(
    auto: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobd.stream.modes.CHECK_S", 0.01)
    auto.config = Config(queues={"default": Queue(deliver="stream")})
    look = auto.raw_workers.run_once
    monkeypatch.setattr(auto.raw_workers, "run_once", look_elsewhere)
    jobs = [await auto.enqueue() for _ in range(2)]
    await wait_until_async(lambda: are_offered(auto, *jobs))
    await read(auto)

    auto.config = Config(queues={"default": Queue(deliver="direct")})
    await wait_until_async(lambda: are_offered(auto, jobs[0]))  # what nobody has read is taken back at once
    while_unseen = await has_mode(auto, "stream")
    late = await auto.enqueue()
    await wait_until_async(auto.outbox_is_empty)
    offered_meanwhile = await offered(auto)
    monkeypatch.setattr(auto.raw_workers, "run_once", look)

    await until_mode(auto, "direct")
    assert while_unseen
    assert str(late.id) not in offered_meanwhile
    assert await auto.database.pool.fetchval("SELECT status FROM jobs WHERE id = $1", jobs[0].id) == "running"


async def test_change_that_came_to_nothing_does_not_close_the_stream(
    auto: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader died between the fence and the change, or thought better of it."""
    auto.config = Config(queues={"default": Queue(deliver="stream")})
    await until_mode(auto, "stream")
    mode_no = (await queue_modes(auto.database)).get("default", QueueMode()).mode_no
    await auto.redis.hset("jobd:modes", "default", mode_no + 1)

    job = await auto.enqueue()

    await wait_until_async(lambda: are_offered(auto, job))
    assert await has_mode(auto, "stream")


async def test_messages_of_waiting_jobs_in_the_hands_of_jobd_are_taken_back(auto: Node) -> None:
    auto.config = Config(queues={"default": Queue(deliver="stream")})
    jobs = [await auto.enqueue() for _ in range(3)]
    await wait_until_async(lambda: are_offered(auto, *jobs))
    (first, _) = await read(auto, "jobd-of-another-node", 2)
    claimed = await auto.claim(jobs[0], stream=STREAM, message_id=first)

    auto.config = CONFIG

    await until_mode(auto, "direct")
    assert await are_offered(auto, jobs[0])
    await auto.done(claimed)
    await wait_until_async(lambda: are_offered(auto))


async def test_offer_of_an_earlier_mode_is_refused(auto: Node) -> None:
    """As a relay makes it that was frozen and does not know yet that another one leads."""
    before = (await queue_modes(auto.database)).get("default", QueueMode()).mode_no
    await until_mode(auto, "direct")
    job = await auto.enqueue()
    await wait_until_async(auto.outbox_is_empty)
    offer = OfferArray(str(job.id), STREAM, "chat", "{}", 1, 1, "1", 600)

    calls = in_calls(RedisBatch(offers=[offer], modes=[OfferMode("default", STREAM, before)]))
    lacking = await Projector(auto.transport.client).send(await auto.redis.get("jobd:epoch"), calls)

    assert lacking.refused == ["default"]
    assert await offered(auto) == []


async def test_relay_whose_offers_are_refused_goes_by_what_postgres_says(auto: Node) -> None:
    auto.config = Config(queues={"default": Queue(deliver="stream")})
    await auto.enqueue()
    await wait_until_async(lambda: auto.redis.xlen(STREAM))
    known = auto.relay.modes.of("default")
    auto.relay.modes._next_check = float("inf")
    await auto.redis.hset("jobd:modes", "default", known.mode_no + 1)  # as another leader does
    await change_mode(auto.database, "default", "direct", mode_no=known.mode_no)

    await auto.enqueue()

    await wait_until_async(lambda: auto.relay.modes.of("default").mode_no > known.mode_no)


async def test_relay_that_begins_raises_the_numbers_of_the_streams(auto: Node) -> None:
    await until_mode(auto, "direct")
    auto.config = Config(queues={"default": Queue(deliver="stream")})
    await until_mode(auto, "stream")
    before = await queue_modes(auto.database)

    await auto.redis.flushall()
    job = await auto.enqueue()

    await wait_until_async(lambda: are_offered(auto, job))
    after = await queue_modes(auto.database)
    assert after["default"].mode_no > before["default"].mode_no
    assert after["bare"] == before["bare"]  # its fence stands


@pytest.mark.parametrize("lost", ["everything", "the fence", "the fence is no hash"])
async def test_lost_fences_are_raised_again(auto: Node, lost: str) -> None:
    await until_mode(auto, "direct")
    before = await auto.redis.get("jobd:epoch")
    await (auto.redis.flushall() if lost == "everything" else auto.redis.delete("jobd:modes"))
    if lost == "the fence is no hash":
        await auto.redis.set("jobd:modes", "in the way")
    job = await auto.enqueue()

    async def are_back() -> bool:
        if await auto.redis.type("jobd:modes") != "hash":
            return False
        fences = {queue: int(number) for queue, number in (await auto.redis.hgetall("jobd:modes")).items()}
        modes = await queue_modes(auto.database)
        return all(fences.get(queue) == modes[queue].mode_no for queue in ("default", "bare"))

    await wait_until_async(are_back)
    await wait_until_async(auto.outbox_is_empty)
    assert await offered(auto) == []
    assert await auto.hash_of(job.id)
    assert (await auto.redis.get("jobd:epoch") == before) == (lost == "the fence")


async def test_change_is_refused_in_an_epoch_that_is_over(auto: Node) -> None:
    """The fence may have been lost with what Redis held."""
    auto.config = Config(queues={"default": Queue(deliver="stream")})
    await wait_until_async(lambda: auto.redis.exists("jobd:epoch"))
    epoch = await auto.redis.get("jobd:epoch")
    auto.relay.modes._next_check = float("inf")

    await raise_epoch(auto.database)
    with pytest.raises(EpochChanged):
        await auto.relay.modes._to_direct(auto.database, epoch, "default", is_forced=True)

    assert await has_mode(auto, "stream")


# -- work ------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def hearing(node: Node, own: str = "") -> AsyncIterator[list[Collection[str]]]:
    heard: list[Collection[str]] = []

    async def is_heard() -> bool:
        return bool((await node.redis.pubsub_numsub("jobd:work"))[0][1])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.hear, heard.append, node.transport, own)
        await wait_until_async(is_heard)
        yield heard
        tasks.cancel_scope.cancel()


async def nobody_promotes(session: object) -> set[str]:
    return set()


@pytest.mark.parametrize("happening", ["enqueued", "requeued", "promoted by relay", "promoted by dispatcher"])
async def test_nodes_hear_which_direct_queues_have_jobs(
    auto: Node, happening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if happening.startswith("promoted"):  # whichever of the two sees first that the job is due
        other = "jobd.stream.relay" if happening == "promoted by dispatcher" else "jobd.dispatch.direct"
        monkeypatch.setattr(f"{other}.promote_due_in", nobody_promotes)
    own: list[Collection[str]] = []
    monkeypatch.setattr(auto.relay, "_on_work", own.append)
    await until_mode(auto, "direct")
    claimed = await auto.claim(await auto.enqueue())
    await wait_until_async(auto.outbox_is_empty)
    async with hearing(auto) as heard, hearing(auto, auto.names.owner_id) as not_its_own:
        own.clear()

        if happening == "requeued":
            await auto.engine.release(claimed.held)
        else:
            await auto.enqueue(delay_s=0.5 if happening.startswith("promoted") else 0.0)

        await wait_until_async(lambda: any("default" in queues for queues in heard))

    assert [sorted(queues) for queues in own] == [["default"]] * len(own)
    assert own or happening == "promoted by dispatcher"
    assert not_its_own == []


async def test_nobody_hears_of_jobs_that_go_through_a_stream(auto: Node) -> None:
    await until_mode(auto, "direct")
    async with hearing(auto) as heard:
        await auto.enqueue(queue="other")
        await wait_until_async(lambda: auto.redis.xlen("jobs:stream:other"))
        await auto.enqueue()
        await wait_until_async(lambda: any("default" in queues for queues in heard))

    assert not any("other" in queues for queues in heard)


# -- pauses ----------------------------------------------------------------------------------------------------------


async def test_paused_queue_is_not_asked_for_jobs_at_every_submit(auto: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await until_mode(auto, "direct")
    takes: list[object] = []
    take = auto.engine.take

    async def counted(wants: Any, **options: Any) -> Any:
        takes.append(wants)
        return await take(wants, **options)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(auto.dispatcher.take, ("default",), "waits", 1)
        await wait_until_async(lambda: auto.dispatcher.direct.is_direct("default"))
        await auto.engine.pause_queue("default", paused=True)
        monkeypatch.setattr(auto.engine, "take", counted)
        monkeypatch.setattr(auto.dispatcher.direct, "_poll_at", time.monotonic() + 600)
        for _ in range(20):
            await auto.enqueue()
        tasks.cancel_scope.cancel()

    assert takes == []


async def test_resume_by_another_node_is_noticed_while_jobs_keep_coming(auto: Node) -> None:
    await until_mode(auto, "direct")
    await auto.engine.pause_queue("default", paused=True)
    first = await auto.enqueue()
    got: list[Any] = []

    async def wait() -> None:
        got.extend(await auto.dispatcher.take(("default",), "waits", 1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await pause_queue(auto.database, "default", paused=False)  # without a word to this node
        with anyio.fail_after(60):
            while not got:
                await auto.enqueue()

    assert [job.job_id for job in got] == [first.id]
