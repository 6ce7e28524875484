"""One child process that jobd supervises: its own session, a lock it inherits, its output as log lines.

The session keeps a Ctrl-C in the terminal from reaching it before jobd has drained. The process is started
with `subprocess.Popen` (which can drop to another user without running Python between fork and exec) and awaited
through a pidfd.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections import deque
from typing import TYPE_CHECKING

import anyio

from jobd.errors import ServerFailed, ServerMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from jobd.host.account import Account

#: All that a server needs from the environment; nothing of jobd's own leaks into it.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
#: Errors of fork and exec that may go away by themselves: out of processes, memory or files, or the program is written.
EXHAUSTED = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}
#: Last lines of a program's output that are kept to explain why it ended.
REMEMBERED_LINES = 20
#: Bytes of output that are read at a time.
READ_BYTES = 65536


class Child:
    def __init__(self, popen: subprocess.Popen[bytes], name: str) -> None:
        self.name = name
        self.pid = popen.pid
        #: The last lines it wrote, to explain an unexpected end.
        self.last_lines: deque[str] = deque(maxlen=REMEMBERED_LINES)
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)

    @classmethod
    def start(
        cls, argv: Sequence[str], *, account: Account, cwd: Path, lock_fd: int, stdin: bytes | None = None
    ) -> Child:
        """Start it; `stdin` (at most a pipe's 64 KiB) is handed over whole, so secrets need no file and no argument."""
        drop: dict[str, object] = {}
        if account.dropped:
            drop = {"user": account.uid, "group": account.gid, "extra_groups": []}
        try:
            popen: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]  # **drop is too loose for it
                argv,
                cwd=cwd,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,
                pass_fds=(lock_fd,),
                **drop,
            )
        except OSError as error:
            why = f"cannot start {argv[0]}: {error.strerror}"
            if error.errno in EXHAUSTED:
                raise ServerFailed(why) from error
            raise ServerMissing(f"{why}; reinstall jobd's dependencies") from error
        if stdin is not None and popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError), popen.stdin:
                popen.stdin.write(stdin)
        return cls(popen, os.path.basename(argv[0]))

    async def wait(self) -> int:
        """Its exit code; minus the signal's number if one ended it."""
        if self._popen.returncode is None:
            await anyio.wait_readable(self._pidfd)
            self._popen.wait()
            os.close(self._pidfd)
        return self._popen.returncode

    async def pump(self, on_line: Callable[[str], None]) -> None:
        """Hand on each line it writes until it closes its output."""
        assert self._popen.stdout is not None
        fd, rest = self._popen.stdout.fileno(), b""
        os.set_blocking(fd, False)
        with self._popen.stdout:
            while True:
                await anyio.wait_readable(fd)
                data = os.read(fd, READ_BYTES)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:READ_BYTES]
                for raw in lines:
                    self._hand_on(raw, on_line)
        if rest:
            self._hand_on(rest, on_line)

    def _hand_on(self, raw: bytes, on_line: Callable[[str], None]) -> None:
        line = raw.decode("utf-8", "replace").strip()
        self.last_lines.append(line)
        on_line(line)

    async def stop(self, steps: Iterable[tuple[signal.Signals, float]]) -> int:
        """Signal it, wait, signal harder; the last resort is SIGKILL to its whole session."""
        for sig, wait_s in steps:
            self.signal(sig)
            with anyio.move_on_after(wait_s):
                return await self.wait()
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return await self.wait()

    def signal(self, sig: signal.Signals) -> None:
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def why(self) -> str:
        """How it ended, with the line that says so if it wrote one."""
        code = self._popen.returncode
        end = f"exit code {code}" if code is None or code >= 0 else f"killed by {signal_name(-code)}"
        reasons = [line for line in self.last_lines if any(word in line for word in ("FATAL", "PANIC", "rror:", "# "))]
        return f"{end}: {reasons[-1]}" if reasons else end


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
