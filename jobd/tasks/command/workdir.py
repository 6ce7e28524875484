"""The private directory of one attempt: its temporary files, its working directory, its result file.

It is called after the attempt's mark and locked as long as jobd runs the attempt. A directory that nobody locks was
left by a jobd that was killed, and so, perhaps, were the processes with that mark: both are removed at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from typing import TYPE_CHECKING

from jobd.tasks.command.marks import kill_marked

if TYPE_CHECKING:
    from pathlib import Path

#: Folder in the data directory, with one folder for each running attempt.
ATTEMPTS = "attempts"
RESULT_FILE = "result.json"


class Workdir:
    def __init__(self, root: Path, mark: int) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = root / str(mark)
        self.path.mkdir(mode=0o700)
        try:
            self._lock = _open_locked(self.path)
        except OSError:
            self.path.rmdir()
            raise

    @property
    def result_file(self) -> Path:
        return self.path / RESULT_FILE

    def read_result(self, limit: int) -> bytes | None:
        """What the program wrote there, cut after `limit` + 1 bytes; None if it wrote no file."""
        try:
            fd = os.open(self.result_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with open(fd, "rb") as file:
            return file.read(limit + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else None

    def remove(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # first: removing needs a descriptor too, and this may be the last
        _remove(self.path)


def clear_leftovers(root: Path) -> int:
    """Remove what attempts of a killed jobd left there; returns how many of their processes were ended."""
    left: dict[Path, int] = {}
    for path in root.glob("*"):
        fd = _open_locked(path) if path.name.isdecimal() else None
        if fd is not None:
            left[path] = fd
    ended = kill_marked({int(path.name) for path in left}) if left else 0
    for path, fd in left.items():
        _remove(path)
        os.close(fd)
    return ended


def _open_locked(path: Path) -> int | None:
    """The locked descriptor of the directory; None if another process holds the lock."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # a directory without write permission keeps its files from their owner too
        for folder, _, _ in os.walk(path):
            with contextlib.suppress(OSError):
                os.chmod(folder, 0o700)
        shutil.rmtree(path, ignore_errors=True)
