from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.store.postgres import Database
from tests.support.factories import truncate
from tests.tickets.ticket_pollers import TicketPollers, migrated, ticket_pollers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

POOL_SIZE = 8


@pytest.fixture(scope="session")
def tickets_url(shared_postgres: str) -> str:
    """A database with the schema in it, and no daemon that would work on its tickets."""
    return anyio.run(migrated, shared_postgres)


@pytest.fixture(scope="module")
async def db(tickets_url: str) -> AsyncIterator[Database]:
    """A pool whose sessions are as the daemon has them; other tests' tickets may be there.

    For a module only: while an asynchronous fixture lives, `anyio.run` of another test believes that a loop runs.
    """
    database = Database(tickets_url, POOL_SIZE)
    async with database.opened():
        yield database


@pytest.fixture
async def empty_db(db: Database) -> Database:
    """The same with nothing in it, for those who look for work."""
    await truncate(db.pool)
    return db


@pytest.fixture
async def pollers(empty_db: Database, folder: Path) -> AsyncIterator[TicketPollers]:
    async with ticket_pollers(empty_db, folder) as opened:
        yield opened
