"""The automatic backup before a migration: how to go back if the new jobd disappoints.

    {data_dir}/backups/schema-0004-20260101T120000Z.tar

It holds the database alone: a migration does not touch result files, which stay where they are, and copying them could
take more space than there is. Of these backups the newest few are kept. A first start has nothing to keep, and a
configured Postgres is its owner's to back up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, BinaryIO

from jobd.backup.make import Backup
from jobd.backup.output import written
from jobd.errors import DiskFull
from jobd.host.data_dir import WARM_START_BYTES
from jobd.host.files import Owner, make_folder, new_file, opened_folder
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from jobd.config.model import Config
    from jobd.host.data_dir import DataDir
    from jobd.store.migrate import Migration
    from jobd.store.session import Connection

log = logging.getLogger(__name__)

FOLDER = "backups"
#: Backups before an upgrade that are kept; the oldest is deleted first.
KEPT = 3
DUMP_BYTES_AT_MOST = statement("dump_bytes_at_most", __package__)
_NAME = re.compile(r"schema-\d{4,}-\d{8}T\d{6}Z\.tar")
_TEMPORARY = re.compile(rf"\.{_NAME.pattern}\.\w+")


class Keeper:
    """Makes the backup before a migration; one instance for each run of jobd."""

    def __init__(self, data_dir: DataDir, config: Config, progress: Callable[[str], None] = lambda text: None) -> None:
        self._data_dir = data_dir
        self._progress = progress
        self._config = config
        self._kept: set[int] = set()

    async def keep(self, connection: Connection, pending: Sequence[Migration]) -> None:
        """Back up, once for each state of the schema: a migration that is tried again needs no second copy."""
        schema = pending[0].number - 1
        if self._config.postgres.url:
            log.warning(
                "migrating from schema %d without a backup: [postgres] url is set, so that is up to you", schema
            )
            return
        if schema in self._kept:
            return
        self._check_space(await bytes_needed(connection))
        path = await self._write(schema)
        self._kept.add(schema)
        size = path.stat().st_size
        log.info(
            "the database schema is at %d and will be migrated; kept a backup: %s (%d KiB)", schema, path, size >> 10
        )

    async def _write(self, schema: int) -> Path:
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        path = self._data_dir.path / FOLDER / f"schema-{schema:04d}-{now}.tar"
        with written(kept_file(path), path) as sink:
            await Backup(self._data_dir, self._config, self._progress).write(sink, with_results=False)
        return path

    def _check_space(self, needed: int) -> None:
        free = self._data_dir.free_bytes()
        if free < needed:
            raise DiskFull(
                f"the backup before the migration may need {needed >> 20} MiB and {self._data_dir.path} has "
                f"{free >> 20} MiB free; free some space, or go without one: jobd migrate --no-backup"
            )


async def bytes_needed(connection: Connection) -> int:
    """Free bytes that a backup of the database needs, with room left for the server to go on."""
    dump = await connection.fetchval(DUMP_BYTES_AT_MOST)
    assert isinstance(dump, int)
    return dump + WARM_START_BYTES


@contextlib.contextmanager
def kept_file(path: Path) -> Iterator[BinaryIO]:
    """A new file in the folder of automatic backups, which belongs to the owner of the data directory.

    That need not be us: what root makes in the data directory of another user's jobd must be that user's, who is to go
    on with it, and who may have put a link there.
    """
    with opened_folder(os.path.realpath(path.parent.parent)) as data_dir:
        info = os.fstat(data_dir)
        owner = Owner(info.st_uid, info.st_gid) if os.geteuid() == 0 != info.st_uid else None
        make_folder(path.parent.name, owner or Owner(os.geteuid(), os.getegid()), within=data_dir)
        with opened_folder(path.parent.name, within=data_dir) as folder:
            with new_file(folder, path.name, owner=owner) as file:
                yield file
            _forget_old(folder, path.name)


def _forget_old(folder: int, newest: str) -> None:
    """Delete all but the newest few, and what a kill left half written; what people put there stays."""
    names = sorted(os.listdir(folder))
    others = [name for name in names if _NAME.fullmatch(name) and name != newest]
    for name in (*(name for name in names if _TEMPORARY.fullmatch(name)), *others[: -(KEPT - 1)]):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            log.info("deleted an old automatic backup: %s", name)
