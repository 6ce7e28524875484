"""Locks that outlive a crash of the right process and no other: how a dead incarnation's servers are found.

A lock is an flock on a file. jobd takes one on its data directory for itself, and one per server which the server
*inherits*: it stays locked while any process of that server lives, whatever became of jobd, and it is free the instant
the last of them is gone. Pid files cannot say either thing, because pids recur. Who holds a lock is read from /proc
(the processes that have the file open), and a signal goes through a pidfd that was checked again after opening, so it
can never hit a stranger.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

#: Seconds between two checks whether a lock that is being released by force is free.
POLL_S = 0.01
#: Seconds for which a lock may be shared by processes that only test it (`is_held`) before it counts as held.
PROBE_S = 1.0


def take(path: Path) -> int | None:
    """Lock `path`, creating it if need be; the descriptor, or None if someone else holds it.

    The lock belongs to the open file: it lasts until the last descriptor, inherited ones included, is closed.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + PROBE_S
    try:
        while not _locked(fd, fcntl.LOCK_EX):
            # Someone who only asks (`is_held`) shares the lock for a moment; a holder shares it with nobody.
            if not _locked(fd, fcntl.LOCK_SH) or time.monotonic() > deadline:
                os.close(fd)
                return None
            fcntl.flock(fd, fcntl.LOCK_UN)
            time.sleep(POLL_S / 100)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_held(path: Path) -> bool:
    """Whether a live process holds the lock; never creates the file and leaves no lock behind."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not _locked(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def holders(path: Path) -> list[int]:
    """The live processes that hold the lock, by their own descriptor or an inherited one; this one left out."""
    try:
        info = path.stat()
    except FileNotFoundError:
        return []
    own = os.getpid()
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in pids if pid != own and _holds(pid, info)]


async def release_by_force(path: Path, steps: Iterable[tuple[signal.Signals, float]]) -> list[int]:
    """Stop every process that holds the lock: each step is a signal and the seconds to wait for its effect.

    Returns the processes that were there. Signals go only to the first of a family (the one whose parent does not
    hold the lock), so that Postgres stops itself in order; the last step goes to all of them.
    """
    pids = holders(path)
    plan = list(steps)
    for number, (sig, wait_s) in enumerate(plan):
        if not is_held(path):
            break
        _signal_holders(path, sig, everyone=number == len(plan) - 1)
        deadline = time.monotonic() + wait_s
        while is_held(path) and time.monotonic() < deadline:
            await anyio.sleep(POLL_S)
    return pids


def _locked(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _signal_holders(path: Path, sig: signal.Signals, *, everyone: bool) -> None:
    pids = holders(path)
    targets = pids if everyone else [pid for pid in pids if _parent(pid) not in pids]
    info = path.stat()
    with _pidfds(targets) as opened:
        for pid, pidfd in opened:
            # Checked after the pidfd exists: from here on it means this very process and never a later one.
            if _holds(pid, info):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, sig)


@contextlib.contextmanager
def _pidfds(pids: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    opened: list[tuple[int, int]] = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                opened.append((pid, os.pidfd_open(pid)))
        yield opened
    finally:
        for _, pidfd in opened:
            os.close(pidfd)


def _holds(pid: int, info: os.stat_result) -> bool:
    """Whether the process holds the lock; one that merely reads the file, like a backup, does not."""
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                opened = os.stat(f"{folder}/{name}")
                if (opened.st_dev, opened.st_ino) == (info.st_dev, info.st_ino):
                    with open(f"/proc/{pid}/fdinfo/{name}", "rb") as details:
                        return b"FLOCK" in details.read()
    except OSError:  # gone, or another user's
        return False
    return False


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
