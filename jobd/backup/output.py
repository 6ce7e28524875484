"""Where a backup is written to: a file that appears whole under its name or not at all, or standard output."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from jobd.errors import DiskFull, FileRefused
from jobd.host import files as host_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a place where the file cannot go; touches nothing."""
    try:
        info = path.stat()
    except FileNotFoundError:
        info = None
    except OSError as error:
        raise FileRefused(f"{path} cannot be written: {error.strerror}; name another file") from error
    if info is not None and stat.S_ISDIR(info.st_mode):
        raise FileRefused(f"{path} is a directory; name a file in it")
    if info is not None and not stat.S_ISREG(info.st_mode):
        raise FileRefused(f"{path} is no regular file; name another, or - for standard output")
    if info is not None and not force:
        raise FileRefused(f"{path} exists; name another file, or write over it with --force")
    if not path.parent.is_dir():
        raise FileRefused(f"{path} cannot be written: there is no directory {path.parent}; make it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise FileRefused(f"{path} cannot be written: {path.parent} is not writable; name another file")


class Sink:
    """The part of a file object that tarfile needs for writing; its errors name the file."""

    def __init__(self, file: BinaryIO, name: Path | str) -> None:
        self._file = file
        self._name = name
        self._written = 0

    def write(self, data: bytes) -> int:
        with explained(self._name):
            self._file.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written


@contextlib.contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Sink]:
    """A file to write to, mode 0600; it gets its name when the block ends well, and is gone if it does not."""
    path = Path(os.path.realpath(path))
    check_target(path, force=force)
    with written(_made(path), path) as sink:
        yield sink
        check_target(path, force=force)  # once more: it took a while


@contextlib.contextmanager
def written(making: AbstractContextManager[BinaryIO], path: Path) -> Iterator[Sink]:
    """A sink for a file that is being made; what fails when it is opened or finished is explained."""
    with contextlib.ExitStack() as stack:
        with explained(path):
            file = stack.enter_context(making)
        yield Sink(file, path)
        with explained(path):
            stack.close()


@contextlib.contextmanager
def _made(path: Path) -> Iterator[BinaryIO]:
    with host_files.opened_folder(path.parent) as folder, host_files.new_file(folder, path.name) as file:
        yield file


@contextlib.contextmanager
def standard_output() -> Iterator[Sink]:
    if sys.stdout.isatty():
        raise FileRefused("a backup does not belong on a terminal; write it to a file or a pipe: jobd backup - | ...")
    yield Sink(sys.stdout.buffer, "standard output")
    with explained("standard output"):
        sys.stdout.buffer.flush()


@contextlib.contextmanager
def explained(name: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left for {name}; free some or name another place") from error
        raise FileRefused(f"{name} cannot be written: {error.strerror or error}; name another file") from error
