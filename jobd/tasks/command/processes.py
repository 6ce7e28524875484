"""The processes of one attempt: started in a session of their own, marked, and ended to the last one.

jobd adopts what is orphaned (`adopt_orphans`), so that it can see the end of it and no zombie stays. It waits only for
processes that carry the mark (see `marks`), and so never takes the exit status of a child that is somebody else's.

Limits are set by the parent right after the start: `preexec_fn` is not safe beside threads, and a launcher written in
Python costs 10 ms and more for each job. What the program does in its first microseconds, before its libraries are
loaded, is not limited.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import anyio

from jobd.tasks.command.marks import MARK_VARIABLE, RLIMIT_LOCKS, carrying, kill_marked, marked, signal_if_marked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

#: Seconds for a process to die of SIGKILL; one that takes longer hangs in the kernel, as on a dead network disk.
DEATH_S = 5.0

#: Option of prctl(2): orphans of a program become children of jobd.
_PR_SET_CHILD_SUBREAPER = 36
#: Seconds between two rounds of killing what is left of a program.
_KILL_ROUND_S = 0.05


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Family:
    """A program and all its descendants."""

    def __init__(self, popen: subprocess.Popen[bytes], mark: int, outputs: tuple[int, int]) -> None:
        self.pid = popen.pid
        self.mark = mark
        #: Read ends of the pipes of stdout and stderr.
        self.outputs = outputs
        self._popen = popen
        #: Readable once the program has ended, whatever its children do.
        self.pidfd = os.pidfd_open(popen.pid)

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        mark: int,
        env: Mapping[str, str],
        cwd: Path,
        stdin: int,
        limits: Mapping[int, int],
        pass_fds: Sequence[int] = (),
    ) -> Family:
        """Start it with two pipes; an `OSError` says why that failed."""
        with contextlib.ExitStack() as reading, contextlib.ExitStack() as writing:
            # Not by subprocess.PIPE: Python 3.10 loses the first pipe when there is no descriptor for the second.
            (stdout, stdout_end), (stderr, stderr_end) = pipe(reading, writing), pipe(reading, writing)
            with carrying(mark):
                popen = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env={**env, MARK_VARIABLE: str(mark)},
                    stdin=stdin,
                    stdout=stdout_end,
                    stderr=stderr_end,
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
            try:
                _limit(popen.pid, {RLIMIT_LOCKS: mark, **limits})
                family = cls(popen, mark, (stdout, stderr))
            except BaseException:  # no descriptor left for it
                kill_marked({mark})
                popen.wait()
                raise
            reading.pop_all()
        return family

    async def exited(self) -> None:
        """Wait for the program itself. It stays a zombie until `collect`, so that nothing else gets its number."""
        await anyio.wait_readable(self.pidfd)

    def living(self) -> list[int]:
        """The processes that still run; ended ones that are children of jobd are reaped (waitpid)."""
        try:
            pids = list(marked({self.mark}))
        except OSError:  # no descriptor left to read /proc: there may be some
            return [self.pid]
        return [pid for pid in pids if not (self._has_ended() if pid == self.pid else _buried(pid))]

    async def end(self, grace_s: float) -> list[int]:
        """SIGTERM, and after the grace SIGKILL to those that are left; returns those that even SIGKILL did not end."""
        left = self.living()
        if left:
            self._signal(left, signal.SIGTERM)
            self._signal(left, signal.SIGCONT)  # a stopped process handles SIGTERM only after this
            left = await self._left_after(grace_s)
        give_up_at = time.monotonic() + DEATH_S
        while left and time.monotonic() < give_up_at:
            self._signal(left, signal.SIGKILL)
            left = await self._left_after(_KILL_ROUND_S)  # short: what was forked meanwhile is killed in the next round
        return left

    def kill(self, pids: Iterable[int]) -> None:
        """SIGKILL, without waiting for it."""
        self._signal(pids, signal.SIGKILL)

    def collect(self) -> int | None:
        """Its exit code, minus the signal's number if one ended it, None if nothing could; closes everything."""
        code = self._popen.poll()
        for fd in (self.pidfd, *self.outputs):
            os.close(fd)
        return code

    async def _left_after(self, wait_s: float) -> list[int]:
        deadline, pause_s = time.monotonic() + wait_s, 0.002
        while (left := self.living()) and time.monotonic() < deadline:
            await anyio.sleep(pause_s)
            pause_s = min(0.1, pause_s * 1.5)
        return left

    def _signal(self, pids: Iterable[int], sig: signal.Signals) -> None:
        """Signal the process group as a whole, so that forks cannot escape, and each process that left the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, sig)
        for pid in pids:
            with contextlib.suppress(OSError):  # gone meanwhile; or no descriptor left, and it is the next round's
                if os.getpgid(pid) != self.pid:
                    signal_if_marked(pid, self.mark, sig)

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def tasks_of_user() -> int:
    """How many processes and threads this user has: what RLIMIT_NPROC counts."""
    count, uid = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                state = os.stat(f"/proc/{name}/task")
                count += state.st_nlink - 2 if state.st_uid == uid else 0
    return count


def pipe(reading: contextlib.ExitStack, writing: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose two ends are closed with the two stacks."""
    ends = os.pipe()
    reading.callback(os.close, ends[0])
    writing.callback(os.close, ends[1])
    return ends


def _limit(pid: int, limits: Mapping[int, int]) -> None:
    for kind, value in limits.items():
        _, hard = resource.getrlimit(kind)
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(PermissionError):  # a setuid program
            resource.prlimit(pid, kind, (lowered, lowered))


def _buried(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # its parent is one of those that still live
        return False
