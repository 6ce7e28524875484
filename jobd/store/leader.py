"""One at a time: a session lock in Postgres. It only saves work; nothing may rest on it, since a session can die."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobd.service import Handle
    from jobd.store.postgres import Connection, Database

STAND_BY_S = 1.0
UNLOCK = "SELECT pg_advisory_unlock($1)"


@contextlib.asynccontextmanager
async def leading(database: Database, key: int, handle: Handle) -> AsyncIterator[Connection | None]:
    """A session that holds the lock `key`; None if asked to stop while standing by."""
    async with database.pool.acquire() as session:
        while not await session.fetchval("SELECT pg_try_advisory_lock($1)", key):
            handle.beat()
            with anyio.move_on_after(STAND_BY_S):
                await handle.stop.wait()
            if handle.stop.is_set():
                yield None
                return
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                await session.fetchval(UNLOCK, key)


@contextlib.asynccontextmanager
async def leading_once(database: Database, key: int) -> AsyncIterator[Connection | None]:
    """The same for a short while, without standing by: None if another holds the lock."""
    async with database.pool.acquire() as session:
        if not await session.fetchval("SELECT pg_try_advisory_lock($1)", key):
            yield None
            return
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                await session.fetchval(UNLOCK, key)
