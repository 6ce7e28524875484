"""Two thousand callers wait at one dispatcher: all are served over one connection, first come first served."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.config.model import Config, Leases, Queue
from jobd.dispatch import stream_reader
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.lifecycle.enqueue import NewJob

CROWD = 2000
CONFIG = Config(leases=Leases(ttl_s=60, heartbeat_s=20), queues={name: Queue() for name in ("default", "gpu", "slow")})
#: Every mixture and order of queues that a worker may ask for.
TASTES = [("default",), ("gpu", "default"), ("slow", "gpu", "default"), ("default", "slow")]


@pytest.fixture
async def node(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as node:
            yield node


async def connections(node: Node) -> int:
    return sum(client["name"] == "jobd" for client in await node.redis.client_list())


async def all_wait(node: Node, count: int) -> None:
    await wait_until_async(lambda: len(node.dispatcher._callers) == count)


async def enqueue(node: Node, jobs: list[NewJob]) -> None:
    await node.engine.enqueue_whole(jobs)
    node.wakeup.set()


@pytest.mark.timeout(180)
async def test_each_of_2000_callers_gets_its_job_over_one_connection(node: Node) -> None:
    got: list[ClaimedJob] = []

    async def wait(number: int) -> None:
        got.extend(await node.dispatcher.take(TASTES[number % 4], f"w-{number}", 1, 50.0))

    await node.dispatcher.take(("default",), "first", 1, 0.1)  # the reader's own connection is there from now on
    before = await connections(node)
    jobs = [new_job(queue="default") for _ in range(CROWD)]
    with anyio.fail_after(50):
        async with anyio.create_task_group() as tasks:
            for number in range(CROWD):
                tasks.start_soon(wait, number)
            await all_wait(node, CROWD)
            waiting = await connections(node)
            await enqueue(node, jobs)

    assert sorted(one.job_id for one in got) == sorted(job.id for job in jobs)
    assert len({one.owner_id for one in got}) == CROWD
    assert waiting <= before + 2  # the subscription to other nodes may have come late
    assert await connections(node) <= before + 2


@pytest.mark.timeout(180)
async def test_jobs_that_come_one_by_one_go_to_those_who_came_first(node: Node) -> None:
    order: list[str] = []

    async def wait(number: int) -> None:
        order.extend(one.owner_id for one in await node.dispatcher.take(("default",), f"w-{number}", 1, 50.0))

    with anyio.fail_after(50):
        async with anyio.create_task_group() as tasks:
            for number in range(CROWD):
                tasks.start_soon(wait, number)
            await all_wait(node, CROWD)
            for number in range(50):
                await node.enqueue()
                await all_wait(node, CROWD - number - 1)
            tasks.cancel_scope.cancel()

    # A job that the look at Postgres brought has a message, too, that comes to nothing: it may set one back by a place.
    places = [int(owner.removeprefix("w-")) for owner in order]
    assert sorted(places) == list(range(50))
    assert [place for number, place in enumerate(places) if abs(place - number) > 1] == []


@pytest.mark.timeout(180)
async def test_crowd_that_leaves_takes_no_job_along(node: Node) -> None:
    with anyio.fail_after(50):
        async with anyio.create_task_group() as tasks:
            for number in range(CROWD):
                tasks.start_soon(node.dispatcher.take, ("default",), f"w-{number}")
            await all_wait(node, CROWD)
            tasks.cancel_scope.cancel()
        job = await node.enqueue()
        (got,) = await node.dispatcher.take(("default",), "who stayed")

    assert (got.job_id, got.attempt_no) == (job.id, 1)


@pytest.mark.timeout(180)
async def test_crowd_is_served_without_redis_too(shared_postgres: str, folder: Path) -> None:
    url, got = await new_database(shared_postgres), []

    async def wait(node: Node, number: int) -> None:
        got.extend(await node.dispatcher.take(TASTES[number % 4], f"w-{number}", 1, 50.0))

    jobs = [new_job(queue="default") for _ in range(200)]
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, CONFIG).running() as node, anyio.create_task_group() as tasks:
            servers.kill_valkey(folder)
            for number in range(CROWD):
                tasks.start_soon(wait, node, number)
            await all_wait(node, CROWD)
            await enqueue(node, jobs)
            await all_wait(node, CROWD - 200)
            tasks.cancel_scope.cancel()

    assert sorted(one.job_id for one in got) == sorted(job.id for job in jobs)


async def test_time_that_is_up_brings_nothing_and_costs_nothing(node: Node) -> None:
    got = await node.dispatcher.take(("default",), "w-1", 1, 0.05)
    job = await node.enqueue()

    (later,) = await node.dispatcher.take(("default",), "w-2")

    assert got == []
    assert (later.job_id, later.attempt_no) == (job.id, 1)


async def test_stop_sends_away_those_who_wait_for_a_while(shared_postgres: str, folder: Path) -> None:
    url, got = await new_database(shared_postgres), []

    async def wait(node: Node) -> None:
        got.append(await node.dispatcher.take(("default",), "w-1", 1, 1000.0))

    async with anyio.create_task_group() as tasks:
        with servers.valkey(folder) as redis_url:
            async with Node(url, redis_url, CONFIG).running() as node:
                tasks.start_soon(wait, node)
                await all_wait(node, 1)

    assert got == [[]]
    assert await node.dispatcher.take(("default",), "w-1", 1, 1000.0) == []


# Claims that fail


async def refuse_leases_of(node: Node, job: NewJob, error: str) -> None:
    """Let Postgres refuse every claim of this job."""
    await node.database.pool.execute(
        f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.resource_id = '{job.id}' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{error}'; END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON leases FOR EACH ROW EXECUTE FUNCTION refuse()
        """
    )


async def test_message_that_can_never_be_claimed_is_dropped_and_named(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_reader, "RETRY_S", 0.01)
    bad, good = new_job(), new_job()
    await refuse_leases_of(node, bad, "check_violation")
    await enqueue(node, [bad, good])
    caplog.set_level(logging.WARNING, "jobd.dispatch.dispatcher")

    got = [*await node.dispatcher.take(("default",), "w-1"), *await node.dispatcher.take(("default",), "w-2", 1, 2.0)]

    async def dropped() -> bool:
        return bool(await node.redis.xlen("jobs:stream") == 1)  # the good one's own stays until its job is done

    assert [one.job_id for one in got] == [good.id]
    await wait_until_async(dropped)
    (record,) = [record for record in caplog.records if "is dropped" in record.getMessage()]
    assert vars(record)["job_id"] == str(bad.id)
    assert "jobs:stream" in record.getMessage()


async def test_message_is_kept_while_the_server_is_the_trouble(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "RETRY_S", 0.01)
    job = new_job()
    await refuse_leases_of(node, job, "disk_full")
    await enqueue(node, [job])

    nothing = await node.dispatcher.take(("default",), "w-1", 1, 1.0)
    await node.database.pool.execute("DROP TRIGGER refuse ON leases")
    (got,) = await node.dispatcher.take(("default",), "w-2")

    assert nothing == []
    assert got.job_id == job.id
