"""A node whose slots run jobs, for tests that look at what comes of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec

from jobd.config.model import Config, Leases, Queue, Retry
from jobd.dispatch.slots import Slots
from jobd.engine.results import Results
from jobd.job.history import START, Event, events_after
from jobd.lifecycle.events import HistoryPlace, read_history
from jobd.lifecycle.read import read_jobs, read_whole_job
from jobd.store.ids import new_id
from jobd.supervise.service import Handle
from tests.support import servers
from tests.support.node import Node, new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path
    from uuid import UUID

    from jobd.lifecycle.read import Job
    from jobd.tasks.runner import Runner

#: Short beats and delays, so that tests need not wait for them; leases that a busy machine does not end.
CONFIG = Config(
    leases=Leases(ttl_s=20, heartbeat_s=0.4),
    retry=Retry(base_s=0.01, cap_s=0.02),
    queues={"default": Queue(slots=2)},
    drain_s=0.4,
)


class RunningSlots:
    def __init__(self, node: Node, runners: Mapping[str, Runner], folder: Path) -> None:
        self.node = node
        self.handle = Handle(lambda: self.is_ready.set())
        self.is_ready = anyio.Event()
        self.service = Slots(
            engine=node.engine,
            dispatcher=node.dispatcher,
            leases=node.leases,
            config=lambda: node.config,
            runners=runners,
            owner_id=f"test:{new_id()}",
            results=Results(folder, lambda: node.config),
            memory=node.memory,
            throttled=node.board.throttled,
            model_servers=node.model_servers if node.model_servers.is_used else None,
        )
        node.slots, node.runners = self.service, runners
        self.has_ended = anyio.Event()
        #: Cancelled, the slots are cut off.
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            await self.service.run(self.handle)
        self.has_ended.set()

    async def stop(self) -> None:
        """Drain, as the supervisor does."""
        self.handle.stop.set()
        with anyio.fail_after(30):
            await self.has_ended.wait()

    async def submit(self, payload: Mapping[str, Any], **values: Any) -> UUID:
        job = await self.node.enqueue(payload=msgspec.json.encode(payload).decode(), **values)
        return job.id

    async def job(self, job_id: UUID) -> Job:
        return (await read_jobs(self.node.database.pool, [job_id]))[job_id]

    async def wait_for_status(self, job_id: UUID, *statuses: str) -> Job:
        async def is_there() -> bool:
            return (await self.job(job_id)).status in statuses

        await wait_until_async(is_there)
        return await self.job(job_id)

    async def until_emitted(self, job_id: UUID, kind: str) -> None:
        async def is_emitted() -> bool:
            return kind in [event.type for event in await self.events(job_id)]

        await wait_until_async(is_emitted)

    async def outcomes(self, job_id: UUID) -> list[str | None]:
        whole = await read_whole_job(self.node.database.pool, job_id)
        return [] if whole is None else [attempt.outcome for attempt in whole.attempts]

    async def events(self, job_id: UUID) -> list[Event]:
        (record,) = await read_history(self.node.database.pool, [HistoryPlace(job_id, START)])
        assert record is not None
        return events_after(record, START)

    async def error(self, job_id: UUID) -> dict[str, Any]:
        job = await self.job(job_id)
        assert job.error is not None
        found: dict[str, Any] = msgspec.json.decode(job.error)
        return found

    async def row(self, job_id: UUID, columns: str) -> tuple[Any, ...]:
        row = await self.node.database.pool.fetchrow(f"SELECT {columns} FROM jobs WHERE id = $1", job_id)
        assert row is not None
        return tuple(row)

    async def steal_lease(self, job_id: UUID) -> None:
        """As if another had taken the job over."""
        await self.node.database.pool.execute(
            "UPDATE leases SET lease_token = gen_random_uuid(), lease_expires_at = now() + interval '1 hour'"
            " WHERE resource_id = $1",
            job_id,
        )


@contextlib.asynccontextmanager
async def running_slots(
    shared_postgres: str,
    folder: Path,
    runners: Mapping[str, Runner],
    config: Config = CONFIG,
    *,
    deliver: Literal["auto", "stream"] = "auto",
) -> AsyncIterator[RunningSlots]:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, config, deliver=deliver).running() as node:
            slots = RunningSlots(node, runners, folder)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(slots.run)
                await slots.is_ready.wait()
                yield slots
                tasks.cancel_scope.cancel()
            for runner in runners.values():
                await runner.close()
