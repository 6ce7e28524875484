"""The tailer: everyone hears everything in order, with or without Redis, and who does not read costs little.

What it owes to commits of its own node is in test_followed_commits.py.
"""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
import pytest

from jobd.follow.followers import ROOM, ROOM_BYTES
from jobd.http import events as event_routes
from jobd.http.events import EventStream
from jobd.job.history import START, Cursor, HandlerEvent
from jobd.lifecycle.events import LOOK_BYTES, EventBatch, Kept
from tests.support import servers
from tests.support.node import Node, tailing
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.follow.followers import Follower
    from jobd.follow.jobs import Tailer
    from jobd.lifecycle.claim import ClaimedJob

CHUNK = 100


async def emit(node: Node, job: ClaimedJob, number: int, data: bytes = b"{}") -> None:
    events = [HandlerEvent("token", n, "", msgspec.Raw(data)) for n in range(number)]
    answer = await node.engine.emit(EventBatch(job_id=job.job_id, lease_token=job.lease_token, events=events))
    assert isinstance(answer, Kept)


def ids_in(text: bytes) -> list[str]:
    return [line[4:] for line in text.decode().splitlines() if line.startswith("id: ")]


async def ids_of(reader: Follower[Cursor], tailer: Tailer) -> list[str]:
    """All that it hears until its job is over."""
    found: list[str] = []
    with anyio.fail_after(30):
        while text := await reader.next(10):
            found += ids_in(text)
            if reader.was_passed_over:
                tailer.has_room_again(reader)
    return found


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_reader_that_does_not_read_is_passed_over_and_then_hears_the_rest(node: Node, elsewhere: bool) -> None:
    job = await node.claim(await node.enqueue())
    async with tailing(node, elsewhere=elsewhere) as tailer:
        with tailer.following(job.job_id, START) as sleeper, tailer.following(job.job_id, START) as eager:
            heard: list[str] = []

            async def listen() -> None:
                heard.extend(await ids_of(eager, tailer))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                for n in range(1, 11):
                    await emit(node, job, CHUNK)
                    await wait_until_async(partial(_has_come_to, eager, Cursor(1, n * CHUNK)))
                await node.done(job)
            held = sleeper._count
            late = await ids_of(sleeper, tailer)

    whole = ["0-1", *(f"1-{n}" for n in range(10 * CHUNK + 2))]
    assert heard == whole
    assert late == whole
    assert held <= ROOM + CHUNK + 2


async def test_readers_of_large_events_hold_few_of_them_and_hear_all(node: Node) -> None:
    job = await node.claim(await node.enqueue())
    for _ in range(40):
        await emit(node, job, 15, b'"%s"' % (b"x" * 16_000))
    await node.done(job)
    heard: dict[int, list[str]] = {}
    held: list[int] = []

    async with tailing(node) as tailer:

        async def listen(number: int) -> None:
            with tailer.following(job.job_id, START) as reader:
                await wait_until_async(partial(_has_come_to, reader, Cursor(1, 1)))
                for _ in range(20):  # slow at first
                    await anyio.sleep(0.005)
                    held.append(reader._size)
                heard[number] = await ids_of(reader, tailer)

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(listen, number)

    whole = ["0-1", *(f"1-{n}" for n in range(40 * 15 + 2))]
    assert [heard[number] for number in range(4)] == [whole] * 4
    assert max(held) <= ROOM_BYTES + LOOK_BYTES + 15 * 16_200


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_what_is_written_at_once_and_what_is_not_make_one_whole(node: Node, elsewhere: bool) -> None:
    """As if the client's line were busy with every third."""
    job = await node.claim(await node.enqueue())
    written: list[str] = []
    at_once = 0

    def write_at_once(text: bytes) -> bool:
        nonlocal at_once
        at_once += 1
        if at_once % 3 == 0:
            return False
        written.extend(ids_in(text))
        return True

    async with tailing(node, elsewhere=elsewhere) as tailer:
        with tailer.following(job.job_id, START, write_at_once) as reader:

            async def write() -> None:
                while text := await reader.next(10):
                    await anyio.sleep(0.005)
                    written.extend(ids_in(text))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                for n in range(1, 21):
                    await emit(node, job, 1)
                    await wait_until_async(partial(_has_come_to, reader, Cursor(1, n)))
                await node.done(job)

    assert written == ["0-1", *(f"1-{n}" for n in range(22))]
    assert 3 <= at_once <= 22  # both ways were gone


@pytest.mark.timeout(180)
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_events_are_heard_while_redis_is_away(node: Node, folder: Path, elsewhere: bool) -> None:
    async with tailing(node, elsewhere=elsewhere) as tailer:
        job = await node.claim(await node.enqueue())
        with tailer.following(job.job_id, START) as reader:
            await wait_until_async(lambda: _hears(tailer))
            servers.kill_valkey(folder)
            await emit(node, job, 3)
            await node.done(job)

            assert await ids_of(reader, tailer) == ["0-1", "1-0", "1-1", "1-2", "1-3", "1-4"]


async def _has_come_to(reader: Follower[Cursor], cursor: Cursor) -> bool:
    return reader.cursor >= cursor


async def _hears(tailer: Tailer) -> bool:
    return tailer._hears


async def test_many_readers_share_one_connection_to_redis(node: Node) -> None:
    async with tailing(node) as tailer:
        before = len(await node.redis.client_list())
        jobs = [await node.enqueue() for _ in range(20)]
        with contextlib.ExitStack() as stack:
            for job in jobs * 10:
                stack.enter_context(tailer.following(job.id, START))
            await wait_until_async(lambda: _hears(tailer))

            # One for 200 readers; two services of the node may have connected meanwhile.
            assert len(await node.redis.client_list()) <= before + 3


async def test_a_client_that_stopped_reading_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_routes, "WRITE_S", 0.05)
    in_flight = SimpleNamespace(closing=anyio.Event(), on_closing=set(), event_streams=0)
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(in_flight=in_flight)))
    sent: list[Any] = []

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"data: {}\n\n"

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 3:
            await anyio.sleep_forever()  # the other side takes nothing more

    with anyio.fail_after(30):
        await EventStream(request, parts())(cast("Any", {}), receive, send)

    assert len(sent) <= 5
    assert in_flight.on_closing == set()
