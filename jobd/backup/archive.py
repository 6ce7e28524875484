"""The file of a backup: a plain tar that says at its front what it is and proves at its end that it is whole.

    jobd-backup.json     what it is: format, versions, time
    database/000000 …    pg_dump's custom format, cut into pieces so that it can be written to a pipe
    results/ab/….json    result files, under the names that the rows have for them
    files/ab/….data      files of clients and batches, likewise
    manifest.json        counts, and size and SHA-256 of every member before it
    manifest.sha256      of the manifest

The manifest comes last, so a file that was cut short has none. `opened` reads all of it and compares everything before
its caller may change anything. The sums find accidents; they cannot find someone who makes a whole new file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Literal

import msgspec

from jobd.errors import BackupRefused, WrongVersion

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jobd.backup.output import Sink

#: Version of the archive's layout; a jobd refuses an archive with a newer one.
FORMAT = 1
HEAD = "jobd-backup.json"
MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
#: Bytes that are copied and hashed at a time.
BLOCK = 1 << 20
_DATABASE = re.compile(r"database/\d{6,}")
_RESULT = re.compile(
    r"results/[0-9a-f]{2}/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9a-f]{32}(@[a-z0-9-]{1,64})?\.json"
)

_FILE = re.compile(r"files/[0-9a-f]{2}/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}@[a-z0-9-]{1,64}\.data")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    #: Versions: of jobd, of the database schema, of Postgres (18).
    jobd: str
    schema: int
    postgres: int
    made_at: datetime
    #: Whether the result files are inside, or only the database.
    holds: Literal["everything", "database"]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    size: int
    sha256: str


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What was in the database at the moment of the backup."""

    tables: dict[str, int]
    #: Number of jobs by status.
    jobs: dict[str, int]
    #: Size of the database on disk, indexes included.
    database_bytes: int
    #: Files beside the database: of results, of clients and of batches.
    result_files: int
    result_bytes: int
    #: Files that rows name and that were not there any more.
    results_missing: list[str]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    contents: Contents
    members: list[Member]


class Writer:
    """Writes a backup into a file or a pipe. Blocks."""

    def __init__(self, sink: Sink, head: Head) -> None:
        self._tar = tarfile.open(fileobj=sink, mode="w:", format=tarfile.GNU_FORMAT)  # type: ignore[call-overload]
        self._mtime = int(head.made_at.timestamp())
        self._members: list[Member] = []
        self.bytes = 0
        self.add(HEAD, msgspec.json.encode(head))

    def add(self, name: str, data: bytes) -> None:
        self.add_file(name, io.BytesIO(data), len(data))

    def add_file(self, name: str, file: BinaryIO | io.BytesIO, size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, self._mtime, 0o600
        hashed = _Hashed(file)
        try:
            self._tar.addfile(info, hashed)
        except OSError as error:  # of the source: a sink has errors of its own
            raise BackupRefused(f"{name} cannot be read: {error.strerror or error}; check the disk") from error
        self._members.append(Member(name=name, size=size, sha256=hashed.sum.hexdigest()))
        self.bytes += size

    def finish(self, contents: Contents) -> None:
        manifest = msgspec.json.encode(Manifest(contents=contents, members=self._members))
        self.add(MANIFEST, manifest)
        self.add(SEAL, hashlib.sha256(manifest).hexdigest().encode())
        self._tar.close()


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: BinaryIO | io.BytesIO) -> None:
        self._file = file
        self.sum = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.sum.update(data)
        return data


class Archive:
    """A backup whose manifest and sums were checked."""

    def __init__(self, path: Path, tar: tarfile.TarFile, head: Head, infos: dict[str, tarfile.TarInfo]) -> None:
        self._path = path
        self._tar = tar
        self._infos = infos
        self.head = head
        self.manifest = msgspec.json.decode(b"".join(self._blocks(MANIFEST)), type=Manifest)
        self.contents = self.manifest.contents

    def database(self) -> Iterator[bytes]:
        for member in self.manifest.members:
            if _DATABASE.fullmatch(member.name):
                yield from self.read(member)

    def results(self) -> list[Member]:
        """Everything beside the database."""
        return [member for member in self.manifest.members if is_kept_file(member.name)]

    def read(self, member: Member) -> Iterator[bytes]:
        """Read a member again; refuses at its end if it has changed since it was checked."""
        digest = hashlib.sha256()
        for block in self._blocks(member.name):
            digest.update(block)
            yield block
        if digest.hexdigest() != member.sha256:
            raise damaged(self._path, f"{member.name} does not have its SHA-256")

    def _blocks(self, name: str) -> Iterator[bytes]:
        file = self._tar.extractfile(self._infos[name])
        assert file is not None  # it is a regular one
        while block := file.read(BLOCK):
            yield block


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """The backup in `path`, after all of it was read and compared. Blocks."""
    if not path.is_file():
        raise BackupRefused(
            f"{path} is {'no file' if path.exists() else 'not there'}; name a file that jobd backup wrote"
        )
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            archive = _checked(path, stack.enter_context(_tar_of(path, file)))
        except OSError as error:
            raise BackupRefused(f"{path} cannot be read: {error.strerror or error}; use another copy") from error
        yield archive


