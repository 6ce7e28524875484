"""Results that are too large for their row: one file each, which is whole or not there at all.

    results/                                     0700
        installation                             whose rows the files belong to
        ab/<job id>-<32 hex digits>@<node>.json  0600

- A file is written, fsynced and renamed before the commit that names it in `result_ref`, so no row ever points to a
  missing or half file. What a crash or a refusal leaves is a file without a row; the janitor sweeps those.
- The name is made from the holder's lease token and the text. Reports that differ in either have different files, so
  one that is refused cannot touch the file of the one that counted, and the same one sent again writes the same. It
  ends with the node that has the file, so that any other can say which one to ask. (Names from before do not.)
- What the database says is a path is opened only if it looks like one of ours, and through no link.

A large result is encoded, checked and written in one thread, one result at a time: in pieces where its value is at hand
(see `json_pieces`), and else, since its text must be parsed to be checked, with twice its size in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import stat
import threading
import time
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol
from uuid import UUID

import anyio
from anyio import to_thread

from jobd.errors import JobdError
from jobd.host.data_dir import node_name
from jobd.host.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from jobd.config.model import Config

log = logging.getLogger(__name__)

FOLDER = "results"
MARKER = "installation"
#: Large results that are handled at the same time; each needs memory and keeps the GIL for milliseconds.
AT_ONCE = 1
#: Seconds after its file was written in which the commit of a report may still be under way; the file's own age is not
#: trusted, since clocks jump.
FRESH_S = 3600.0

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NODE = re.compile(r"[a-z0-9-]{1,64}")
_NAME = re.compile(rf"({_UUID})-[0-9a-f]{{32}}(?:@{_NODE.pattern})?\.json")
_TEMPORARY = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]{{8}}")
_REF = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/({_NAME.pattern}|{_TEMPORARY.pattern})")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ResultNotKept(JobdError):
    """The disk does not take the result. Another attempt may find it willing."""

    code = "result_not_kept"


class ResultLost(JobdError):
    """There is no such file here, though a row says so."""

    code = "result_lost"

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        #: The node that has the file, if it is another one.
        self.node = node


class AttemptHolder(Protocol):
    """The holder of an attempt that reports a result: a claimed job, or a report."""

    @property
    def job_id(self) -> UUID: ...
    @property
    def lease_token(self) -> UUID: ...


class OpenResult(NamedTuple):
    file: BinaryIO
    size: int


class KeptResult(NamedTuple):
    """A result in its file, ready to be reported."""

    ref: str
    #: SHA-256 of its text.
    digest: bytes


class Found(NamedTuple):
    ref: str
    #: None: of a file that was never finished.
    job_id: UUID | None
    age_s: float


class Results:
    def __init__(self, data_dir: Path, config: Callable[[], Config]) -> None:
        self._data_dir = data_dir
        self._config = config
        #: Bounds the threads that hold a large result in memory.
        self.limiter = anyio.CapacityLimiter(AT_ONCE)
        #: result_ref of files written here in the last `FRESH_S`, with time.monotonic(); oldest first.
        self._fresh: dict[str, float] = {}
        self._node = node_name(data_dir)
        self._lock = threading.Lock()

    # -- writing -----------------------------------------------------------------------------------------------

    async def keep(self, job: AttemptHolder, result: bytes) -> str | None:
        """Put a large result into a file, before it is reported; the `result_ref` to report, None: report it inline.

        Raises ResultNotKept, and leaves nothing behind then.
        """
        if len(result) <= self._config().limits.inline_result_bytes:
            return None
        return (await self.keep_pieces(job, iter((result,)))).ref

    async def keep_pieces(self, job: AttemptHolder, pieces: Iterator[bytes]) -> KeptResult:
        """Put a large result into a file, piece by piece. Raises ResultNotKept and whatever `pieces` raises."""
        return await to_thread.run_sync(self._write, job, pieces, limiter=self.limiter)

    def _write(self, job: AttemptHolder, pieces: Iterator[bytes]) -> KeptResult:
        """Its name says what is in it, so it gets it last."""
        file_digest, digest = hashlib.sha256(job.lease_token.bytes), hashlib.sha256()
        temporary = f".{job.job_id}-{secrets.token_hex(16)}@{self._node}.json.{secrets.token_hex(4)}"
        size = 0
        try:
            with _Folder(self._data_dir, secrets.token_hex(1), make=True) as fd, _Temporary(fd, temporary) as file:
                for piece in pieces:
                    size += len(piece)
                    file_digest.update(piece)
                    digest.update(piece)
                    file.write(piece)
                file.sync()
                folder, rest = file_digest.hexdigest()[:2], file_digest.hexdigest()[2:34]
                name = f"{job.job_id}-{rest}@{self._node}.json"
                ref = f"{FOLDER}/{folder}/{name}"
                self._mark_fresh(ref)
                with _Folder(self._data_dir, folder, make=True) as target:
                    file.rename(name, target)
        except OSError as error:
            raise ResultNotKept(
                f"the result of job {job.job_id}, {size} bytes so far, could not be written to"
                f" {self._data_dir / FOLDER}: {error.strerror}; make room there, or lower retention.jobs_s"
            ) from error
        return KeptResult(ref, digest.digest())

    def _mark_fresh(self, ref: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._fresh.pop(ref, None)
            self._fresh[ref] = now
            while now - next(iter(self._fresh.values())) > FRESH_S:
                del self._fresh[next(iter(self._fresh))]

    # -- reading -----------------------------------------------------------------------------------------------

    async def open(self, ref: str) -> OpenResult:
        """The file that a row names, to be closed by the caller; raises ResultLost."""
        return await to_thread.run_sync(self._open, ref)

    def _open(self, ref: str) -> OpenResult:
        named = _REF.fullmatch(ref)
        if named is None:
            raise ResultLost("its result_ref is no name that jobd gives to a result")
        try:
            with _Folder(self._data_dir, named[1]) as folder:
                # A named pipe in the place of the file must not keep us waiting.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.fdopen(os.open(named[2], flags, dir_fd=folder), "rb", buffering=0)
        except OSError as error:
            node = ref.rpartition("@")[2].removesuffix(".json") if "@" in ref else None
            if node == self._node:
                node = None
            raise ResultLost(f"its file {ref} cannot be read on this node: {error.strerror}", node) from error
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            file.close()
            raise ResultLost(f"{ref} is not a file")
        return OpenResult(file, info.st_size)

    # -- removing ----------------------------------------------------------------------------------------------

    async def remove(self, refs: Iterable[str]) -> int:
        """Delete files that no row names; how many were here. One on another node is for that node to sweep."""
        return await to_thread.run_sync(self._remove, list(refs))

    async def remove_orphans(self, files: Iterable[Found]) -> int:
        """The same for what was found by walking, but not what a report under way may be about to name."""
        return await to_thread.run_sync(self._remove_orphans, [file.ref for file in files])

    def _remove_orphans(self, refs: list[str]) -> int:
        with self._lock:  # a report that comes now waits, and writes its file again
            now = time.monotonic()
            return self._remove([ref for ref in refs if now - self._fresh.get(ref, -FRESH_S) >= FRESH_S])

    def _remove(self, refs: list[str]) -> int:
        removed = 0
        for ref in refs:
            if (named := _REF.fullmatch(ref)) is None:
                continue
            try:
                with _Folder(self._data_dir, named[1]) as folder:
                    os.unlink(named[2], dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s stays: %s", ref, error.strerror)
                continue
            removed += 1
        return removed

    # -- walking -----------------------------------------------------------------------------------------------

    def walk(self) -> Generator[Found, None, None]:
        """Every file of ours, for as long as it takes; those that come and go meanwhile may be there or not. Blocks."""
        for number in range(256):
            folder = f"{number:02x}"
            try:
                opened = _Folder(self._data_dir, folder)
                with opened as fd, os.scandir(fd) as entries:
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


class _Folder:
    """A folder of results as a descriptor that was reached through no link."""

    def __init__(self, data_dir: Path, name: str, *, make: bool = False) -> None:
        self._data_dir = data_dir
        self._name = name
        self._make = make

    def __enter__(self) -> int:
        self._fd = os.open(self._data_dir, _DIRECTORY)
        try:
            for part in (FOLDER, self._name):
                self._step_into(part)
        except BaseException:
            os.close(self._fd)
            raise
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _step_into(self, part: str) -> None:
        try:
            inner = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd)
        except FileNotFoundError:
            if not self._make:
                raise
            _make_folder(part, self._fd)
            inner = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd)
        os.close(self._fd)
        self._fd = inner


def _make_folder(name: str, parent: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return  # by another thread, just now
    os.fsync(parent)


class _Temporary:
    """A file under a temporary name, which is gone in the end unless it was renamed."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name

    def __enter__(self) -> _Temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._name, flags, 0o600, dir_fd=self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._folder)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]

    def sync(self) -> None:
        os.fsync(self._fd)

    def rename(self, name: str, folder: int) -> None:
        os.rename(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder)
        os.fsync(folder)


def _found(folder: str, entry: os.DirEntry[str]) -> Found | None:
    """None for what jobd did not put there, which it leaves alone, and for what has just gone."""
    named = _NAME.fullmatch(entry.name)
    if named is None and _TEMPORARY.fullmatch(entry.name) is None:
        return None
    try:
        age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return None
    return Found(f"{FOLDER}/{folder}/{entry.name}", UUID(named[1]) if named else None, age_s)
