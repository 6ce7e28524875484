"""Work on the database outside `serve`: through the socket of a running jobd, or with its own Postgres."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from jobd.backup.keep import Keeper
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.host.systemd import Notifier
from jobd.servers import postgres as embedded_postgres
from jobd.store.migrate import Migration, migrate, pending_migrations
from jobd.store.postgres import check_server, connect
from jobd.supervise.service import Phase, Spec
from jobd.supervise.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobd.config.model import Config
    from jobd.store.migrate import BeforeMigration
    from jobd.store.session import Connection


async def bring_up_to_date(config: Config, only_check: bool, with_backup: bool = True) -> list[Migration]:
    """Apply the pending migrations, after a backup of what is there; or with `only_check` just name them."""
    async with connected(config) as connection:
        if only_check:
            return await pending_migrations(connection)
        return await migrate(connection, keeper(config) if with_backup else None)


def keeper(config: Config) -> BeforeMigration:
    return Keeper(DataDir(Path(config.data_dir), server_account()), config).keep


@contextlib.asynccontextmanager
async def connected(config: Config) -> AsyncIterator[Connection]:
    """A session on the configured Postgres; an embedded one is started for as long as it is needed."""
    async with _postgres_running(config) as url:
        connection = await connect(url)
        try:
            await check_server(connection, url, config.postgres.pool_size)
            yield connection
        finally:
            await connection.close()


@contextlib.asynccontextmanager
async def _postgres_running(config: Config) -> AsyncIterator[str]:
    if config.postgres.url:
        yield config.postgres.url
        return
    data_dir = DataDir(Path(config.data_dir), server_account())
    if data_dir.is_running():
        yield embedded_postgres.url(data_dir)
        return
    data_dir = DataDir.to_start(data_dir.path)
    data_dir.open()
    try:
        up = anyio.Event()
        server = embedded_postgres.EmbeddedPostgres(data_dir, config)
        supervisor = Supervisor(
            [Spec(name="postgres", service=server, phase=Phase.SERVERS)],
            notifier=Notifier({}),
            drain_s=lambda: 0.0,
            on_ready=up.set,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run)
            await up.wait()
            try:
                yield embedded_postgres.url(data_dir)
            finally:
                supervisor.stop()
    finally:
        data_dir.close()
