"""The mark of an attempt, and the processes that carry it.

A process group reaches what a program starts, unless some of it calls `setsid`. So each attempt has a mark, a random
number, that every descendant inherits and cannot lose by forking, by `setsid` or by clearing its environment: the
limit RLIMIT_LOCKS, which Linux has kept and ignored since 2.4.25. jobd carries the mark itself while it forks, so there
is no moment without it. Finding an attempt's processes is then one system call for each process of the machine (0.1 ms
for 80 of them), zombies included. Out of reach are only programs that change user (setuid) and those that lower
this very limit on purpose; the cgroup of jobd's systemd unit has those.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import secrets
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Resource limit whose value is the mark: the kernel ignores it, and child processes inherit it.
RLIMIT_LOCKS = 10
#: Environment variable that carries the mark too: for people, and to distinguish marks made at the same instant.
MARK_VARIABLE = "JOBD_ATTEMPT_ID"

_FILE_LOCKS = re.compile(rb"^Max file locks +(\d+) +(\d+|unlimited)", re.MULTILINE)
#: Seconds between two rounds of killing marked processes.
_ROUND_S = 0.01
#: Most rounds of killing marked processes; new ones may be forked while old ones die.
_ROUNDS = 20


def new_mark() -> int:
    _, hard = resource.getrlimit(RLIMIT_LOCKS)
    ceiling = hard if 0 < hard < 1 << 62 else 1 << 62  # jobd that is itself a job of jobd may only go lower
    return secrets.randbelow(ceiling - 1) + 1


@contextlib.contextmanager
def carrying(mark: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(RLIMIT_LOCKS)
    resource.setrlimit(RLIMIT_LOCKS, (mark, hard))
    try:
        yield
    finally:
        resource.setrlimit(RLIMIT_LOCKS, (soft, hard))


def marked(marks: set[int]) -> Iterator[int]:
    """The processes that carry one of these marks, zombies included."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and _carries(int(name), marks):
            yield int(name)


def kill_marked(marks: set[int]) -> int:
    """SIGKILL to the processes of attempts whose jobd is gone; returns their number."""
    killed = set[int]()
    for _ in range(_ROUNDS):
        alive = [pid for pid in marked(marks) if not _is_zombie(pid)]
        if not alive:
            break
        killed.update(alive)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_S)
    return len(killed)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def signal_if_marked(pid: int, mark: int, sig: signal.Signals) -> None:
    """Signal through a pidfd that is opened before the check: if the pid is reused, nobody gets the signal."""
    pidfd = os.pidfd_open(pid)
    try:
        if _carries(pid, {mark}):
            signal.pidfd_send_signal(pidfd, sig)
    finally:
        os.close(pidfd)


def _carries(pid: int, marks: set[int]) -> bool:
    soft, hard = _limit_of(pid)
    if soft not in marks:
        return False
    # Only the soft limit: forked by the program before its hard limit was set, or by another thread of jobd while
    # jobd carried the mark. The environment decides; a zombie has none, and nothing that jobd starts runs without one.
    return hard == soft or _environment_allows(pid, soft)


def _limit_of(pid: int) -> tuple[int, int]:
    try:
        return resource.prlimit(pid, RLIMIT_LOCKS)
    except ProcessLookupError:
        return 0, 0
    except PermissionError:  # of another user; only root could end it, and root in a container may have to read
        return _limit_in_file(pid) if os.geteuid() == 0 else (0, 0)


def _limit_in_file(pid: int) -> tuple[int, int]:
    try:
        match = _FILE_LOCKS.search(Path(f"/proc/{pid}/limits").read_bytes())
    except OSError:
        return 0, 0
    if not match:
        return 0, 0
    return int(match[1]), resource.RLIM_INFINITY if match[2] == b"unlimited" else int(match[2])


def _environment_allows(pid: int, mark: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return True
    return not environment or f"{MARK_VARIABLE}={mark}".encode() in environment.split(b"\0")
