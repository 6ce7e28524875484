"""Numbered migrations, applied in order under one advisory lock, each in its own transaction, forward only."""

from __future__ import annotations

import importlib.resources
import logging
import re
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

from jobd.errors import WrongVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.session import Connection

#: Any number will do that no other program on a shared server uses: "jobd" in ASCII.
LOCK_KEY = 0x6A6F6264
NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
LEDGER = """
CREATE SCHEMA IF NOT EXISTS jobd;
CREATE TABLE IF NOT EXISTS jobd.schema_migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""


#: Migrations run without timeouts: an index on a large table may take hours.
NO_LIMITS = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0"
#: Seconds between two tries for the lock while another node migrates.
WAIT_S = 1.0

log = logging.getLogger(__name__)


class BeforeMigration(Protocol):
    async def __call__(self, connection: Connection, pending: Sequence[Migration]) -> None: ...


class Migration(msgspec.Struct, frozen=True):
    number: int
    name: str
    sql: str


def known_migrations() -> list[Migration]:
    """All that this jobd carries, in order; gaps and doubles are a mistake in the package."""
    migrations = [
        Migration(int(match[1]), match[2], entry.read_text("utf-8"))
        for entry in importlib.resources.files("jobd.store").joinpath("migrations").iterdir()
        if (match := NAME.fullmatch(entry.name))
    ]
    migrations.sort(key=lambda migration: migration.number)
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise AssertionError(f"migrations are not numbered 1 to {len(migrations)}")
    return migrations


async def pending_migrations(connection: Connection) -> list[Migration]:
    """What the schema still lacks; refuses a schema that a newer jobd has changed. Reads only."""
    known = known_migrations()
    applied: object = 0
    if await connection.fetchval("SELECT to_regclass('jobd.schema_migrations') IS NOT NULL"):
        applied = await connection.fetchval("SELECT coalesce(max(number), 0) FROM jobd.schema_migrations")
    assert isinstance(applied, int)
    if applied > len(known):
        raise WrongVersion(
            f"the database schema is at {applied} and this jobd knows {len(known)}; "
            "run the newer jobd that changed it, or restore a backup from before"
        )
    return known[applied:]


async def migrate(connection: Connection, before: BeforeMigration | None = None) -> list[Migration]:
    """Apply what is pending; nodes that start together wait for each other. Returns what was applied.

    `before` is called first when a schema that is already there is about to change.
    """
    if not await pending_migrations(connection):
        return []
    await _lock(connection)
    try:
        await connection.execute(LEDGER)
        pending = await pending_migrations(connection)
        if before is not None and pending and pending[0].number > 1:
            await before(connection, pending)
        for migration in pending:
            async with connection.transaction():
                await connection.execute(NO_LIMITS)
                await connection.execute(migration.sql)
                await connection.execute(
                    "INSERT INTO jobd.schema_migrations (number, name) VALUES ($1, $2)",
                    migration.number,
                    migration.name,
                )
        return pending
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", LOCK_KEY)


async def _lock(connection: Connection) -> None:
    """Wait for as long as another node migrates; asking again holds no snapshot that its migration could wait for."""
    is_waiting = False
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1)", LOCK_KEY):
        if not is_waiting:
            log.info("another jobd is changing the database schema; waiting until it is done")
        is_waiting = True
        await anyio.sleep(WAIT_S)