def _tar_of(path: Path, file: BinaryIO) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=file, mode="r:")
    except tarfile.TarError:
        raise foreign(path) from None


def _checked(path: Path, tar: tarfile.TarFile) -> Archive:
    try:
        head = _head_of(path, tar)
        infos, members = _measured(path, tar)
        archive = Archive(path, tar, head, infos)
    except (tarfile.TarError, OverflowError) as error:
        raise damaged(path, str(error)) from error
    except ValueError:  # of JSON, of text, of a number in a header
        raise damaged(path, "what it says of itself cannot be understood") from None
    for member, listed in zip(members, archive.manifest.members, strict=False):
        if member != listed:
            raise damaged(path, f"{member.name} is not what its manifest says")
    if len(members) != len(archive.manifest.members):
        raise damaged(path, "it has more or fewer members than its manifest says")
    return archive


def _head_of(path: Path, tar: tarfile.TarFile) -> Head:
    first = next(iter(tar), None)
    file = tar.extractfile(first) if first is not None and first.name == HEAD and first.isreg() else None
    if file is None:
        raise foreign(path)
    raw = file.read()
    version = msgspec.json.decode(raw, type=dict[str, object]).get("format")
    if version != FORMAT:
        raise WrongVersion(
            f"{path} has format {version} and this jobd reads {FORMAT}; restore it with the jobd that made it"
        )
    return msgspec.json.decode(raw, type=Head)


def _measured(path: Path, tar: tarfile.TarFile) -> tuple[dict[str, tarfile.TarInfo], list[Member]]:
    """Every member as it really is, the last two aside, which must be the manifest and its sum."""
    infos: dict[str, tarfile.TarInfo] = {}
    members: list[Member] = []
    for info in tar:
        if not info.isreg() or info.name in infos or not _is_known(info.name):
            raise damaged(path, f"{info.name!a} does not belong there")
        infos[info.name] = info
        members.append(Member(name=info.name, size=info.size, sha256=_sum_of(tar, info)))
    if [member.name for member in members[-2:]] != [MANIFEST, SEAL]:
        raise damaged(path, "it was cut short")
    file = tar.extractfile(infos[SEAL])
    if file is None or file.read() != members[-2].sha256.encode():
        raise damaged(path, f"{MANIFEST} does not have its SHA-256")
    if os.path.getsize(path) != _whole_size(infos[SEAL]):
        raise damaged(path, "it was cut short, or something was added")
    return infos, members[:-2]


def is_result(name: str) -> bool:
    return _RESULT.fullmatch(name) is not None


def is_kept_file(name: str) -> bool:
    """Of a result, a client or a batch."""
    return is_result(name) or _FILE.fullmatch(name) is not None


def _is_known(name: str) -> bool:
    return name in (HEAD, MANIFEST, SEAL) or is_kept_file(name) or _DATABASE.fullmatch(name) is not None


def _sum_of(tar: tarfile.TarFile, info: tarfile.TarInfo) -> str:
    file, digest = tar.extractfile(info), hashlib.sha256()
    assert file is not None  # it is a regular one
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def _whole_size(last: tarfile.TarInfo) -> int:
    """The last member, two empty blocks, and what fills up the record."""
    end = last.offset_data + -(-last.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE
    return -(-end // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def foreign(path: Path) -> BackupRefused:
    return BackupRefused(f"{path} is no backup of jobd; name a file that jobd backup wrote")


def damaged(path: Path, what: str) -> BackupRefused:
    return BackupRefused(f"{path} is damaged ({what}); use another copy or another backup")
