"""Where a backup is written to: a file that appears whole under its name or not at all, or standard output."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from jobd.errors import DiskFull, FileRefused

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    """As much of a file as a tar needs to be written to. Says what it is when it cannot be."""

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
    with explained(path):
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    try:
        with os.fdopen(fd, "wb") as file:
            yield Sink(file, path)
            with explained(path):
                file.flush()
                os.fsync(file.fileno())
        check_target(path, force=force)  # once more: it took a while
        with explained(path):
            os.rename(temporary, path)
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def standard_output() -> Iterator[Sink]:
    if sys.stdout.isatty():
        raise FileRefused("a backup does not belong on a terminal; write it to a file or a pipe: jobd backup - | ...")
    yield Sink(sys.stdout.buffer, "standard output")
    with explained("standard output"):
        sys.stdout.buffer.flush()


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:  # some network file systems cannot
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def explained(name: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left for {name}; free some or name another place") from error
        raise FileRefused(f"{name} cannot be written: {error.strerror or error}; name another file") from error
