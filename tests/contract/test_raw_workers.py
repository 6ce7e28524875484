"""Workers that know only the Redis contract run jobs of jobd, die, freeze, and change nothing that is not theirs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.config import Config, Leases
from jobd.job.history import START, events_after
from jobd.lifecycle.events import Place, read_history
from tests.support import servers
from tests.support.node import Node, eventually, new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from uuid import UUID

WORKER = Path(__file__).with_name("raw_worker.py")


@pytest.fixture
async def quick(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    """A node with leases of three seconds."""
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        config = Config(leases=Leases(ttl_s=3, heartbeat_s=0.3))
        async with Node(url, redis_url, config).running() as node:
            yield node


@contextlib.contextmanager
def raw_worker(node: Node, name: str, work_s: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(WORKER), node.transport.url, name, str(work_s)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def row_of(node: Node, job_id: UUID) -> dict[str, object]:
    return dict(await node.database.pool.fetchrow("SELECT * FROM jobs WHERE id = $1", job_id) or {})


async def until_status(node: Node, job_id: UUID, status: str) -> None:
    async def has_it() -> bool:
        return (await row_of(node, job_id))["status"] == status

    await eventually(has_it, 15)
    await eventually(node.outbox_is_empty)


async def test_job_is_done_and_all_three_agree(quick: Node) -> None:
    with raw_worker(quick, "raw-1", 0.5):
        job = await quick.enqueue(payload='{"n": 7}')
        await until_status(quick, job.id, "done")

    row, found = await row_of(quick, job.id), await quick.hash_of(job.id)
    types = [fields["type"] for _, fields in await quick.events_of(job.id)]
    attempts = await quick.database.pool.fetch("SELECT owner_id, outcome FROM attempts WHERE job_id = $1", job.id)
    assert json.loads(str(row["result"])) == json.loads(found["result"]) == {"echo": {"n": 7}}
    assert found["status"] == "done"
    assert types[0] == "queued"
    assert types.count("done") == 1
    assert types[-1] == "done"
    assert [(attempt["owner_id"].partition(":")[0], attempt["outcome"]) for attempt in attempts] == [("redis", "done")]
    assert await quick.redis.xlen("jobs:stream") == 0


async def test_events_of_a_raw_worker_are_kept_and_can_be_followed(quick: Node) -> None:
    with raw_worker(quick, "raw-1", 0.5):
        job = await quick.enqueue()
        await until_status(quick, job.id, "done")

    (record,) = await read_history(quick.database.pool, [Place(job.id, START)])
    assert record is not None
    kept = [(str(event.cursor), event.type) for event in events_after(record, START)]
    written = [fields["type"] for _, fields in await quick.events_of(job.id)]
    assert [kind for _, kind in kept] == written
    assert written.count("progress") >= 2
    assert [cursor for cursor, _ in kept] == ["0-1", *(f"1-{n}" for n in range(len(kept) - 1))]


async def test_error_of_a_raw_worker_is_the_jobs_error(quick: Node) -> None:
    with raw_worker(quick, "raw-1"):
        job = await quick.enqueue(payload='{"fail": true}')
        await until_status(quick, job.id, "error")

    row = await row_of(quick, job.id)
    assert json.loads(str(row["error"]))["code"] == "asked_to"
    assert [fields["type"] for _, fields in await quick.events_of(job.id)].count("error") == 1


async def test_job_that_takes_longer_than_a_lease_is_kept_by_its_events(quick: Node) -> None:
    with raw_worker(quick, "raw-1", 4.5):
        job = await quick.enqueue()
        await until_status(quick, job.id, "done")

    assert (await row_of(quick, job.id))["attempt_no"] == 1


@pytest.mark.timeout(180)
async def test_job_of_a_killed_worker_is_finished_by_another(quick: Node) -> None:
    job = await quick.enqueue(max_attempts=3)
    with raw_worker(quick, "raw-1", 30):
        await until_status(quick, job.id, "running")

    with raw_worker(quick, "raw-2"):
        await until_status(quick, job.id, "done")

    attempts = await quick.database.pool.fetch(
        "SELECT owner_id, outcome FROM attempts WHERE job_id = $1 ORDER BY number", job.id
    )
    assert [attempt["outcome"] for attempt in attempts] == ["expired", "done"]
    assert attempts[0]["owner_id"] == "redis:raw-1"


@pytest.mark.timeout(180)
async def test_frozen_worker_that_thaws_changes_nothing_and_the_hash_is_put_right(quick: Node) -> None:
    job = await quick.enqueue(max_attempts=3, payload='{"fail": true}')
    with raw_worker(quick, "raw-1", 5) as frozen:
        await until_status(quick, job.id, "running")
        os.kill(frozen.pid, signal.SIGSTOP)
        with anyio.fail_after(30):
            (got,) = await quick.dispatcher.take(("default",), "test-holder", 1)
        await quick.done(got, '{"by": "the second"}')
        await eventually(quick.outbox_is_empty)

        os.kill(frozen.pid, signal.SIGCONT)

        async def zombie_wrote() -> bool:
            return "error" in [fields["type"] for _, fields in await quick.events_of(job.id)]

        async def hash_is_right() -> bool:
            found = await quick.hash_of(job.id)
            return found["status"] == "done" and found["result"] == '{"by": "the second"}' and found["error"] == ""

        await eventually(zombie_wrote, 15)
        await eventually(hash_is_right, 15)

    row = await row_of(quick, job.id)
    assert (row["status"], row["attempt_no"]) == ("done", 2)


async def test_hundred_jobs_shared_by_raw_and_own_workers(quick: Node) -> None:
    jobs = [await quick.enqueue() for _ in range(100)]

    async def own() -> None:
        while True:
            for got in await quick.dispatcher.take(("default",), "test-own", 5):
                await quick.done(got)

    async def all_done() -> bool:
        return bool(await quick.database.pool.fetchval("SELECT count(*) = 100 FROM jobs WHERE status = 'done'"))

    with raw_worker(quick, "raw-1"), raw_worker(quick, "raw-2"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(own)
            await eventually(all_done, 15)
            tasks.cancel_scope.cancel()

    attempts = await quick.database.pool.fetchval("SELECT count(*) FROM attempts")
    assert attempts == len(jobs)
