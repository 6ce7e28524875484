from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.store.postgres import Database
from tests.support.factories import truncate
from tests.tickets.ticket_pollers import migrated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POOL_SIZE = 8


@pytest.fixture(scope="session")
def schedules_url(shared_postgres: str) -> str:
    """A database with the schema in it, and no daemon that would fire its schedules."""
    return anyio.run(migrated, shared_postgres)


@pytest.fixture
async def db(schedules_url: str) -> AsyncIterator[Database]:
    """Empty tables, and a pool whose sessions are as the daemon has them."""
    database = Database(schedules_url, POOL_SIZE)
    async with database.opened():
        await truncate(database.pool)
        yield database
