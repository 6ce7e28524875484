"""Followers and waits of the node that commits: served by the commit, without Redis, with as few reads as may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from jobd.auth.doorkeeper import Principal
from jobd.follow import jobs as tailer_module
from jobd.http.endpoint import Call
from jobd.http.wait import read_when_final
from jobd.job.history import START, Cursor, HandlerEvent
from jobd.lifecycle.events import EventBatch, HistoryPlace, Kept, read_history
from jobd.lifecycle.read import READ_WHOLE_JOB
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, tailing
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from uuid import UUID

    from jobd.follow.followers import Follower
    from jobd.follow.jobs import Tailer
    from jobd.job.history import Record
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.read import WholeJob

#: Seconds until the next poll of the cursors: later than any test ends.
NO_POLL_S = 600.0


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailer_module, "DEAF_S", NO_POLL_S)
    monkeypatch.setattr(tailer_module, "HEARING_S", NO_POLL_S)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[UUID, Cursor]]]:
    """The places of each read of the tailer."""
    found: list[list[tuple[UUID, Cursor]]] = []

    async def watched(connection: Any, places: Sequence[HistoryPlace]) -> list[Record | None]:
        found.append([(place.job_id, place.after) for place in places])
        return await read_history(connection, places)

    monkeypatch.setattr(tailer_module, "read_history", watched)
    return found


async def emit(node: Node, job: ClaimedJob, *types: str) -> Cursor:
    events = [HandlerEvent(kind, n, "", msgspec.Raw(b"{}")) for n, kind in enumerate(types)]
    answer = await node.engine.emit(EventBatch(job_id=job.job_id, lease_token=job.lease_token, events=events))
    assert isinstance(answer, Kept)
    return answer.last


def ids_in(text: bytes) -> list[str]:
    return [line[4:] for line in text.decode().splitlines() if line.startswith("id: ")]


async def come(follower: Follower[Cursor], cursor: Cursor) -> None:
    await wait_until_async(lambda: follower.cursor >= cursor, f"event {cursor} did not come")


async def away(node: Node, folder: Path, tailer: Tailer) -> None:
    """Redis is gone, and the tailer knows."""
    await wait_until_async(lambda: tailer._hears)
    servers.kill_valkey(folder)
    await wait_until_async(lambda: not tailer._hears)


# -- without Redis and without polls -------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_polls")
async def test_each_commit_of_a_job_reaches_its_follower_while_redis_is_away(node: Node, folder: Path) -> None:
    job = await node.enqueue()
    async with tailing(node) as tailer:
        with tailer.following(job.id, START) as follower:
            await away(node, folder, tailer)
            await come(follower, Cursor(0, 1))
            claimed = await node.claim(job)
            await come(follower, Cursor(1, 0))
            for _ in range(3):
                await come(follower, await emit(node, claimed, "token", "token"))
            await node.failed(claimed)
            await come(follower, Cursor(1, 7))
            await node.engine.cancel([job.id])
            await wait_until_async(lambda: follower.is_over)

            assert ids_in(await follower.next(0)) == ["0-1", *(f"1-{n}" for n in range(9))]


@pytest.mark.usefixtures("no_polls")
async def test_what_the_reaper_ends_reaches_its_follower_while_redis_is_away(node: Node, folder: Path) -> None:
    job = await node.claim(await node.enqueue(max_attempts=1))
    async with tailing(node) as tailer:
        with tailer.following(job.job_id, START) as follower, tailer.waiting(job.job_id) as waiter:
            await away(node, folder, tailer)
            await come(follower, Cursor(1, 0))
            await node.database.execute("UPDATE leases SET lease_expires_at = now() - interval '1 hour'")
            await node.reaper._reap()
            await wait_until_async(lambda: follower.is_over and waiter.is_over)

            assert ids_in(await follower.next(0)) == ["0-1", "1-0", "1-1", "1-2"]


def call_of(node: Node) -> Call:
    """A request that waits on this node."""
    app = Starlette()
    app.state.in_flight = SimpleNamespace(closing=anyio.Event(), on_closing=set())
    services = SimpleNamespace(database=node.database, tailer=node.tailer)
    request = Request({"type": "http", "app": app}, cast("Any", anyio.sleep_forever))
    return Call(request, Principal(name="anonymous", scopes=frozenset({"client"})), cast("Any", services))


@pytest.mark.usefixtures("no_polls")
async def test_waits_end_with_the_commit_while_redis_is_away(
    node: Node, folder: Path, reads: list[list[tuple[UUID, Cursor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await node.enqueue() for _ in range(3)]
    found: dict[UUID, WholeJob] = {}
    fetch = node.database.fetch
    whole_reads: list[UUID] = []

    async def watched(text: str, *arguments: Any) -> Any:
        if text == READ_WHOLE_JOB:
            whole_reads.append(arguments[0])
        return await fetch(text, *arguments)

    monkeypatch.setattr(node.database, "fetch", watched)

    async def wait(job_id: UUID) -> None:
        found[job_id] = await read_when_final(call_of(node), job_id, 60)

    async with tailing(node) as tailer:
        with tailer.waiting(jobs[0].id):
            await away(node, folder, tailer)
        reads.clear()
        async with anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(wait, job.id)
            await wait_until_async(lambda: len(whole_reads) == 3)
            done, failed = await node.claim(jobs[0]), await node.claim(jobs[1])
            await node.done(done, "1")
            await node.failed(failed, retryable=False)
            await node.engine.cancel([jobs[2].id])
        await wait(jobs[0].id)  # which is final already

    assert [found[job.id].job.status for job in jobs] == ["done", "error", "canceled"]
    assert [len(found[job.id].attempts) for job in jobs] == [1, 1, 0]
    assert (len(whole_reads), reads) == (7, [])  # each twice, and the final one once more


# -- as few reads as may be ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_polls")
async def test_what_was_read_is_not_read_again_when_the_channel_brings_it(
    node: Node, reads: list[list[tuple[UUID, Cursor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    node_heard = node.tailer._heard

    def hear(data: bytes) -> None:
        heard.extend(note.type for note in tailer_module._notes.decode(data))
        node_heard(data)

    monkeypatch.setattr(node.tailer, "_heard", hear)
    job = await node.enqueue()
    async with tailing(node) as tailer:
        with tailer.waiting(job.id):
            await wait_until_async(lambda: reads)  # since the channel is heard from now on
        await wait_until_async(node.outbox_is_empty)
        reads.clear()
        with tailer.following(job.id, START) as follower:
            await come(follower, Cursor(0, 1))
            claimed = await node.claim(job)
            await come(follower, Cursor(1, 0))
            await come(follower, await emit(node, claimed, "token"))
            await come(follower, await emit(node, claimed, "token", "log"))
            await node.failed(claimed)
            await come(follower, Cursor(1, 4))
            await wait_until_async(lambda: heard.count("events") == 2 and "queued" in heard[-1:])
            await wait_until_async(lambda: not tailer._moved)

    assert [after for ((_, after),) in reads] == [START, Cursor(0, 1), Cursor(1, 0), Cursor(1, 1), Cursor(1, 3)]


async def test_commits_that_concern_no_follower_cause_no_read(
    node: Node, reads: list[list[tuple[UUID, Cursor]]]
) -> None:
    followed, other = await node.enqueue(), await node.enqueue()
    async with tailing(node) as tailer:
        with tailer.following(followed.id, START) as follower:
            await come(follower, Cursor(0, 1))
            await node.done(await node.claim(other))
            await come(follower, Cursor(0, 1))

    assert {job_id for places in reads for job_id, _ in places} == {followed.id}


# -- nothing is lost -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("when", ["before the read", "after the read", "after the read and a look of the tailer"])
async def test_event_that_comes_while_a_follower_joins_is_not_lost(node: Node, folder: Path, when: str) -> None:
    job = await node.claim(await node.enqueue())
    async with tailing(node) as tailer:
        with tailer.waiting(job.job_id):
            await away(node, folder, tailer)  # nobody says it a second time
        follower = tailer.join(job.job_id)
        if when == "before the read":
            await emit(node, job, "token")
        (record,) = await read_history(node.database, [HistoryPlace(job.job_id, START)])
        assert record is not None
        if when != "before the read":
            await emit(node, job, "token")
        if when.endswith("tailer"):
            await wait_until_async(lambda: follower.was_passed_over)
        tailer.begin(follower, START, record)
        await come(follower, Cursor(1, 1))
        await node.done(job)
        await wait_until_async(lambda: follower.is_over)
        assert ids_in(await follower.next(0)) == ["0-1", "1-0", "1-1", "1-2"]

        tailer.leave(follower)
        tailer.leave(follower)
        assert tailer._followers == {}


@pytest.mark.usefixtures("no_polls")
async def test_wait_for_a_job_that_is_not_made_yet_outlasts_a_poll_that_does_not_find_it(node: Node) -> None:
    job = new_job()
    async with tailing(node) as tailer:
        with tailer.waiting(job.id, is_made=False) as waiter:
            await tailer.run_once([job.id])
            assert not waiter.is_over
            await node.engine.enqueue(job)
            tailer.made(waiter)
            await wait_until_async(lambda: not tailer._moved)
            assert not waiter.is_over
            await node.done(await node.claim(job))

            assert waiter.is_over


async def test_cursors_are_polled_though_wakeups_come_all_the_time(node: Node) -> None:
    """As if every notice of one job were lost while others are followed closely."""
    busy, lost = await node.claim(await node.enqueue()), await node.claim(await node.enqueue())
    async with tailing(node) as tailer:
        with tailer.following(busy.job_id, START) as follower, tailer.following(lost.job_id, START) as unlucky:
            await come(unlucky, Cursor(1, 0))
            followers = tailer._followers.pop(lost.job_id)
            last = await emit(node, lost, "token")
            await wait_until_async(node.outbox_is_empty)
            tailer._followers[lost.job_id] = followers

            async def keep_busy() -> None:
                while True:
                    await come(follower, await emit(node, busy, "token"))
                    await follower.next(0)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(keep_busy)
                await come(unlucky, last)
                tasks.cancel_scope.cancel()
