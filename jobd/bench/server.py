"""The Postgres that a benchmark runs on: one of its own that is thrown away, or a given one that is left as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.backup.offline import connected
from jobd.config.model import Config, Postgres
from jobd.errors import AlreadyRunning, ServerRefused
from jobd.host.data_dir import DataDir
from jobd.host.masking import masked_url
from jobd.servers import postgres as embedded_postgres
from jobd.store.migrate import migrate, pending_migrations
from jobd.store.postgres import Database
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from jobd.store.session import Connection

MAKE_FLOOR_TABLES = statement("make_floor_tables", "jobd.bench")
DROP_FLOOR_TABLES = statement("drop_floor_tables", "jobd.bench")
DELETE_BENCH_JOBS = statement("delete_bench_jobs", "jobd.bench")
QUEUE = "jobd-bench"
#: Clearing away reads whole tables, which no statement of the engine is allowed to.
FOR_SWEEPING = "SET statement_timeout = 0; SET enable_hashjoin = on; SET enable_seqscan = on"


class BenchServer(msgspec.Struct, frozen=True):
    name: str
    #: Two, with one connection each.
    databases: tuple[Database, Database]


def server(url: str | None) -> contextlib.AbstractAsyncContextManager[BenchServer]:
    return given(url) if url else throw_away()


@contextlib.asynccontextmanager
async def given(url: str) -> AsyncIterator[BenchServer]:
    """A server with jobd's schema; what the benchmark writes there is deleted in the end."""
    async with connected(Config(postgres=Postgres(url=url))) as connection:
        where = f"postgres.url {masked_url(url)}"
        if await pending_migrations(connection):
            raise ServerRefused(f"{where}: the schema is not up to date; run `JOBD_POSTGRES_URL=... jobd migrate`")
        if not await connection.fetchval("SELECT pg_try_advisory_lock(hashtext('jobd bench'))"):
            raise AlreadyRunning(f"{where}: another `jobd bench` runs there; wait for it to end")
        await connection.execute(FOR_SWEEPING)
        await sweep(connection)  # after one that was killed
        try:
            async with _opened(connection, url) as server:
                yield server
        finally:
            with anyio.CancelScope(shield=True):
                await sweep(connection)


@contextlib.asynccontextmanager
async def throw_away() -> AsyncIterator[BenchServer]:
    """An embedded server as `jobd serve` would run it, in a temporary folder."""
    with temporary_data_dir() as data_dir:
        async with connected(Config(data_dir=str(data_dir.path))) as connection:
            await migrate(connection)
            async with _opened(connection, embedded_postgres.url(data_dir)) as server:
                yield server


@contextlib.contextmanager
def temporary_data_dir() -> Iterator[DataDir]:
    with tempfile.TemporaryDirectory(prefix="jobd-bench-") as folder:
        os.chmod(folder, 0o755)  # the servers may run as another user
        data_dir = DataDir.to_start(Path(folder, "data"))
        try:
            yield data_dir
        finally:
            shutil.rmtree(data_dir.run, ignore_errors=True)  # it may be outside of the folder, see DataDir


@contextlib.asynccontextmanager
async def _opened(connection: Connection, url: str) -> AsyncIterator[BenchServer]:
    await connection.execute(MAKE_FLOOR_TABLES)
    version = str(await connection.fetchval("SELECT current_setting('server_version')"))
    first, second = Database(url, 1), Database(url, 1)
    async with first.opened(), second.opened():
        yield BenchServer(f"Postgres {version.split()[0]}", (first, second))


async def sweep(connection: Connection) -> None:
    await connection.execute(DROP_FLOOR_TABLES)
    await connection.fetchval(DELETE_BENCH_JOBS, QUEUE)
