"""Files and folders that jobd writes where another account may have put a link: none is followed.

A jobd that root started keeps files in folders of the servers' account; `jobd migrate`, run by root, writes a backup
into the data directory of another user's jobd. Whoever owns such a folder may put a link there at any moment. So a
file is made new under a name that nobody knows, in a folder that is held by its descriptor, gets its owner through its
own descriptor, and takes its place by a rename, which replaces a link instead of following it.

Only the last part of a path is proved not to be a link: the folders above it must be the caller's own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: O_NONBLOCK: opening a named pipe in the place of a file must not block.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Owner(NamedTuple):
    uid: int
    gid: int


@contextlib.contextmanager
def opened_folder(path: Path | str, *, within: int | None = None) -> Iterator[int]:
    """The folder's descriptor; `within`: the path is relative to that one. A link is refused with ENOTDIR."""
    fd = os.open(path, _FOLDER, dir_fd=within)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def new_file(folder: int, name: str, *, owner: Owner | None = None) -> Iterator[BinaryIO]:
    """A file to write to, mode 0600; it is on the disk under its name when the block ends well, and else gone."""
    temporary = f".{name[:100]}.{secrets.token_hex(4)}"
    fd = os.open(temporary, _NEW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            if owner is not None:
                os.fchown(fd, *owner)
            yield file
            file.flush()
            os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    _sync(folder)


def write_whole(path: Path, data: bytes, *, owner: Owner | None = None) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new and nothing between; mode 0600."""
    with opened_folder(os.path.realpath(path.parent)) as folder, new_file(folder, path.name, owner=owner) as file:
        file.write(data)


def read_text(path: Path, limit: int) -> str:
    """A small file's first `limit` bytes; raises OSError, also for what is no regular file."""
    fd = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return os.read(fd, limit).decode("utf-8", "replace")
    finally:
        os.close(fd)


def open_beneath(top: Path, *parts: str) -> BinaryIO:
    """A regular file some folders below `top`, none of which may be a link; raises OSError."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(opened_folder(os.path.realpath(top)))
        for part in parts[:-1]:
            folder = stack.enter_context(opened_folder(part, within=folder))
        file = os.fdopen(os.open(parts[-1], _READ, dir_fd=folder), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file", parts[-1])
    return file


def make_folder(path: Path | str, owner: Owner, *, within: int | None = None) -> None:
    """A 0700 folder of the owner; one that belonged to another account is handed over with what that account left."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=within)
    with opened_folder(path, within=within) as fd:
        before = os.fstat(fd).st_uid
        if before != owner.uid:
            for _, folders, files, inner in os.fwalk(".", dir_fd=fd):
                for name in (*folders, *files):
                    _hand_over(name, inner, before, owner)
            os.fchown(fd, *owner)
        os.fchmod(fd, 0o700)


def make_private_folder(name: str, parent: int) -> None:
    """A 0700 folder of this process, if it is not there yet; on the disk when this returns."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    os.fsync(parent)


def sync_folder(path: Path) -> None:
    with opened_folder(os.path.realpath(path)) as fd:
        _sync(fd)


def _hand_over(name: str, folder: int, before: int, owner: Owner) -> None:
    """Only what belonged to the old owner: it may have put a hard link to somebody else's file there."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        info = os.fstat(fd)
        if info.st_uid == before and not stat.S_ISLNK(info.st_mode):
            os.chown(f"/proc/self/fd/{fd}", *owner)  # fchown does not take such a descriptor
    finally:
        os.close(fd)


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:  # some network file systems cannot
        if error.errno != errno.EINVAL:
            raise
