from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import asyncpg
import pytest

from jobd.store.postgres import Database
from tests.support import servers
from tests.support.factories import empty
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

#: Commits need not survive a power cut here, and to wait for the disk would only hide what statements cost.
SETTINGS = ("synchronous_commit=off", "max_connections=100")
POOL_SIZE = 20


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """A bare Postgres with the schema in it: no daemon beside the tests that would reap or prune on its own."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    with servers.postgres(folder, *SETTINGS) as url:
        wait_until(lambda: anyio.run(_answers, url), lambda: f"{url} does not answer", 10)
        yield url
    shutil.rmtree(folder)


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url)
    except asyncpg.CannotConnectNowError:
        return False
    await connection.close()
    return True


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    """Empty tables, and a pool whose sessions are as the daemon has them."""
    database = Database(url, POOL_SIZE)
    async with database.opened():
        await empty(database.pool)
        yield database
