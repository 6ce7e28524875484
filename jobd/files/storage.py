"""The bytes of files: one file of the data directory each, which is whole or not there at all.

    files/                          0700
        installation                whose rows the files belong to
        ab/<file id>@<node>.data    0600

- A file is written under a temporary name, fsynced and renamed before the commit of its row, so no row ever points to a
  missing or half file. What a crash leaves is a file without a row; the janitor sweeps those.
- The name ends with the node that has the file, so that any other can say which one to ask.
- What the database says is a path is opened only if it looks like one of ours, and through no link.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import time
from typing import TYPE_CHECKING, BinaryIO, NamedTuple
from uuid import UUID

import anyio
from anyio import to_thread

from jobd.errors import JobdError
from jobd.host.data_dir import node_name
from jobd.host.files import make_private_folder, new_file, opened_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = "files"
MARKER = "installation"

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME = re.compile(rf"({_UUID})@[a-z0-9-]{{1,64}}\.data")
_TEMPORARY = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{8}}")
_REF = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/({_NAME.pattern}|{_TEMPORARY.pattern})")


class FileNotKept(JobdError):
    """The disk does not take the file. Nothing of it is left."""

    code = "file_not_kept"


class FileLost(JobdError):
    """There is no such file here, though a row says so."""

    code = "file_lost"

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        #: The node that has the file, if it is another one.
        self.node = node


class OpenFile(NamedTuple):
    file: BinaryIO
    size: int


class FoundFile(NamedTuple):
    ref: str
    #: None: of a file that was never finished.
    file_id: UUID | None
    age_s: float


class FileWriter:
    """A file that is being written; it is kept only by `keep`."""

    def __init__(self, data_dir: Path, folder: str, name: str) -> None:
        self._data_dir = data_dir
        self._folder = folder
        self._name = name
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self.ref = f"{FOLDER}/{folder}/{name}"
        #: Bytes written.
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Raises FileNotKept."""
        await to_thread.run_sync(self.write_blocking, data)

    async def keep(self) -> str:
        """Put it on the disk under its name, which is the answer; raises FileNotKept."""
        with self._explained():
            await to_thread.run_sync(self._stack.close)
        return self.ref

    def write_blocking(self, data: bytes) -> None:
        assert self._file is not None  # it is open until it is kept
        with self._explained():
            self._file.write(data)
        self.size += len(data)

    def open(self) -> None:
        with self._explained(), contextlib.ExitStack() as stack:
            folder = stack.enter_context(opened_folder(os.path.realpath(self._data_dir)))
            for part in (FOLDER, self._folder):
                make_private_folder(part, folder)
                folder = stack.enter_context(opened_folder(part, within=folder))
            self._file = stack.enter_context(new_file(folder, self._name))
            self._stack = stack.pop_all()

    def abandon(self) -> None:
        """Remove what was written, unless it was kept."""
        why = FileNotKept("abandoned")
        with contextlib.suppress(FileNotKept, OSError):
            self._stack.__exit__(FileNotKept, why, None)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileNotKept(
                f"a file of {self.size} bytes so far could not be written to {self._data_dir / FOLDER}:"
                f" {error.strerror}; make room there, or delete files"
            ) from error


class FileStorage:
    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.node = node_name(data_dir)
        #: Files whose rows may not be committed yet.
        self._under_way: set[str] = set()

    @contextlib.asynccontextmanager
    async def new_file(self, file_id: UUID) -> AsyncIterator[FileWriter]:
        """A file to write; the block is to keep it and to commit its row. Else nothing of it is left."""
        writer = FileWriter(self._data_dir, file_id.hex[-2:], f"{file_id}@{self.node}.data")
        self._under_way.add(writer.ref)
        try:
            await to_thread.run_sync(writer.open)
            yield writer
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(writer.abandon)
            self._under_way.discard(writer.ref)

    async def open(self, ref: str) -> OpenFile:
        """The file that a row names, to be closed by the caller; raises FileLost."""
        return await to_thread.run_sync(self.open_blocking, ref)

    def open_blocking(self, ref: str) -> OpenFile:
        named = _REF.fullmatch(ref)
        if named is None:
            raise FileLost("its ref is no name that jobd gives to a file")
        try:
            with self._folder(named[1]) as folder:
                # A named pipe in the place of the file must not keep us waiting.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.fdopen(os.open(named[2], flags, dir_fd=folder), "rb")
        except OSError as error:
            node = ref.rpartition("@")[2].removesuffix(".data")
            elsewhere = node if node != self.node else None
            raise FileLost(f"{ref} cannot be read on this node: {error.strerror}", elsewhere) from error
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            file.close()
            raise FileLost(f"{ref} is not a file")
        return OpenFile(file, info.st_size)

    async def remove(self, refs: Iterable[str]) -> int:
        """Delete files that no row names; how many were here. One on another node is for that node to sweep."""
        return await to_thread.run_sync(self._remove, list(refs))

    async def remove_orphans(self, files: Iterable[FoundFile]) -> int:
        """The same for what was found by walking, but not what is being written or committed."""
        return await self.remove(file.ref for file in files if file.ref not in self._under_way)

    def _remove(self, refs: list[str]) -> int:
        removed = 0
        for ref in refs:
            if (named := _REF.fullmatch(ref)) is None:
                continue
            try:
                with self._folder(named[1]) as folder:
                    os.unlink(named[2], dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s stays: %s", ref, error.strerror)
                continue
            removed += 1
        return removed

    def walk(self) -> Generator[FoundFile, None, None]:
        """Every file of ours, for as long as it takes; those that come and go meanwhile may be there or not. Blocks."""
        for number in range(256):
            folder = f"{number:02x}"
            try:
                with self._folder(folder) as fd, os.scandir(fd) as entries:
                    yield from filter(None, (_found(folder, entry) for entry in entries))
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s/%s cannot be listed: %s", FOLDER, folder, error.strerror)

    def belong_to(self, installation: str) -> bool:
        """Whether these are the files of this database: with another one, every file would look like an orphan.

        The first one to ask is remembered. Blocks.
        """
        marker = self._data_dir / FOLDER / MARKER
        try:
            return marker.read_text("ascii", "replace").strip() == installation
        except FileNotFoundError:
            with contextlib.suppress(OSError):  # on a full disk, sweeping is what helps
                if marker.parent.is_dir():
                    write_whole(marker, f"{installation}\n".encode())
            return True
        except OSError as error:
            log.warning("%s cannot be read: %s", marker, error.strerror)
            return False

    @contextlib.contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        """A folder as a descriptor that was reached through no link."""
        with (
            opened_folder(os.path.realpath(self._data_dir)) as top,
            opened_folder(FOLDER, within=top) as files,
            opened_folder(name, within=files) as folder,
        ):
            yield folder


def _found(folder: str, entry: os.DirEntry[str]) -> FoundFile | None:
    """None for what jobd did not put there, which it leaves alone, and for what has just gone."""
    named = _NAME.fullmatch(entry.name)
    if named is None and _TEMPORARY.fullmatch(entry.name) is None:
        return None
    try:
        age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None
    return FoundFile(f"{FOLDER}/{folder}/{entry.name}", UUID(named[1]) if named else None, age_s)
