"""Raw Redis workers come and go while jobs run: a queue changes its mode all the time, and every job is run once."""

from __future__ import annotations

import collections
import json
import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis.asyncio
import redis.exceptions

from jobd.config.model import Config, Leases, Limits, Queue, RelayConfig
from jobd.lifecycle.modes import queue_modes
from tests.support import servers
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from pathlib import Path

STREAM, GROUP = "jobs:stream", "workers"
#: So many jobs at least, and so many changes of the mode: there and back again.
JOBS, CHANGES = 1500, 3
CONFIG = Config(
    queues={"default": Queue(slots=4)},
    relay=RelayConfig(stream_window=30),
    leases=Leases(ttl_s=60, heartbeat_s=20),
    limits=Limits(max_queued=100_000),
)


class Hammer:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        #: How often each job was begun, by whom.
        self.runs: dict[str, list[str]] = collections.defaultdict(list)
        self.by: collections.Counter[str] = collections.Counter()
        self.submitted = 0

    def begin(self, job_id: str, who: str) -> None:
        self.runs[job_id].append(who)
        self.by[who] += 1

    async def slot(self, node: Node) -> None:
        while True:
            for job in await node.dispatcher.take(("default",), "slot", 2):
                self.begin(str(job.job_id), "slot")
                await anyio.sleep(random.random() * 0.01)
                await node.done(job, '{"by": "slot"}')

    async def raw_workers(self) -> None:
        """They come and go by themselves, but now and then there is none, so that the queue changes its mode."""
        while True:
            await anyio.sleep(0.1 + random.random() * 0.6)
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(self.raw_worker)

    async def raw_worker(self) -> None:
        """Comes for a moment, as a consumer of the group, works, and goes."""
        await anyio.sleep(random.random() * 0.3)
        async with redis.asyncio.Redis.from_url(self.nodes[0].transport.url, decode_responses=True) as client:
            for _ in range(random.randrange(1, 8)):
                await self.read(client, f"raw-{random.randrange(3)}")

    async def read(self, client: Any, name: str) -> None:
        try:
            answer = await client.xreadgroup(GROUP, name, {STREAM: ">"}, count=random.randrange(1, 4), block=100)
        except redis.exceptions.ResponseError:
            return
        for _, messages in answer or []:
            for message_id, fields in messages:
                job_id = fields["job_id"]
                self.begin(job_id, "raw")
                await anyio.sleep(random.random() * 0.02)
                result = json.dumps({"by": "raw"})
                await client.hset(f"job:{job_id}", mapping={"status": "done", "result": result, "updated_ts": "1"})
                await client.xack(STREAM, GROUP, message_id)

    async def submit(self) -> None:
        """Until enough has happened, however fast the machine is."""
        while self.submitted < JOBS or await self.mode_no() <= CHANGES or len(self.by) < 2:
            for _ in range(20):
                await random.choice(self.nodes).enqueue()
            self.submitted += 20
            await anyio.sleep(0.05)

    async def mode_no(self) -> int:
        return (await queue_modes(self.nodes[0].database))["default"].mode_no

    async def all_are_done(self) -> bool:
        query = "SELECT count(*) = $1 FROM jobs WHERE status = 'done'"
        return bool(await self.nodes[0].database.pool.fetchval(query, self.submitted))

    async def spoil(self, what: str) -> None:
        while True:
            await anyio.sleep(1.0 + random.random())
            if what != "nothing":
                await self.nodes[0].redis.delete(what)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("spoiled", ["nothing", "jobd:epoch", "jobd:modes"])
async def test_every_job_is_run_once_while_raw_workers_come_and_go(
    shared_postgres: str, folder: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    monkeypatch.setattr("jobd.stream.modes.SILENT_S", 0.15)
    monkeypatch.setattr("jobd.stream.modes.CHECK_S", 0.05)
    monkeypatch.setattr("jobd.stream.modes.WAITING_CHECK_S", 0.0)
    monkeypatch.setattr("jobd.stream.relay.TICK_S", 0.05)
    monkeypatch.setattr("jobd.stream.raw_workers.LOOK_S", 0.02)
    monkeypatch.setattr("jobd.stream.raw_workers.IDLE_LOOK_S", 0.02)
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        nodes = [Node(url, redis_url, CONFIG, deliver="auto") for _ in range(2)]
        async with nodes[0].running(), nodes[1].running():
            hammer = Hammer(nodes)
            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    for _ in range(3):
                        tasks.start_soon(hammer.slot, node)
                tasks.start_soon(hammer.raw_workers)
                tasks.start_soon(hammer.spoil, spoiled)
                await hammer.submit()

                await wait_until_async(hammer.all_are_done, lambda: f"{len(hammer.runs)} begun", timeout_s=120)
                tasks.cancel_scope.cancel()
    assert {job_id: who for job_id, who in hammer.runs.items() if len(who) > 1} == {}
    assert len(hammer.runs) == hammer.submitted
