"""`jobd upgrade-check`: what `jobd serve` would do with a data directory, without doing it.

To read the database of a jobd that does not run, its Postgres is started for a moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

import jobd
from jobd.backup.keep import bytes_needed
from jobd.backup.offline import connected
from jobd.errors import JobdError, root_cause
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir
from jobd.servers import postgres as embedded_postgres
from jobd.store.migrate import known_migrations, pending_migrations

if TYPE_CHECKING:
    from jobd.config.model import Config


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    #: first start: nothing is there yet; current: nothing to do; migrate: the schema would be brought up to date;
    #: refused: see `why`
    verdict: Literal["first start", "current", "migrate", "refused"]
    jobd: str = jobd.__version__
    #: The number of the newest migration that this jobd has.
    knows: int
    #: The number of the newest migration that the data has; None: unknown.
    schema: int | None = None
    pending: list[str] = []
    #: Most bytes that the automatic backup takes; None: none would be made.
    backup_bytes: int | None = None
    free_bytes: int | None = None
    why: str = ""


async def forecast(config: Config) -> Forecast:
    knows = len(known_migrations())
    try:
        if not config.postgres.url and _is_first_start(config):
            return Forecast(verdict="first start", knows=knows, schema=0)
        async with connected(config) as connection:
            pending = await pending_migrations(connection)
            needed = await bytes_needed(connection)
    except Exception as error:
        cause = root_cause(error)
        if not isinstance(cause, JobdError):
            raise
        return Forecast(verdict="refused", knows=knows, why=str(cause))
    names = [f"{migration.number:04d} {migration.name}" for migration in pending]
    schema = knows - len(pending)
    if not pending or not schema or config.postgres.url:
        return Forecast(verdict="migrate" if pending else "current", knows=knows, schema=schema, pending=names)
    free = DataDir(Path(config.data_dir), server_account()).free_bytes()
    return Forecast(
        verdict="migrate" if free >= needed else "refused",
        knows=knows,
        schema=schema,
        pending=names,
        backup_bytes=needed,
        free_bytes=free,
        why=""
        if free >= needed
        else "too little space for the backup; free some, or go without: jobd migrate --no-backup",
    )


def _is_first_start(config: Config) -> bool:
    data_dir = DataDir(Path(config.data_dir), server_account())
    data_dir.check()
    if data_dir.cluster.exists():
        embedded_postgres.check_major(data_dir.cluster, embedded_postgres.major_of(config))
    return not data_dir.cluster.exists()
