"""The two moves around a restore: a place to make everything ready, and the moment from which it counts.

    {data_dir}/restoring/     a data directory of its own, with a server of its own, where everything is made ready
    {data_dir}/results        moved out of it first, and so is {data_dir}/files
    {data_dir}/postgres       moved out of it last: from that moment on the restore has happened

While there is `restoring` and no `postgres`, a start is refused (see host/data_dir.py) and another restore starts from
the beginning. It is inside the directory and not beside it, since the directory may be a mount of its own, or its
parent not ours to write.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from jobd.backup.output import explained
from jobd.engine.results import FOLDER as RESULTS
from jobd.errors import AlreadyRunning, DataDirRefused
from jobd.files.storage import FOLDER as FILES
from jobd.host import locks
from jobd.host.data_dir import RESTORING, DataDir
from jobd.host.files import sync_folder
from jobd.servers.postgres import STOP_ORPHANS
from jobd.servers.program import clear_orphans

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Files that a failed start or restore may leave in an otherwise empty directory.
TRACES = {"jobd.lock", "run"}
#: Folders of files that rows name.
FOLDERS = (RESULTS, FILES)


@contextlib.asynccontextmanager
async def staged(data_dir: DataDir) -> AsyncIterator[DataDir]:
    """A data directory to fill, which takes the place of the empty `data_dir` if the block ends well."""
    check_empty(data_dir)
    await _clear(data_dir)
    data_dir.open()
    try:
        check_contents(data_dir)  # once more, now that nobody else is at it
        inner = DataDir(data_dir.path / RESTORING, data_dir.account)
        with explained(data_dir.path):
            inner.path.mkdir(mode=0o700)
            sync_folder(data_dir.path)
        try:
            yield inner
            with explained(data_dir.path):
                take_over(data_dir, inner)
        finally:
            _remove(data_dir, inner)
    finally:
        data_dir.close()


def check_empty(data_dir: DataDir) -> None:
    """Refuse a directory that is in use, or is not empty; touches nothing."""
    if not data_dir.path.is_dir():
        data_dir.check()  # absent is fine, a file is not
        return
    if data_dir.is_running():
        by = ", ".join(f"pid {pid}" for pid in locks.holders(data_dir.lock_path)) or "another process"
        raise AlreadyRunning(
            f"jobd or a restore runs on {data_dir.path} ({by}); restore into another directory with --data-dir"
        )
    check_contents(data_dir)
    if not is_unfinished(data_dir):
        data_dir.check()


def check_contents(data_dir: DataDir) -> None:
    """Refuse a directory with anything in it but what a restore that was cut short has left."""
    there = {entry.name for entry in data_dir.path.iterdir()} - TRACES
    if is_unfinished(data_dir):
        there -= {RESTORING, *FOLDERS}
    if there:
        raise DataDirRefused(
            f"data directory {data_dir.path} is not empty ({', '.join(sorted(there)[:3])}); move it away, or name an"
            " empty or new one with --data-dir"
        )


def is_unfinished(data_dir: DataDir) -> bool:
    return (data_dir.path / RESTORING).is_dir() and not data_dir.cluster.exists()


async def _clear(data_dir: DataDir) -> None:
    """Take away what a restore that was killed has left, its server included."""
    if not is_unfinished(data_dir):
        return
    lock = locks.take(data_dir.lock_path)
    if lock is None:
        raise AlreadyRunning(f"jobd or another restore runs on {data_dir.path}; wait for it to end")
    try:
        inner = DataDir(data_dir.path / RESTORING, data_dir.account)
        await clear_orphans(inner.server_lock("postgres"), STOP_ORPHANS)
        _remove(data_dir, inner)
    finally:
        os.close(lock)


def take_over(data_dir: DataDir, inner: DataDir) -> None:
    """Move the folders into place. The files in them were synced when they were written."""
    for name in FOLDERS:
        if (inner.path / name).exists():
            for folder in (*(inner.path / name).iterdir(), inner.path / name):
                sync_folder(folder)
            _move(name, inner, data_dir)
    _move(data_dir.cluster.name, inner, data_dir)


def _move(name: str, source: DataDir, target: DataDir) -> None:
    os.rename(source.path / name, target.path / name)
    sync_folder(target.path)


def _remove(data_dir: DataDir, inner: DataDir) -> None:
    """Remove the folder, the marker last, so that after a crash it is still known as the rest of a restore."""
    if not data_dir.cluster.exists():
        for name in FOLDERS:
            shutil.rmtree(data_dir.path / name, ignore_errors=True)
    inner.remove_run()
    shutil.rmtree(inner.path, ignore_errors=True)
