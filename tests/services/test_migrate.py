"""Migrations of a large schema take their time, and nodes that start meanwhile wait for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
import pytest

from jobd.store import migrate as migrate_module
from jobd.store.migrate import LOCK_KEY, Migration, known_migrations, migrate
from tests.support.node import new_database
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def hurried(shared_postgres: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """A session on a database of its own whose limits are far shorter than those that jobd sets."""
    settings = {"search_path": "jobd", "statement_timeout": "300ms", "lock_timeout": "100ms"}
    session = await asyncpg.connect(await new_database(shared_postgres), server_settings=settings)
    yield session
    session.terminate()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Migration:
    """One more migration than there are, which takes longer than those limits."""
    known = known_migrations()
    slow = Migration(len(known) + 1, "slow", "SELECT pg_sleep(0.5)")
    monkeypatch.setattr(migrate_module, "known_migrations", lambda: [*known, slow])
    return slow


async def test_migration_may_take_longer_than_any_other_statement(
    hurried: asyncpg.Connection[Any], slow: Migration
) -> None:
    applied = await migrate(hurried)

    assert applied[-1] == slow
    assert await hurried.fetchval("SHOW statement_timeout") == "300ms"


async def test_node_waits_for_the_migrations_of_another_and_says_so(
    hurried: asyncpg.Connection[Any], slow: Migration, shared_postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = await hurried.fetchval("SELECT current_database()")
    other = await asyncpg.connect(shared_postgres.replace("@/jobd", f"@/{name}"))
    await other.fetchval("SELECT pg_advisory_lock($1)", LOCK_KEY)
    applied: list[Migration] = []

    async def migrate_too() -> None:
        applied.extend(await migrate(hurried))

    with caplog.at_level(logging.INFO):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(migrate_too)
            try:
                await wait_until_async(lambda: "another jobd is changing the database schema" in caplog.text)
                await anyio.sleep(0.2)  # longer than the lock timeout of the session
                assert applied == []
            finally:
                other.terminate()

    assert applied[-1] == slow
