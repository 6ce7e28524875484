"""Data directories as `jobd migrate` leaves them: a cluster with the schema, made once for a machine and copied.

To make one takes initdb and all migrations, about 2 s of CPU; a copy takes 0.1 s. It is kept in the cache folder of the
user under a hash of all that decides what is in it. Processes that need it at the same time wait for one to make it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jobd.errors import ServerFailed
from jobd.host.account import account_to_start
from jobd.host.data_dir import CLUSTER
from jobd.servers.postgres import INITDB, PROGRAM
from jobd.store.migrate import LEDGER, known_migrations

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What every data directory makes for itself: sockets, addresses, passwords.
OWN = ("run", "env.json", "secrets")
#: Seconds without use after which a template of another version of jobd is removed: 14 days.
UNUSED_S = 14 * 86_400
#: Seconds that initdb and all migrations may take on a busy machine.
MAKE_S = 300.0
#: The folder with the package `jobd`, for the process that makes a template.
IMPORT_PATH = Path(__file__).resolve().parents[2]


class Template:
    def __init__(self, folder: Path | None = None) -> None:
        """`folder` holds the templates of all versions (default: `cache_folder()`)."""
        self._folder = cache_folder() if folder is None else folder

    def copy_to(self, data_dir: Path) -> None:
        """Make `data_dir` a copy; the next start of jobd on it is a warm one."""
        kept = self._folder / digest()
        with self._locked(fcntl.LOCK_SH):
            if kept.is_dir():
                _copy(kept, data_dir)
                os.utime(kept)
                return
        with self._locked(fcntl.LOCK_EX):
            if not kept.is_dir():
                self._remove_unused()
                self._make(kept)
            _copy(kept, data_dir)

    def _make(self, kept: Path) -> None:
        """Made where the servers' account can enter; only copies of it are ever served."""
        folder = Path(tempfile.mkdtemp(prefix="jobd-test-"))
        folder.chmod(0o711)
        try:
            made = folder / "data"
            migrated = subprocess.run(
                [sys.executable, "-m", "jobd", "migrate", "--data-dir", str(made)],
                cwd="/",
                env=_environment(),
                capture_output=True,
                text=True,
                timeout=MAKE_S,
            )
            if migrated.returncode != 0:
                raise ServerFailed(f"no template of a data directory could be made: {migrated.stderr.strip()}")
            if (made / "run").is_symlink():
                shutil.rmtree((made / "run").resolve().parent)
                (made / "run").unlink()
            for name in OWN:
                shutil.rmtree(made / name) if (made / name).is_dir() else (made / name).unlink(missing_ok=True)
            unfinished = self._folder / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            _copy(made, unfinished)  # with its owners, and from another file system too
            os.utime(unfinished)
            unfinished.rename(kept)
        finally:
            shutil.rmtree(folder)

    def _remove_unused(self) -> None:
        for old in filter(Path.is_dir, self._folder.iterdir()):
            if old.stat().st_mtime < time.time() - UNUSED_S:
                shutil.rmtree(old, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("ab") as file:
            fcntl.flock(file, how)
            yield


def cache_folder() -> Path:
    """JOBD_TEST_CACHE, else a folder of jobd's in the cache folder of the user."""
    if named := os.environ.get("JOBD_TEST_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "jobd", "templates")


@functools.cache
def digest() -> str:
    """Of all that decides what is in a template: the schema, the server, and who runs it."""
    found = hashlib.sha256(LEDGER.encode())
    for migration in known_migrations():
        found.update(f"{migration.number} {migration.name}\0{migration.sql}\0".encode())
    found.update(repr(INITDB).encode())
    found.update(importlib.metadata.version(PROGRAM.distribution).encode())
    found.update(f"{os.geteuid()} {account_to_start(Path('/nonexistent', CLUSTER)).uid}".encode())
    return found.hexdigest()[:16]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", str(source), str(target)], check=True)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBD_")}
    paths = [str(IMPORT_PATH), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}
