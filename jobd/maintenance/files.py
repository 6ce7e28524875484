"""The janitor's part for batches and files: what has ended or expired goes, and then files that no row names."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from anyio import to_thread

from jobd.batches.table import prune_batches
from jobd.files.table import prune_files, read_file_refs
from jobd.lifecycle.prune import read_installation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from jobd.config.model import Config
    from jobd.files.storage import FileStorage, FoundFile
    from jobd.store.postgres import Database
    from jobd.store.session import Session

log = logging.getLogger(__name__)

#: Files that are deleted in one commit.
EXPIRED_BATCH = 100
#: Files that are looked at in a round.
LOOKED_AT = 1_000
#: Age in seconds from which a file without a row is deleted; no upload is under way for a day.
UNNAMED_S = 86_400.0


class FileSweep:
    def __init__(
        self, database: Database, files: FileStorage, config: Callable[[], Config], *, unnamed_s: float = UNNAMED_S
    ) -> None:
        self._database = database
        self._files = files
        self._config = config
        self._unnamed_s = unnamed_s
        self._walk: Generator[FoundFile, None, None] | None = None
        self._is_foreign = False

    async def prune(self, session: Session) -> bool:
        """Delete some batches that ended long ago, and some files that have expired; whether there are more."""
        past = await self._database.clock.past(self._config().openai.batch_keep_s)
        batches = await prune_batches(session, past=past, most=EXPIRED_BATCH)
        refs = await prune_files(session, most=EXPIRED_BATCH)
        await self._files.remove(refs)
        if refs:
            log.info("deleted %d files that have expired", len(refs))
        return max(len(refs), batches) == EXPIRED_BATCH

    async def sweep_orphans(self) -> int:
        """Look at the next few files of this data directory, and delete old ones without a row; how many."""
        if not await self._are_ours():
            return 0
        found = await to_thread.run_sync(self._next_files)
        old = [file for file in found if file.age_s > self._unnamed_s]
        if not old:
            return 0
        named = await read_file_refs(self._database, [file.file_id for file in old if file.file_id is not None])
        removed = await self._files.remove_orphans(file for file in old if file.ref not in named)
        if removed:
            log.info("deleted %d files that no row names", removed)
        return removed

    def stop_walking(self) -> None:
        if self._walk is not None:
            self._walk.close()
            self._walk = None

    async def _are_ours(self) -> bool:
        installation = await read_installation(self._database)
        are_ours = await to_thread.run_sync(self._files.belong_to, installation)
        if not are_ours and not self._is_foreign:
            log.warning(
                "the files in data_dir/files belong to another database, so none is swept; is postgres.url the right"
                " one? If so, delete data_dir/files/installation"
            )
        self._is_foreign = not are_ours
        return are_ours

    def _next_files(self) -> list[FoundFile]:
        if self._walk is None:
            self._walk = self._files.walk()
        files = list(islice(self._walk, LOOKED_AT))
        if len(files) < LOOKED_AT:
            self.stop_walking()
        return files
