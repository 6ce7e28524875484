"""The four pollers on a test's own database, to be taken step by step, and whoever carries out their jobs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg

from jobd.engine.engine import Engine
from jobd.engine.results import Results
from jobd.lifecycle.complete import complete
from jobd.lifecycle.fail import fail
from jobd.store.leader import OwnerNames
from jobd.store.migrate import migrate
from jobd.supervise.service import Handle
from jobd.tickets.pollers.gate import GatePoller
from jobd.tickets.pollers.readiness import ReadinessPoller
from jobd.tickets.pollers.runner import RunnerPoller
from jobd.tickets.pollers.scheduler import SchedulerPoller
from jobd.tickets.service import TicketService
from jobd.tickets.trail import read_trail
from jobd.tickets.wakeups import Wakeups
from tests.support.factories import POLICY, claim_one, completion, failure
from tests.support.node import new_database
from tests.tickets.factories import CONFIG, todo_ticket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from uuid import UUID

    from jobd.config.model import Config
    from jobd.store.postgres import Database
    from jobd.wire.tickets import Ticket, Trail


class PollerNode:
    """All four of them, as one process would have them."""

    def __init__(self, db: Database, engine: Engine, folder: Path, config: Config, name: str) -> None:
        def current() -> Config:
            return config

        self.wakeups = Wakeups()
        self.service = TicketService(db, current, self.wakeups)
        owners = OwnerNames(name)
        self.readiness = ReadinessPoller(db, current, self.wakeups)
        self.scheduler = SchedulerPoller(db, current, self.wakeups, owners)
        self.runner = RunnerPoller(db, current, self.wakeups, owners, engine, Results(folder, current))
        self.gate = GatePoller(db, current, self.wakeups, owners, folder)

    async def turn(self) -> None:
        """One look of each, in the order of the work."""
        for poller in (self.readiness, self.scheduler, self.runner, self.gate):
            await poller.run_once()


class TicketPollers:
    def __init__(self, db: Database, engine: Engine, folder: Path, config: Config) -> None:
        self.db = db
        self.engine = engine
        self._folder = folder
        self.config = config
        self.first = self.node("one")

    def node(self, name: str) -> PollerNode:
        return PollerNode(self.db, self.engine, self._folder, self.config, name)

    # -- tickets on their way ------------------------------------------------------------------------------------

    async def ready(self, **fields: Any) -> Ticket:
        """A ticket for which TICKET_READY was told."""
        ticket = await todo_ticket(self.db, config=self.config, **fields)
        await self.first.readiness.run_once()
        return ticket

    async def scheduled(self, **fields: Any) -> Ticket:
        ticket = await self.ready(**fields)
        await self.first.scheduler.run_once()
        return ticket

    async def executed(self, result: str = '{"score": 0.9}', **fields: Any) -> Ticket:
        ticket = await self.scheduled(**fields)
        await self.first.runner.run_once()
        await self.finish(ticket.ticket_id, result)
        await self.first.runner.run_once()
        return ticket

    # -- jobs ----------------------------------------------------------------------------------------------------

    async def job_of(self, ticket_id: UUID) -> UUID:
        return (await self.trail(ticket_id)).workorders[-1].job_id

    async def finish(self, ticket_id: UUID, result: str = '{"score": 0.9}') -> None:
        """The job of the ticket's newest work order is done."""
        claimed = await claim_one(self.db, await self.job_of(ticket_id), now=None)  # type: ignore[arg-type]  # by the clock
        await complete(self.db.pool, [completion(claimed, result=result)])

    async def fail(self, ticket_id: UUID, error: str = '{"code": "boom", "message": "it broke"}') -> None:
        claimed = await claim_one(self.db, await self.job_of(ticket_id), now=None)  # type: ignore[arg-type]  # by the clock
        await fail(self.db.pool, [failure(claimed, error=error, retryable=False)], policy=POLICY)

    # -- questions -----------------------------------------------------------------------------------------------

    async def trail(self, ticket_id: UUID) -> Trail:
        return await read_trail(self.db, ticket_id)

    async def status(self, ticket_id: UUID) -> str:
        return (await self.trail(ticket_id)).ticket.status

    async def number(self, query: str, *arguments: object) -> int:
        found: int = await self.db.pool.fetchval(query, *arguments)
        return found

    async def claims(self) -> int:
        return await self.number("SELECT count(*) FROM leases WHERE resource_type <> 'JOB'")

    async def expire_claims(self) -> None:
        """As if their holders had been silent for too long."""
        await self.db.pool.execute(
            "UPDATE leases SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE resource_type <> 'JOB'"
        )


@contextlib.asynccontextmanager
async def ticket_pollers(db: Database, folder: Path, config: Config = CONFIG) -> AsyncIterator[TicketPollers]:
    engine = Engine(db, lambda: config)
    handle = Handle(lambda: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run, handle)
        yield TicketPollers(db, engine, folder, config)
        handle.stop.set()


async def migrated(shared_postgres: str) -> str:
    """A database with the schema in it, and no daemon that would work on its tickets."""
    url = await new_database(shared_postgres)
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()
    return url
