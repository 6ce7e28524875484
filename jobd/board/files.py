"""Files of sysfs and procfs under a root, each kept open: reading one again is a single system call."""

from __future__ import annotations

import contextlib
import os
from glob import glob, has_magic

#: Bytes that are read of a file at most: /proc/meminfo has 1.6 KB, an attribute of sysfs at most one page.
MOST_BYTES = 8192


class KeptFiles:
    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._open: dict[str, int] = {}

    def find(self, pattern: str) -> list[str]:
        """Paths that match, shorter names first: hwmon2 before hwmon10."""
        if not has_magic(pattern):
            return [pattern] if os.path.exists(self._root + pattern) else []
        found = (path[len(self._root) :] for path in glob(self._root + pattern))
        return sorted(found, key=lambda path: (len(path), path))

    def read(self, path: str) -> str | None:
        """Its text, without what surrounds it; None: it cannot be read now."""
        try:
            if path not in self._open:
                self._open[path] = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            return os.pread(self._open[path], MOST_BYTES, 0).decode("utf-8", "replace").strip(" \t\r\n\0")
        except OSError:  # it is gone, or its device is switched off
            self._forget(path)
            return None

    def number(self, path: str) -> int | None:
        text = self.read(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def once(self, path: str) -> str | None:
        """As `read`, of a file that is not read again soon."""
        text = self.read(path)
        self._forget(path)
        return text

    def close(self) -> None:
        for path in list(self._open):
            self._forget(path)

    def _forget(self, path: str) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def unique(names: list[str]) -> list[str]:
    """The names, those that occur again with a number behind them: metrics tell them apart by it."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return made
