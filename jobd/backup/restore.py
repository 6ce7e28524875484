"""`jobd restore`: a backup becomes a data directory, after all of it was checked and before anyone can start on it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from anyio import to_thread

from jobd.backup import keep
from jobd.backup.archive import Contents, Head, is_kept_file, is_result, opened
from jobd.backup.load import fill
from jobd.backup.make import CLIENT_FILES, RESULT_FILES
from jobd.backup.offline import connected
from jobd.backup.output import explained
from jobd.backup.staging import check_empty, staged
from jobd.backup.tools import tool_of
from jobd.engine.results import FOLDER as RESULTS
from jobd.errors import ConfigError, DiskFull, WrongVersion
from jobd.files.storage import FOLDER as FILES
from jobd.host.account import user_name
from jobd.host.data_dir import FIRST_START_BYTES, DataDir
from jobd.host.files import open_beneath
from jobd.servers import postgres as embedded_postgres
from jobd.store.migrate import known_migrations

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.backup.archive import Archive
    from jobd.config.model import Config
    from jobd.store.session import Connection


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored, or with --check would be."""

    #: None: it was only checked.
    data_dir: str | None
    head: Head
    contents: Contents
    #: Jobs that were running and wait again.
    handed_back: int = 0
    migrated: list[str] = []
    #: Result files that rows name and that were nowhere to be found.
    results_missing: list[str] = []


async def check(file: Path) -> Restored:
    """Read all of a backup and say what is in it; changes nothing."""
    return await to_thread.run_sync(_check, file)


def _check(file: Path) -> Restored:
    with opened(file) as archive:
        check_versions(file, archive.head)
        return Restored(data_dir=None, head=archive.head, contents=archive.contents)


async def restore(config: Config, file: Path, results: Path | None, progress: Callable[[str], None]) -> Restored:
    """Restore `file` into the configured data directory, with result files that it lacks from folder `results`."""
    refuse_external(config, "restored into")
    data_dir = DataDir.to_start(Path(config.data_dir))
    check_empty(data_dir)
    progress("checking the backup")
    with contextlib.ExitStack() as stack:
        archive = await to_thread.run_sync(stack.enter_context, opened(file))
        check_versions(file, archive.head, embedded_postgres.major_of(config))
        check_space(data_dir, archive.contents)
        async with staged(data_dir) as inner:
            progress("restoring the database")
            inside = msgspec.structs.replace(config, data_dir=str(inner.path))
            async with connected(inside) as connection:
                url, actor = embedded_postgres.url(inner), f"cli:{user_name(os.geteuid())}"
                filled = await fill(connection, url, tool_of(config, "pg_restore"), archive, actor)
                progress("restoring the result files")
                await to_thread.run_sync(_write_results, archive, inner.path)
                missing = await _fetch_missing(connection, inner.path, results or _beside(file))
            progress("finishing")
    return Restored(
        data_dir=str(data_dir.path),
        head=archive.head,
        contents=archive.contents,
        handed_back=filled.handed_back,
        migrated=filled.migrated,
        results_missing=missing,
    )


def refuse_external(config: Config, what: str) -> None:
    if config.postgres.url:
        raise ConfigError(
            f"[postgres] url is set, and only the embedded Postgres can be {what} with this; use that server's own"
            " tools (pg_dump --schema=jobd), then copy data_dir/results and data_dir/files"
        )


def check_versions(file: Path, head: Head, postgres: int = embedded_postgres.MAJOR) -> None:
    known = len(known_migrations())
    if head.schema > known:
        raise WrongVersion(
            f"{file} has database schema {head.schema} and this jobd knows {known}; "
            f"restore it with jobd {head.jobd} or newer"
        )
    if head.postgres > postgres:
        raise WrongVersion(
            f"{file} is of Postgres {head.postgres} and this jobd runs {postgres}; "
            f"restore it with jobd {head.jobd} or newer"
        )


def check_space(data_dir: DataDir, contents: Contents) -> None:
    needed, free = FIRST_START_BYTES + contents.database_bytes + contents.result_bytes, data_dir.free_bytes()
    if free < needed:
        raise DiskFull(
            f"the restore needs {needed >> 20} MiB and {data_dir.path} has {free >> 20} MiB free; free some space or "
            "name another with --data-dir"
        )


def _write_results(archive: Archive, top: Path) -> None:
    for member in archive.results():
        path = top / member.name
        with explained(path):
            _make_folders(path.parent)
            with open(path, "xb", opener=_private) as file:
                for block in archive.read(member):
                    file.write(block)
                _sync(file)


async def _fetch_missing(connection: Connection, top: Path, results: Path | None) -> list[str]:
    """The files that rows name and the backup lacks, from the given folder; those that are not there either."""
    refs = [row[0] for named in (RESULT_FILES, CLIENT_FILES) for row in await connection.fetch(named)]
    return await to_thread.run_sync(_fetched, refs, top, results)


def _fetched(refs: list[str], top: Path, results: Path | None) -> list[str]:
    missing = []
    for ref in refs:
        path = top / ref
        if is_kept_file(ref) and path.exists():
            continue
        try:
            old = _old_file(ref, results) if results and is_kept_file(ref) else None
        except OSError:
            old = None
        if old is None:
            missing.append(ref)
            continue
        with explained(path), old:
            _make_folders(path.parent)
            with open(path, "xb", opener=_private) as new:
                shutil.copyfileobj(old, new)
                _sync(new)
    return missing


def _old_file(ref: str, results: Path) -> BinaryIO:
    """A file of a result lies in the folder of results, others in the folder beside it."""
    if is_result(ref):
        return open_beneath(results, *Path(ref).relative_to(RESULTS).parts)
    return open_beneath(results.resolve().parent / FILES, *Path(ref).relative_to(FILES).parts)


def _make_folders(folder: Path) -> None:
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _beside(file: Path) -> Path | None:
    """The results folder beside an automatic backup, which lies in the data directory that has its result files."""
    folder = Path(os.path.realpath(file)).parent
    is_there = any((folder.parent / name).is_dir() for name in (RESULTS, FILES))
    return folder.parent / RESULTS if folder.name == keep.FOLDER and is_there else None
