"""Two nodes on one Postgres and one Redis whose configurations differ, as in the middle of a rolling change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.config.model import Config, Queue, RelayConfig
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob

WINDOW = 20
OLD = Config(relay=RelayConfig(stream_window=WINDOW))
#: The same with one queue more.
NEW = Config(relay=RelayConfig(stream_window=WINDOW), queues={"default": Queue(), "gpu": Queue()})


@pytest.fixture
async def nodes(
    shared_postgres: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Node, Node]]:
    """One of each; the first relays and has never heard of queue `gpu`."""
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, OLD).running() as old:
            await wait_until_async(lambda: old.redis.exists("jobd:epoch"))
            async with Node(url, redis_url, NEW).running() as new:
                monkeypatch.setattr(new.dispatcher.streams, "_poll_postgres", _finds_nothing)  # else it would help out
                yield old, new


async def _finds_nothing(*_: object) -> bool:
    return False


async def test_queue_that_only_one_node_has_is_served_through_its_stream(nodes: tuple[Node, Node]) -> None:
    _, new = nodes
    got: list[ClaimedJob] = []

    async def wait() -> None:
        got.extend(await new.dispatcher.take(("gpu",), "test", 1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await wait_until_async(lambda: new.redis.exists("jobs:stream:gpu"))
        job = await new.enqueue(queue="gpu")

    assert [(one.job_id, one.stream) for one in got] == [(job.id, "jobs:stream:gpu")]


async def test_queue_of_another_node_starts_no_new_epoch_and_doubles_no_message(nodes: tuple[Node, Node]) -> None:
    old, new = nodes
    await old.engine.enqueue_whole([new_job() for _ in range(3 * WINDOW)])
    await wait_until_async(lambda: _has_messages(old, WINDOW))
    before = await old.redis.get("jobd:epoch")

    for _ in range(100):
        with anyio.fail_after(30):
            job = await new.enqueue(queue="gpu")
            (got,) = await new.dispatcher.take(("gpu",), "test", 1)
        await new.done(got)
        assert got.job_id == job.id

    assert await old.redis.get("jobd:epoch") == before
    assert await old.redis.xlen("jobs:stream") == WINDOW


async def test_stream_that_vanished_is_filled_again_at_once(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it sees the loss; the relay alone would see it at a sweep."""
    old, new = nodes
    monkeypatch.setattr(old.relay, "_next_sweep", float("inf"))
    got: list[ClaimedJob] = []

    async def wait() -> None:
        while len(got) < 3:
            got.extend(await new.dispatcher.take(("gpu",), "test", 1))

    job = await new.enqueue(queue="gpu")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await wait_until_async(lambda: len(got) == 1)
        await wait_until_async(new.is_reading)
        await old.redis.delete("jobs:stream:gpu")
        jobs = [await new.enqueue(queue="gpu") for _ in range(2)]

    assert {one.job_id for one in got} == {job.id, *(one.id for one in jobs)}
    assert {one.stream for one in got} == {"jobs:stream:gpu"}


async def _has_messages(node: Node, number: int) -> bool:
    return bool(await node.redis.xlen("jobs:stream") == number)
