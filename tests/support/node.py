"""A node without its servers: store, stream, relay and engine under a real supervisor, on servers the test brings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
import redis.asyncio

from jobd.dispatch.dispatcher import Dispatcher
from jobd.engine.engine import Engine
from jobd.engine.results import Results
from jobd.follow.jobs import Tailer
from jobd.host.systemd import Notifier
from jobd.leases.keeper import LeaseKeeper
from jobd.lifecycle.claim import Ask, ClaimedJob
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.enqueue import NewJob
from jobd.lifecycle.fail import Failure
from jobd.maintenance.reaper import Reaper
from jobd.servers.connections import StoreLink, StreamLink
from jobd.store.ids import new_id
from jobd.store.migrate import migrate
from jobd.store.postgres import Database
from jobd.stream.connection import Transport
from jobd.stream.raw_workers import RawWorkers
from jobd.stream.relay import Relay
from jobd.supervise.service import Handle, Phase, Spec
from jobd.supervise.supervisor import Supervisor
from jobd.supervise.wakeup import Wakeup
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.supervise.restart import RestartPolicy


class Node:
    def __init__(
        self, postgres_url: str, redis_url: str, config: Config, data_dir: Path = Path("/no/large/results/here")
    ) -> None:
        self.config = config
        self.wakeup = Wakeup()
        self.database = Database(postgres_url, 6)
        self.transport = Transport(redis_url)
        self.engine = Engine(self.database, lambda: self.config, self.wakeup.set)
        self.relay = Relay(self.database, self.transport, self.wakeup, lambda: self.config)
        self.results = Results(data_dir, lambda: self.config)
        self.raw_workers = RawWorkers(self.engine, self.database, self.transport, lambda: self.config, self.results)
        self.reaper = Reaper(self.database, lambda: self.config, self.wakeup.set)
        self.leases = LeaseKeeper(self.engine, lambda: self.config)
        self.dispatcher = Dispatcher(self.engine, self.database, self.transport, new_id(), lambda: self.config)
        #: A client of the test's own, answering with text.
        self.redis: Any = redis.asyncio.Redis.from_url(redis_url, decode_responses=True)

    @contextlib.asynccontextmanager
    async def running(self, policy: RestartPolicy | None = None) -> AsyncIterator[Node]:
        ready = anyio.Event()
        supervisor = Supervisor(
            [
                Spec(name="store", service=StoreLink(self.database, 6), phase=Phase.FLUSH),
                Spec(name="stream", service=StreamLink(self.transport), phase=Phase.FLUSH, needed=False),
                Spec(name="relay", service=self.relay, phase=Phase.FLUSH, needed=False, needs=("store", "stream")),
                Spec(name="raw_workers", service=self.raw_workers, phase=Phase.FLUSH, needed=False, needs=("relay",)),
                Spec(name="reaper", service=self.reaper, phase=Phase.FLUSH, needs=("store",)),
                Spec(name="engine", service=self.engine, phase=Phase.FLUSH),
                Spec(name="leases", service=self.leases, phase=Phase.FLUSH),
                Spec(name="dispatcher", service=self.dispatcher, phase=Phase.INTAKE, needs=("store",)),
            ],
            notifier=Notifier({}),
            drain_s=lambda: 2.0,
            policy=policy,
            on_ready=ready.set,
        )
        self.supervisor = supervisor
        self.supervisor = supervisor
        async with anyio.create_task_group() as tasks, self.redis:
            tasks.start_soon(supervisor.run)
            with anyio.fail_after(30):
                await ready.wait()
            yield self
            supervisor.stop()

    async def enqueue(self, **values: Any) -> NewJob:
        job = new_job(**values)
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

    async def outbox_is_empty(self) -> bool:
        return not await self.database.pool.fetchval("SELECT count(*) FROM outbox")


@contextlib.asynccontextmanager
async def tailing(node: Node) -> AsyncIterator[Tailer]:
    """A tailer on this node."""
    tailer, handle = Tailer(node.database, node.transport), Handle(lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tailer.run, handle)
        yield tailer
        tasks.cancel_scope.cancel()


def new_job(**values: Any) -> NewJob:
    usual: Mapping[str, Any] = {
        "id": new_id(),
        "task": "chat",
        "queue": "default",
        "payload": '{"text":"hello"}',
        "max_attempts": 3,
        "timeout_s": 60,
        "ttl_s": 600,
    }
    return NewJob(**{**usual, **values})


async def eventually(condition: Callable[[], Awaitable[object]], timeout: float = 30.0) -> None:
    """Wait until the condition holds; fails when it does not in time."""
    await wait_until_async(condition, "the condition did not come to hold in time", timeout)


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
