"""Take a backup: a snapshot of the rows, then the files that these rows name.

Everything is read as of one moment, while jobd goes on writing. Whatever was acknowledged before is inside, whatever
came later is not. A result file is written before the row that names it and deleted after, and while a backup is being
taken nothing is pruned, so every file that the snapshot names can be found. The price: retention waits for the
backup, and Postgres keeps what is deleted meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread

import jobd
from jobd.backup.archive import Contents, Head, Writer
from jobd.backup.tools import read_from, tool_of
from jobd.engine.results import ResultLost, Results
from jobd.errors import BackupRefused
from jobd.files.storage import FileLost, FileStorage
from jobd.lifecycle.prune import LEADER_KEY
from jobd.servers import postgres as embedded_postgres
from jobd.store.faults import translated
from jobd.store.postgres import connect
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Callable

    import asyncpg

    from jobd.backup.output import Sink
    from jobd.config.model import Config
    from jobd.host.data_dir import DataDir
    from jobd.store.session import Session

PREPARE_BACKUP = statement("prepare_backup", __package__)
HOLD_BACK_JANITOR = statement("hold_back_janitor", __package__)
EXPORT_SNAPSHOT = statement("export_snapshot", __package__)
COUNT_STATEMENT = statement("count_statement", __package__)
COUNT_JOBS = statement("count_jobs", __package__)
RESULT_FILES = statement("result_files", __package__)
FILES_TABLE = statement("files_table", __package__)
CLIENT_FILES = statement("client_files", __package__)
OTHER_TABLES = statement("other_tables", __package__)

#: The dump is cut into pieces of this size, each a member of the archive.
PIECE_BYTES = 8 << 20
#: Arguments of pg_dump: gzip at its lowest level, because the CPU of a small board is slow. A plain number: Postgres
#: before 16 does not know `gzip:1`.
PG_DUMP = (
    *("--format=custom", "--compress=1", "--schema=jobd", "--no-owner", "--no-privileges"),
    "--lock-wait-timeout=60s",
)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What was backed up."""

    #: None: it went to standard output.
    file: str | None
    bytes: int
    head: Head
    contents: Contents
    #: Tables that are not jobd's own and were left out.
    others: list[str]


class Backup:
    """One backup of an embedded Postgres that runs."""

    def __init__(self, data_dir: DataDir, config: Config, progress: Callable[[str], None] = lambda text: None) -> None:
        self._url = embedded_postgres.url(data_dir)
        self._config = config
        self._results = Results(data_dir.path, lambda: config)
        self._client_files = FileStorage(data_dir.path)
        self._progress = progress
        self._result_bytes = 0
        self._files = 0
        self._missing: list[str] = []

    async def write(self, sink: Sink, *, with_results: bool) -> Summary:
        with translated(self._url, strict=True):
            session = await connect(self._url)
            try:
                await session.execute(PREPARE_BACKUP)
                if not await session.fetchval("SELECT to_regclass('jobd.jobs') IS NOT NULL"):
                    raise BackupRefused("there is nothing to back up yet; start jobd once: jobd serve")
                self._progress("waiting for the janitor")
                await session.fetchval(HOLD_BACK_JANITOR, LEADER_KEY)
                async with session.transaction(isolation="repeatable_read", readonly=True):
                    return await self._write(session, sink, with_results)
            finally:
                session.terminate()

    async def _write(self, session: asyncpg.Connection[asyncpg.Record], sink: Sink, with_results: bool) -> Summary:
        seen = await session.fetchrow(EXPORT_SNAPSHOT)
        assert seen is not None  # it selects from no table
        head = Head(
            jobd=jobd.__version__,
            schema=seen["schema"],
            postgres=seen["postgres"],
            made_at=seen["made_at"],
            holds="everything" if with_results else "database",
        )
        writer = Writer(sink, head)
        await self._write_database(writer, seen["snapshot"])
        if with_results:
            await self._write_files(writer, session, RESULT_FILES, self._results)
            if await session.fetchval(FILES_TABLE):
                await self._write_files(writer, session, CLIENT_FILES, self._client_files)
        contents = Contents(
            tables=await count_rows(session),
            jobs={row["status"]: row["jobs"] for row in await session.fetch(COUNT_JOBS)},
            database_bytes=seen["database_bytes"],
            result_files=self._files,
            result_bytes=self._result_bytes,
            results_missing=self._missing,
        )
        await to_thread.run_sync(writer.finish, contents)
        others = [row["name"] for row in await session.fetch(OTHER_TABLES)]
        return Summary(file=None, bytes=writer.bytes, head=head, contents=contents, others=others)

    async def _write_database(self, writer: Writer, snapshot: str) -> None:
        gathered = bytearray()
        number = 0

        async def put(least: int) -> None:
            nonlocal number
            if len(gathered) > least:
                await to_thread.run_sync(writer.add, f"database/{number:06d}", bytes(gathered))
                gathered.clear()
                number += 1
                self._progress(f"database: {writer.bytes >> 20} MiB")

        async def take(data: bytes) -> None:
            gathered.extend(data)
            await put(PIECE_BYTES)

        await read_from(
            tool_of(self._config, "pg_dump"), [*PG_DUMP, f"--snapshot={snapshot}", f"--dbname={self._url}"], take
        )
        await put(0)

    async def _write_files(
        self,
        writer: Writer,
        session: asyncpg.Connection[asyncpg.Record],
        named: str,
        folder: Results | FileStorage,
    ) -> None:
        """Those that the rows of statement `named` name."""
        async for (ref,) in session.cursor(named, prefetch=500):
            try:
                opened = await folder.open(ref)
            except (ResultLost, FileLost):
                self._missing.append(ref)
                continue
            with opened.file:
                await to_thread.run_sync(writer.add_file, ref, opened.file, opened.size)
            self._files += 1
            self._result_bytes += opened.size
            if self._files % 100 == 0:
                self._progress(f"files: {self._files}, {self._result_bytes >> 20} MiB")


async def count_rows(session: Session) -> dict[str, int]:
    """The number of rows of every table in the schema."""
    return {row["name"]: row["rows"] for row in await session.fetch(str(await session.fetchval(COUNT_STATEMENT)))}
