"""Fill a new database from a backup, and make it this world's own.

The backup was taken from a world that may have gone on. So that nothing of that one passes for something of this one:

- Jobs that were running are handed back, which makes their holders' tokens worthless. They are not charged for the
  attempt: nobody failed. Tickets in hand are free again.
- The installation gets a new name. A Redis that knew the old one is recognised by it, and its messages are ignored.

Idempotency keys, tokens and the audit table are as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.auth.table import audit
from jobd.backup.make import PREPARE_BACKUP, count_rows
from jobd.backup.tools import write_to
from jobd.errors import BackupRefused
from jobd.lifecycle.release import release
from jobd.lifecycle.report import Held
from jobd.store.migrate import migrate
from jobd.store.statements import statement

if TYPE_CHECKING:
    from pathlib import Path

    from jobd.backup.archive import Archive
    from jobd.store.session import Connection

READ_HELD = statement("read_held", __package__)
DROP_LEASES = statement("drop_leases", __package__)
DROP_LEADERS = statement("drop_leaders", __package__)
FORGET_NODES = statement("forget_nodes", __package__)
RENAME_INSTALLATION = statement("rename_installation", __package__)
ANALYZE_STATEMENT = statement("analyze_statement", __package__)

PG_RESTORE = ("--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges")
#: Jobs held at the time of the backup that are handed back at a time.
PAGE = 500


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    #: Jobs that were running and wait again.
    handed_back: int
    #: Migrations that the backup lacked.
    migrated: list[str]


async def fill(connection: Connection, url: str, pg_restore: Path, archive: Archive, actor: str) -> Filled:
    await connection.execute(PREPARE_BACKUP)
    await write_to(pg_restore, [*PG_RESTORE, f"--dbname={url}"], archive.database())
    await _check_counts(connection, archive)
    applied = await migrate(connection)
    handed_back = await _hand_back(connection)
    async with connection.transaction():
        await connection.execute(DROP_LEASES)
        await connection.execute(DROP_LEADERS)
        await connection.execute(FORGET_NODES)
        await connection.execute(RENAME_INSTALLATION)
        await audit(connection, actor, "backup.restore", f"{archive.head.made_at:%FT%TZ}")
    await connection.execute(str(await connection.fetchval(ANALYZE_STATEMENT)))
    return Filled(
        handed_back=handed_back, migrated=[f"{migration.number:04d} {migration.name}" for migration in applied]
    )


async def _check_counts(connection: Connection, archive: Archive) -> None:
    restored = await count_rows(connection)
    for name, rows in archive.contents.tables.items():
        if restored.get(name) != rows:
            raise BackupRefused(
                f"table {name} has {restored.get(name)} rows after the restore and had {rows} in the backup; "
                "use another backup"
            )


async def _hand_back(connection: Connection) -> int:
    count = 0
    while held := [Held(**dict(row)) for row in await connection.fetch(READ_HELD, PAGE)]:
        await release(connection, held)
        count += len(held)
    return count
