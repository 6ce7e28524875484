"""The connections to both servers: open, check, prepare, then check regularly that they still answer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from jobd.errors import ServerDown, ServerRefused
from jobd.store import postgres
from jobd.store.ids import make_ids_after
from jobd.store.migrate import migrate
from jobd.stream import connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jobd.store.migrate import BeforeMigration
    from jobd.store.postgres import Database
    from jobd.stream.connection import Transport
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Seconds between two checks that the server still answers.
WATCH_S = 5.0
#: Seconds that the answer to a check may take.
ANSWER_S = 10.0


class StoreLink:
    """Postgres: connected, checked, migrated. If it was fit once and is not any more, jobd waits for it."""

    def __init__(self, database: Database, pool_size: int, before_migration: BeforeMigration | None = None) -> None:
        self._database = database
        self._pool_size = pool_size
        self._before_migration = before_migration
        self._was_up = False

    async def run(self, handle: Handle) -> None:
        try:
            async with self._database.opened():
                await self._prepare()
                self._was_up = True
                try:
                    await _watch(handle, self._ask)
                finally:
                    await self._database.clock.mark_last()
        except ServerRefused as error:
            if self._was_up:  # it was fit once and may be again: a failover, a password that is being changed
                raise ServerDown(str(error)) from error
            raise

    async def _prepare(self) -> None:
        url = self._database.url
        async with self._database.connection(strict=True) as connection:
            await postgres.check_server(connection, url, self._pool_size)
            applied = await migrate(connection, self._before_migration)
        seen = await self._database.clock.check()  # before any service decides by time
        make_ids_after(seen.known)
        if applied:
            log.info("database schema brought to %d (%s)", applied[-1].number, applied[-1].name)

    async def _ask(self) -> None:
        await postgres.check_writable(self._database, self._database.url)


class StreamLink:
    """Redis: connected and fit to carry messages."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._was_up = False

    async def run(self, handle: Handle) -> None:
        try:
            async with self._transport.opened():
                self._was_up = True
                await _watch(handle, self._ask)
        except ServerRefused as error:
            if self._was_up:  # it was fit once, and may be again: a failover, a full disk, a changed password
                raise ServerDown(str(error)) from error
            raise

    async def _ask(self) -> None:
        with connection.translated(self._transport.url, strict=False):
            await self._transport.client.ping()


async def _watch(handle: Handle, ask: Callable[[], Awaitable[None]]) -> None:
    handle.ready()
    while not handle.stop.is_set():
        with anyio.move_on_after(WATCH_S):
            await handle.stop.wait()
            return
        with anyio.move_on_after(ANSWER_S) as asking:
            await ask()
        if asking.cancelled_caught:
            raise ServerDown(f"no answer within {ANSWER_S:g} s")
        handle.beat()
