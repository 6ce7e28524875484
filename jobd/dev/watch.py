"""Which files have changed, by polling their times and sizes: it works on every file system and needs no package.

Only Python files count. Folders that are hidden, hold a virtual environment, installed packages or the data of jobd are
left out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
#: In a folder: it is a virtual environment.
ENVIRONMENT = "pyvenv.cfg"
#: In a folder: it is a data directory of jobd.
DATA = "jobd.lock"
SUFFIX = ".py"
#: Most files that are watched; a larger project names the folders of its tasks.
MOST_FILES = 10_000


class Stamp(NamedTuple):
    mtime_ns: int
    size: int
    #: Editors that write a new file and rename it change this.
    inode: int


class FileWatch:
    def __init__(self, folders: Iterable[Path], files: Iterable[Path] = ()) -> None:
        """`files` are watched whatever their name, and whether or not they are there."""
        self._folders = [os.path.abspath(folder) for folder in folders]
        self._files = [os.path.abspath(file) for file in files]
        self._seen = self.scan()

    @property
    def is_full(self) -> bool:
        return len(self._seen) >= MOST_FILES

    def scan(self) -> dict[str, Stamp]:
        found: dict[str, Stamp] = {}
        for path in (*self._files, *(path for folder in self._folders for path in _python_files(folder))):
            try:
                info = os.stat(path)
            except OSError:  # gone meanwhile
                continue
            found[path] = Stamp(info.st_mtime_ns, info.st_size, info.st_ino)
            if len(found) >= MOST_FILES:
                break
        return found

    def changes(self) -> list[str]:
        """Paths that are new, changed or gone since the last call, sorted."""
        now = self.scan()
        changed = {path for path in now.keys() | self._seen.keys() if now.get(path) != self._seen.get(path)}
        self._seen = now
        return sorted(changed)


def _python_files(folder: str) -> Iterator[str]:
    left = [folder]
    while left:
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    name = entry.name
                    if name in (ENVIRONMENT, DATA):
                        folders, files = [], []
                        break
                    if name.endswith(SUFFIX):
                        files.append(entry.path)
                    elif not name.startswith(".") and name not in SKIPPED and entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # gone meanwhile, or not ours to read
            continue
        yield from files
        left += folders
