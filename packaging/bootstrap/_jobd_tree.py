"""The unpacked tree: where it may be, whom to trust with it, and whether it still stands as it was written.

Compiled modules and server programs cannot run from inside a zip file, so the first start writes them to a folder, the
*tree*; see _jobd_unpack.py. Its name carries a checksum of the whole content, so two versions never mix. Invariants:

- It is trusted only if it and its parent belong to root or to this user and nobody else may write to them.
- Each start compares size, mode, times and inode of every file with those noted when its checksum was last verified,
  and hashes again whatever differs. A damaged file is replaced alone, by rename, which does not disturb another jobd
  that runs from the tree.
- Each running jobd holds a shared lock on its tree, so that an upgrade sweeps only what nobody uses.
- Root's tree is never below a folder that only root may enter: Postgres runs as another user and must get at it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys

from _jobd_about import ABOUT

TYPE_CHECKING = False  # to import typing for it would cost every start some milliseconds
if TYPE_CHECKING:
    from typing import Any

TAG = (sys.implementation.cache_tag or "").replace("cpython-", "cp")
STAMP = ".stamp"
#: Root's, for everyone.
SHARED = "/var/cache/jobd"


class Unusable(Exception):
    """Why one place cannot hold the tree."""


class Damaged(Exception):
    """The one file itself is not as it was built."""


class NoPlace(Exception):
    """No place can hold the tree."""

    def __init__(self, message: str, is_full: bool) -> None:
        super().__init__(message)
        self.is_full = is_full


def find_or_unpack(pyz: str) -> str:
    """A whole and trusted tree, held by a lock for as long as this process lives."""
    name = f"jobd-{ABOUT['version']}-{ABOUT['key']}-{TAG}"
    for place in places():
        tree = os.path.join(place, name)
        if os.path.isdir(tree) and is_usable(pyz, place, tree):
            return tree
    return unpack_somewhere(pyz, name)


def unpack_somewhere(pyz: str, name: str) -> str:
    import _jobd_unpack

    reasons, is_full = [], False
    for place in places():
        try:
            return _jobd_unpack.unpack_into(pyz, place, name)
        except Unusable as why:
            reasons.append(f"{place}: {why}")
        except OSError as error:
            is_full = is_full or error.errno in (errno.ENOSPC, errno.EDQUOT)
            reasons.append(f"{place}: {error.strerror or error}")
    remedy = "free some space, or name another folder" if is_full else "name another folder"
    needed = _jobd_unpack.needed_bytes() >> 20
    raise NoPlace(f"no place to unpack {needed} MiB to: {'; '.join(reasons)}; {remedy} in XDG_CACHE_HOME", is_full)


# -- where --------------------------------------------------------------------------------------------------------


def places() -> list[str]:
    """Folders for trees, the best first."""
    uid, named = os.geteuid(), os.environ.get("XDG_CACHE_HOME", "")
    mine = [os.path.join(named, "jobd")] if os.path.isabs(named) else []
    temporary = [f"/var/tmp/jobd-{uid}", f"/tmp/jobd-{uid}"]
    if uid == 0:
        return [*mine, SHARED, *temporary]
    home = os.path.expanduser("~")
    if not mine and os.path.isabs(home):
        mine = [os.path.join(home, ".cache", "jobd")]
    return [SHARED, *mine, *temporary]


def refuse_place(place: str) -> None:
    """Raise Unusable if the tree could not be run from there, or not by everyone who must."""
    nearest = os.path.realpath(place)
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    if os.statvfs(nearest).f_flag & os.ST_NOEXEC:
        raise Unusable("mounted noexec")
    if os.geteuid() == 0:
        refuse_closed(nearest)


def refuse_closed(folder: str) -> None:
    import pwd

    home = pwd.getpwuid(0).pw_dir.rstrip("/")
    if home and (folder + "/").startswith(home + "/"):
        raise Unusable("in root's own home, where the servers' account cannot run it")
    while folder != "/":
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            raise Unusable(f"{folder} is closed to the servers' account")
        folder = os.path.dirname(folder)


def refuse_untrusted(folder: str) -> None:
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode):
        raise Unusable("not a folder")
    if info.st_uid not in (0, os.geteuid()):
        raise Unusable(f"belongs to user id {info.st_uid}")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(f"others may write to it (mode {stat.S_IMODE(info.st_mode):04o})")


# -- does it still stand ------------------------------------------------------------------------------------------


def is_usable(pyz: str, place: str, tree: str) -> bool:
    try:
        refuse_place(place)
        refuse_untrusted(place)
        refuse_untrusted(tree)
        return hold(tree) and make_good(pyz, tree)
    except (Unusable, OSError):
        return False


def hold(tree: str) -> bool:
    """Keep the tree from being swept while this process lives; False if it is being swept just now."""
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    except OSError:
        pass  # a file system without locks: whoever sweeps there cannot take one either, and sweeps nothing
    return os.path.exists(tree) and os.path.samestat(os.fstat(fd), os.stat(tree))


def make_good(pyz: str, tree: str) -> bool:
    """Whether every file is as it was packed, once what this user may mend is mended."""
    stamp = read_stamp(tree)
    if stamp and all(signature(os.path.join(tree, path)) == noted for path, noted in stamp.items()):
        return True
    import _jobd_unpack

    return _jobd_unpack.mend(pyz, tree, stamp)


def signature(path: str) -> list[int] | None:
    """Differs after every change to the file: its ctime cannot be set back."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    mode = stat.S_IMODE(info.st_mode) if stat.S_ISREG(info.st_mode) else -1
    return [info.st_size, mode, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def read_stamp(tree: str) -> dict[str, Any]:
    try:
        with open(os.path.join(tree, STAMP), "rb") as file:
            stamp = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and len(stamp) == ABOUT["trees"][TAG]["files"] else {}
