"""Workers that know only the Redis contract run jobs of jobd, die, freeze, and change nothing that is not theirs."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest
import redis.exceptions

from jobd.config.model import Config, Leases, Limits, RelayConfig
from jobd.job.history import START, events_after
from jobd.lifecycle.events import HistoryPlace, read_history
from jobd.lifecycle.rollups import roll_up
from tests.support import servers
from tests.support.factories import new_job
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from uuid import UUID

    from jobd.lifecycle.enqueue import NewJob

WORKER = Path(__file__).with_name("raw_worker.py")


@pytest.fixture
async def quick(shared_postgres: str, folder: Path) -> AsyncIterator[Node]:
    """A node with leases of three seconds."""
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        config = Config(leases=Leases(ttl_s=3, heartbeat_s=0.3))
        async with Node(url, redis_url, config, folder).running() as node:
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

    await wait_until_async(has_it, timeout_s=15)
    await wait_until_async(node.outbox_is_empty)


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
    await roll_up(quick.database, most=100)
    assert await quick.database.pool.fetchval("SELECT sum(done) FROM rollups") == 1
    assert types[-1] == "done"
    assert [(attempt["owner_id"].partition(":")[0], attempt["outcome"]) for attempt in attempts] == [("redis", "done")]
    assert await quick.redis.xlen("jobs:stream") == 0


async def test_events_of_a_raw_worker_are_kept_and_can_be_followed(quick: Node) -> None:
    with raw_worker(quick, "raw-1", 0.5):
        job = await quick.enqueue()
        await until_status(quick, job.id, "done")

    (record,) = await read_history(quick.database.pool, [HistoryPlace(job.id, START)])
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
    job = await quick.enqueue(max_attempts=20)
    with raw_worker(quick, "raw-1", 30):
        await until_status(quick, job.id, "running")

    with raw_worker(quick, "raw-2"):
        await until_status(quick, job.id, "done")

    attempts = await quick.database.pool.fetch(
        "SELECT owner_id, outcome FROM attempts WHERE job_id = $1 ORDER BY number", job.id
    )
    # on a busy machine the short lease of the second worker may end too, before it has said anything
    *lost, last = [attempt["outcome"] for attempt in attempts]
    assert lost and set(lost) == {"expired"} and last == "done"
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
        await wait_until_async(quick.outbox_is_empty)

        os.kill(frozen.pid, signal.SIGCONT)

        async def zombie_wrote() -> bool:
            return "error" in [fields["type"] for _, fields in await quick.events_of(job.id)]

        async def hash_is_right() -> bool:
            found = await quick.hash_of(job.id)
            return found["status"] == "done" and found["result"] == '{"by": "the second"}' and found["error"] == ""

        await wait_until_async(zombie_wrote, timeout_s=15)
        await wait_until_async(hash_is_right, timeout_s=15)

    row = await row_of(quick, job.id)
    assert (row["status"], row["attempt_no"]) == ("done", 2)


async def test_hundred_jobs_shared_by_raw_and_own_workers_are_run_once_each(
    quick: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by who ran them: attempts on record do not show a run that jobd did not see."""
    monkeypatch.setattr("jobd.dispatch.stream_reader.BLOCK_S", 0.01)  # Postgres is looked at all the time
    monkeypatch.setattr("jobd.dispatch.stream_reader.LONGEST_BLOCK_S", 0.01)
    runs: list[str] = []

    async def own() -> None:
        while True:
            for got in await quick.dispatcher.take(("default",), "test-own", 5):
                runs.append(str(got.job_id))
                await anyio.sleep(0.1)
                await quick.done(got)

    async def submit() -> None:
        for _ in range(100):
            await quick.enqueue()
            await anyio.sleep(0.01)

    async def all_done() -> bool:
        return bool(await quick.database.pool.fetchval("SELECT count(*) = 100 FROM jobs WHERE status = 'done'"))

    with raw_worker(quick, "raw-1"), raw_worker(quick, "raw-2"):
        await wait_until_async(lambda: _are_reading(quick, 2))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(own)
            await submit()
            await wait_until_async(all_done, timeout_s=60)
            tasks.cancel_scope.cancel()

    raw_runs = await quick.redis.lrange("test:runs", 0, -1)
    assert len(raw_runs) > 0
    assert len(runs) > 0
    assert len({*runs, *raw_runs}) == len(runs) + len(raw_runs) == 100
    assert await quick.database.pool.fetchval("SELECT count(*) FROM attempts") == 100


