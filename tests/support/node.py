"""A node without its servers: store, stream, relay and engine under a real supervisor, on servers the test brings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import asyncpg
import redis.asyncio
from msgspec.structs import replace

from jobd.follow.jobs import Tailer
from jobd.host.data_dir import Addresses
from jobd.lifecycle.claim import Ask, ClaimedJob
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.fail import Failure
from jobd.serve import tree
from jobd.store.ids import new_id
from jobd.store.migrate import migrate
from jobd.supervise.service import Handle
from tests.support.factories import new_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.lifecycle.enqueue import NewJob
    from jobd.supervise.restart import RestartPolicy


#: Those that carry jobs in the background. Slots, followers and janitor are started by the tests that want them.
SERVICES = {"store", "stream", "relay", "raw_workers", "reaper", "engine", "leases", "dispatcher"}


class Node(tree.Node):
    def __init__(
        self,
        postgres_url: str,
        redis_url: str,
        config: Config,
        data_dir: Path = Path("/no/large/results/here"),
        *,
        deliver: Literal["auto", "stream", "direct"] = "stream",
    ) -> None:
        """`deliver` takes the place of `auto` in the configuration of each queue."""
        queues = {
            name: replace(queue, deliver=deliver) if queue.deliver == "auto" and queue.mirror else queue
            for name, queue in config.queues.items()
        }
        self.config = replace(config, queues=queues)
        where = Addresses(JOBD_URL="", DATABASE_URL=postgres_url, REDIS_URL=redis_url)
        super().__init__(where, lambda: self.config, data_dir, incarnation=new_id())
        #: A client of the test's own, answering with text.
        self.redis: Any = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)

    @contextlib.asynccontextmanager
    async def running(self, policy: RestartPolicy | None = None) -> AsyncIterator[Node]:
        services = [spec for spec in self.job_services() if spec.name in SERVICES]
        async with self.redis, tree.running(services, drain_s=2.0, policy=policy) as self.supervisor:
            yield self

    async def enqueue(self, **values: Any) -> NewJob:
        job = new_job(**{"payload": '{"text":"hello"}', "timeout_s": 60, **values})
        await self.engine.enqueue(job)
        return job

    async def claim(self, job: NewJob, enqueue_id: int = 1, **message: str) -> ClaimedJob:
        (claimed,) = await self.engine.claim(
            [Ask(job_id=job.id, enqueue_id=enqueue_id, owner_id=f"test-{new_id()}", **message)]
        )
        assert isinstance(claimed, ClaimedJob), claimed
        return claimed

    async def done(self, claimed: ClaimedJob, result: str | None = None) -> object:
        return await self.engine.complete(
            Completion(
                job_id=claimed.job_id, attempt_id=claimed.attempt_id, lease_token=claimed.lease_token, result=result
            )
        )

    async def failed(self, claimed: ClaimedJob, error: str = '{"code":"x"}', *, retryable: bool = True) -> object:
        return await self.engine.fail(
            Failure(
                job_id=claimed.job_id,
                attempt_id=claimed.attempt_id,
                lease_token=claimed.lease_token,
                error=error,
                retryable=retryable,
            )
        )

    async def hash_of(self, job_id: UUID) -> dict[str, str]:
        found: dict[str, str] = await self.redis.hgetall(f"job:{job_id}")
        return found

    async def events_of(self, job_id: UUID) -> list[tuple[str, dict[str, str]]]:
        found: list[tuple[str, dict[str, str]]] = await self.redis.xrange(f"job:{job_id}:events")
        return found

    async def is_reading(self) -> bool:
        """A read of the dispatcher waits in Redis for messages."""
        clients = await self.redis.client_list()
        return any(client["name"] == "jobd" and "b" in client["flags"] for client in clients)

    async def outbox_is_empty(self) -> bool:
        return not await self.database.pool.fetchval("SELECT count(*) FROM outbox")


@contextlib.asynccontextmanager
async def tailing(node: Node, *, elsewhere: bool = False) -> AsyncIterator[Tailer]:
    """The tailer of this node; `elsewhere`: one that hears of its commits as those of other nodes do."""
    tailer, handle = Tailer(node.database, node.transport) if elsewhere else node.tailer, Handle(lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tailer.run, handle)
        yield tailer
        tasks.cancel_scope.cancel()


async def new_database(shared_postgres: str) -> str:
    """A database of its own, with the schema in it, on a server that tests share."""
    name = f"t{new_id().hex}"
    owner = await asyncpg.connect(shared_postgres.replace("jobd@/jobd", "postgres@/postgres"))
    try:
        if not await owner.fetchval("SELECT 1 FROM pg_database WHERE datname = 'migrated'"):
            await owner.execute("CREATE DATABASE migrated OWNER jobd")
            await _migrate(shared_postgres.replace("@/jobd", "@/migrated"))
        await owner.execute(f"CREATE DATABASE {name} OWNER jobd TEMPLATE migrated")
    finally:
        await owner.close()
    url = shared_postgres.replace("@/jobd", f"@/{name}")
    await _rename_installation(url)
    return url


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()


async def _rename_installation(url: str) -> None:
    """As if it had been migrated by itself: a Redis must be able to tell it from the others."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("UPDATE jobd.installation SET id = gen_random_uuid()")
    finally:
        await connection.close()
