"""The schedule service at work: on time, woken by what happens, over steps of the clock, and quiet while idle."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from jobd.config.model import Config, Leases, ScheduleConfig
from jobd.schedules import service
from jobd.schedules.change import create
from jobd.schedules.fire import look
from jobd.supervise.service import Handle
from tests.schedules.factories import definition, events_of, occurrences_of, row
from tests.support import servers
from tests.support.clock import TO_1970_S, set_clock
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob

#: The clock is compared ten times within the time of a lease.
CONFIG = Config(leases=Leases(ttl_s=3, heartbeat_s=0.3))
DAY_S = 86_400.0


@pytest.fixture
async def node(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG, deliver="direct").running() as node:
            yield node


@contextlib.asynccontextmanager
async def firing(node: Node) -> AsyncIterator[Handle]:
    ready = anyio.Event()
    handle = Handle(ready.set)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.schedules.run, handle)
        with anyio.fail_after(30):
            await ready.wait()
        yield handle
        handle.stop.set()


async def make(node: Node, name: str = "tick", **fields: Any) -> None:
    fields = {"every": "1s", "overlap": "allow_all", "catch_up": "all", **fields}
    await create(node.database, name, definition(**fields), actor="test")
    node.schedules.wakeup.set()


async def take(node: Node) -> ClaimedJob:
    with anyio.fail_after(60):
        (job,) = await node.dispatcher.take(("default",), "test", 1)
        return job


async def started(node: Node, number: int) -> list[datetime]:
    async def are_there() -> bool:
        return len(await occurrences_of(node.database)) >= number

    await wait_until_async(are_there)
    return await occurrences_of(node.database)


async def now(node: Node) -> datetime:
    return (await look(node.database)).now


def assert_once(occurrences: list[datetime]) -> None:
    assert [at for at, number in Counter(occurrences).items() if number > 1] == []


async def test_new_schedule_fires_second_by_second_and_none_is_missing(node: Node) -> None:
    async with firing(node):
        await make(node)
        found = await started(node, 4)

    assert found == _seconds(found[0], found[-1])


async def test_who_waits_for_a_job_gets_it(node: Node) -> None:
    async with firing(node):
        await make(node)
        job = await take(node)

    assert job.task == "chat"


async def test_what_waits_for_the_end_of_a_job_starts_when_that_ends_here(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BUFFERED_S", 3600.0)
    await make(node, overlap="buffer_one", end=datetime.now(timezone.utc) + timedelta(seconds=3))
    async with firing(node):
        job = await take(node)

        async def one_waits() -> bool:
            return bool((await row(node.database)).buffered)

        await wait_until_async(one_waits)
        await node.done(job)
        assert (await take(node)).job_id != job.job_id


async def test_schedules_of_the_configuration_are_taken_over_at_the_start_and_at_a_reload(node: Node) -> None:
    node.config = replace(node.config, schedules={"a": ScheduleConfig(every="1h", task="chat")})
    async with firing(node):
        assert (await row(node.database, "a")).origin == "config"
        node.config = replace(node.config, schedules={"b": ScheduleConfig(every="1h", task="chat")})

        async def is_replaced() -> bool:
            rows = await node.database.fetch("SELECT name FROM schedules")
            return [found["name"] for found in rows] == ["b"]

        await wait_until_async(is_replaced)


async def test_idle_service_looks_once_and_sleeps(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Counter[str]()
    fetch = node.database.fetch

    async def counted(query: str, *args: object) -> list[Any]:
        looks[query.splitlines()[0]] += "schedules" in query
        return await fetch(query, *args)

    monkeypatch.setattr(node.database, "fetch", counted)
    await make(node, every="30d")
    async with firing(node):
        await anyio.sleep(2.5 * service.SLICE_S)

    assert looks["-- name: look_at_schedules"] == 2  # at the start, and for the new schedule
    assert service.LOOK_S == 60


# -- steps of the clock --


async def test_step_to_1970_fires_nothing_and_the_way_back_catches_up(node: Node) -> None:
    await make(node)
    async with firing(node) as handle:
        await started(node, 2)
        await set_clock(node.database.pool, TO_1970_S)
        await wait_until_async(lambda: handle.note)
        before = await occurrences_of(node.database)
        await anyio.sleep(3)
        assert await occurrences_of(node.database) == before
        assert "cannot be right" in handle.note

        await set_clock(node.database.pool, 0.0)
        found = await started(node, len(before) + 3)

    assert_once(found)
    assert found == _seconds(found[0], found[-1])


def _seconds(first: datetime, last: datetime) -> list[datetime]:
    return [first + timedelta(seconds=n) for n in range(round((last - first).total_seconds()) + 1)]


async def test_step_back_by_an_hour_fires_nothing_twice_and_the_way_back_goes_on(node: Node) -> None:
    await make(node)
    async with firing(node):
        await started(node, 3)
        await set_clock(node.database.pool, -3600.0)
        behind = await now(node)

        async def goes_on() -> bool:
            found = await occurrences_of(node.database)
            return sum(at <= behind + timedelta(minutes=30) for at in found) >= 3

        await wait_until_async(goes_on)
        await set_clock(node.database.pool, 0.0)
        number = len(await occurrences_of(node.database))
        found = await started(node, number + 3)

    assert_once(found)


@pytest.mark.parametrize("catch_up", ["one", "all", "none"])
async def test_step_forward_by_a_day_is_caught_up_as_the_policy_says(node: Node, catch_up: str) -> None:
    await make(node, every="1m", catch_up=catch_up)
    before = await now(node)
    async with firing(node):
        await set_clock(node.database.pool, DAY_S)

        async def is_noticed() -> bool:
            return bool(await events_of(node.database))

        await wait_until_async(is_noticed)
        found = await occurrences_of(node.database)
        (kind, missed), *_ = await events_of(node.database)

    assert_once(found)
    assert kind == "missed"
    least = {"one": 1, "all": 100, "none": 0}[catch_up]
    assert least <= len(found) <= least + 2
    assert 1439 <= len(found) + missed <= 1442
    assert all(at > before + timedelta(hours=22) for at in found)