async def test_job_that_a_raw_worker_has_just_read_is_not_given_to_an_idle_slot(
    quick: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before jobd knows of the worker: its first message, and the slot's look at Postgres is overdue."""
    job = await quick.enqueue()
    await wait_until_async(lambda: quick.redis.xlen("jobs:stream"))
    monkeypatch.setattr(quick.raw_workers, "run_once", _look_elsewhere)
    await quick.redis.xreadgroup("workers", "raw-1", {"jobs:stream": ">"})

    poll, found = quick.dispatcher.streams._poll_postgres, list[bool]()

    async def counted_poll(*raw: Sequence[str]) -> bool:
        found.append(await poll(*raw))
        return found[-1]

    monkeypatch.setattr(quick.dispatcher.streams, "_poll_postgres", counted_poll)
    quick.dispatcher.streams._next_poll = 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(quick.dispatcher.take, ("default",), "test-own")
        await wait_until_async(lambda: found)
        tasks.cancel_scope.cancel()

    assert found == [False]
    assert (await row_of(quick, job.id))["status"] == "queued"


async def test_queues_that_raw_workers_read_are_known_in_postgres(quick: Node) -> None:
    with contextlib.suppress(Exception):
        await quick.redis.xgroup_create("jobs:stream", "workers", "0", mkstream=True)
    await quick.redis.xreadgroup("workers", "raw-1", {"jobs:stream": ">"})

    async def is_known() -> bool:
        return bool(await quick.database.pool.fetchval("SELECT raw_seen_at FROM queues WHERE name = 'default'"))

    await wait_until_async(is_known)


async def _look_elsewhere(session: object) -> None:
    """In place of a look at raw workers."""


async def _are_reading(node: Node, number: int) -> bool:
    if not await node.redis.exists("jobs:stream"):
        return False
    consumers = await node.redis.xinfo_consumers("jobs:stream", "workers")
    return len([consumer for consumer in consumers if not consumer["name"].startswith("jobd-")]) == number


# -- what no worker should write, and some do ---------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe"
#: What jsonb or a parser refuses.
UNSTORABLE = {
    "a NUL": b"text\0with a NUL",
    "an escaped NUL": b'{"text": "a\\u0000b"}',
    "a pickle": pickle.dumps({"loss": 0.5}),
    "an image": PNG,
    "a tiny number": b"1e-20000",
    "many digits": b"[" + b"9" * 200_000 + b"]",
    "brackets": b"[" * 100_000 + b"]" * 100_000,
    "half a surrogate pair": b'"\\ud800"',
}


async def takes(node: Node, number: int, consumer: str | bytes = "raw-1") -> dict[str, str]:
    """Read so many messages as a raw worker does; the message of each job."""
    taken: dict[str, str] = {}
    with anyio.fail_after(20):
        while len(taken) < number:
            try:
                answer = await node.redis.xreadgroup("workers", consumer, {"jobs:stream": ">"}, count=number, block=100)
            except redis.exceptions.ResponseError:  # the relay has not made the group yet
                await anyio.sleep(0.05)
                continue
            taken |= {fields["job_id"]: message for _, messages in answer for message, fields in messages}
    return taken


async def writes_the_end(node: Node, job: NewJob, status: str, **fields: bytes) -> None:
    await node.redis.hset(f"job:{job.id}", mapping={"status": status, **fields})
    await node.redis.xadd(f"job:{job.id}:events", {"type": status, "ts": "1", "step": "", "data": "{}"})


async def test_result_that_cannot_be_stored_fails_its_own_job_and_no_other(quick: Node) -> None:
    bad = {name: await quick.enqueue() for name in UNSTORABLE}
    good = await quick.enqueue()
    await takes(quick, len(bad) + 1)
    for name, job in bad.items():
        await writes_the_end(quick, job, "done", result=UNSTORABLE[name])
    await writes_the_end(quick, good, "done", result=b'{"fine": true}')

    await until_status(quick, good.id, "done")
    for job in bad.values():
        await until_status(quick, job.id, "error")

    errors = {name: json.loads(str((await row_of(quick, job.id))["error"]))["code"] for name, job in bad.items()}
    assert errors == dict.fromkeys(UNSTORABLE, "bad_result")
    assert {await quick.redis.hget(f"job:{job.id}", "status") for job in bad.values()} == {"error"}


async def test_error_that_cannot_be_stored_is_said_to_be_so(quick: Node) -> None:
    jobs = {name: await quick.enqueue() for name in UNSTORABLE}
    await takes(quick, len(jobs))
    for name, job in jobs.items():
        await writes_the_end(quick, job, "error", error=UNSTORABLE[name])

    for job in jobs.values():
        await until_status(quick, job.id, "error")

    codes = [json.loads(str((await row_of(quick, job.id))["error"])).get("code") for job in jobs.values()]
    assert set(codes) == {"bad_error"}


async def test_events_that_cannot_be_stored_do_not_keep_others_from_being_kept(quick: Node) -> None:
    bad, good = await quick.enqueue(), await quick.enqueue()
    await takes(quick, 2)
    for text in UNSTORABLE.values():
        await quick.redis.xadd(f"job:{bad.id}:events", {"type": "log", "ts": text, "step": text, "data": text})
        await quick.redis.xadd(f"job:{bad.id}:events", {text: text, "type": text})
    for job in (bad, good):
        await quick.redis.xadd(f"job:{job.id}:events", {"type": "log", "ts": "5", "step": "s", "data": '{"n": 1}'})
        await writes_the_end(quick, job, "done", result=b"1")

    await until_status(quick, good.id, "done")
    await until_status(quick, bad.id, "done")

    records = await read_history(quick.database.pool, [HistoryPlace(bad.id, START), HistoryPlace(good.id, START)])
    kept = [events_after(record, START) for record in records if record is not None]
    assert [event.type for event in kept[0]].count("log") == len(UNSTORABLE) + 1
    assert [bytes(event.data) for events in kept for event in events if event.step == "s"] == [b'{"n": 1}'] * 2
    assert max(len(bytes(event.data)) for event in kept[0]) <= 16_384


async def test_consumer_with_a_name_that_cannot_be_stored_does_its_job(quick: Node) -> None:
    job = await quick.enqueue()
    await takes(quick, 1, b"raw\0\xff" + b"x" * 1000)
    await writes_the_end(quick, job, "done", result=b"1")

    await until_status(quick, job.id, "done")

    owner = await quick.database.pool.fetchval("SELECT owner_id FROM attempts WHERE job_id = $1", job.id)
    assert owner.startswith("redis:raw")
    assert len(owner) < 200


async def test_large_result_of_a_raw_worker_goes_to_a_file_and_one_over_the_limit_fails(quick: Node) -> None:
    quick.config = msgspec.structs.replace(quick.config, limits=Limits(result_bytes=300_000))
    large, too_large = await quick.enqueue(), await quick.enqueue()
    await takes(quick, 2)
    await writes_the_end(quick, large, "done", result=b'"' + b"x" * 200_000 + b'"')
    await writes_the_end(quick, too_large, "done", result=b'"' + b"x" * 300_000 + b'"')

    await until_status(quick, large.id, "done")
    await until_status(quick, too_large.id, "error")

    row = await row_of(quick, large.id)
    opened = await quick.results.open(str(row["result_ref"]))
    with opened.file as file:
        assert len(file.read()) == opened.size == 200_002
    assert row["result"] is None
    assert json.loads(str((await row_of(quick, too_large.id))["error"]))["code"] == "result_too_large"


async def test_stream_of_a_raw_worker_that_tells_a_lot_is_shortened_and_all_is_kept_in_postgres(quick: Node) -> None:
    quick.config = msgspec.structs.replace(quick.config, leases=Leases(ttl_s=60, heartbeat_s=10))
    job = await quick.enqueue()
    await takes(quick, 1)
    key, number = f"job:{job.id}:events", 0

    async def is_shortened() -> bool:
        nonlocal number
        for _ in range(20):
            number += 1
            data = json.dumps({"n": number, "text": "x" * 8_000})
            await quick.redis.xadd(key, {"type": "log", "ts": "5", "step": "", "data": data})
        return bool((await quick.redis.xrange(key, count=1))[0][1]["type"] == "gap")

    await wait_until_async(is_shortened)
    await writes_the_end(quick, job, "done", result=b"1")
    await until_status(quick, job.id, "done")

    kept: list[int] = []
    place = START
    while True:
        (record,) = await read_history(quick.database.pool, [HistoryPlace(job.id, place)])
        assert record is not None
        events = events_after(record, place)
        kept += [json.loads(bytes(event.data))["n"] for event in events if event.type == "log"]
        if events[-1].type == "done":
            break
        place = events[-1].cursor
    assert kept == list(range(1, number + 1))
    assert await quick.redis.xlen(key) < number
    assert (await quick.redis.xrevrange(key, count=1))[0][1]["type"] == "done"


async def test_raw_worker_is_seen_behind_a_thousand_messages_of_others(quick: Node) -> None:
    """In hand or acknowledged, it does not matter how much jobd's own consumers have in hand before it."""
    jobs = [new_job() for _ in range(1002)]
    quick.config = msgspec.structs.replace(
        quick.config, relay=RelayConfig(stream_window=2000), leases=Leases(ttl_s=60, heartbeat_s=10)
    )
    await quick.engine.enqueue_whole(jobs)

    async def are_offered() -> bool:
        return bool(await quick.redis.xlen("jobs:stream") == 1002)

    await wait_until_async(are_offered)
    await quick.redis.xreadgroup("workers", "jobd-other", {"jobs:stream": ">"}, count=1000)
    await quick.redis.xreadgroup("workers", "raw-1", {"jobs:stream": ">"}, count=1)
    ((_, ((message_id, fields),)),) = await quick.redis.xreadgroup("workers", "raw-2", {"jobs:stream": ">"}, count=1)
    await quick.redis.hset(f"job:{fields['job_id']}", mapping={"status": "done", "result": "1"})
    await quick.redis.xack("jobs:stream", "workers", message_id)

    await until_status(quick, jobs[1000].id, "running")
    await until_status(quick, jobs[1001].id, "done")
