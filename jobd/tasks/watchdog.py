"""Kills the processes of attempts whose leases expire while jobd itself is frozen.

jobd stops commands and isolated handlers before their leases end. A jobd that is frozen (SIGSTOP, a debugger) cannot,
and they would go on beside the next attempt, which another node begins. So a small process of its own knows by which
time each attempt's processes must be gone, hears of every renewal, and kills by the mark (see `marks`) what outlives
its lease. It is started with the first such job and ends with jobd.

What it reads on stdin is lines of a mark and a time; 0: these processes are watched no more. Times are those of
CLOCK_MONOTONIC, which is the same for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from jobd.tasks.command.marks import kill_marked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.tasks.runner import HeldLease

log = logging.getLogger(__name__)

#: Program of the watchdog process; it gets our import path, as jobd may lie inside a zip file.
_BOOT = """import os, sys
sys.path[:] = os.environ.pop("JOBD_IMPORT_PATH").split("\\n")
from jobd.tasks.watchdog import main
main(0)"""
#: Bytes that are read from jobd's pipe at a time.
_READ_BYTES = 65_536


class Watchdog:
    """Starts the watchdog process and sends it marks. All but `close` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        #: Time by which each mark must be gone, kept to send it to a watchdog process that was restarted.
        self._ends: dict[int, float] = {}

    @contextlib.contextmanager
    def watching(self, mark: int, lease: HeldLease | None) -> Iterator[None]:
        """While the block runs, processes with this mark are killed when the lease expires."""
        if lease is None:
            yield
            return
        lease.on_grant = lambda: self._send(mark, lease.kill_at)
        self._send(mark, lease.kill_at)
        try:
            yield
        finally:
            lease.on_grant = lambda: None
            self._send(mark, 0.0)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _send(self, mark: int, end: float) -> None:
        with self._lock:
            if end:
                self._ends[mark] = end
            else:
                self._ends.pop(mark, None)
            try:
                if self._process is None:
                    self._start()
                else:
                    os.write(self._pipe, _line(mark, end))
            except OSError:  # killed, or its pipe is full because it is frozen itself
                self._end()
                self._start()

    def _start(self) -> None:
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        env = {**os.environ, "JOBD_IMPORT_PATH": "\n".join(filter(None, sys.path))}
        try:
            self._process = subprocess.Popen((sys.executable, "-c", _BOOT), stdin=reading, env=env)
            for mark, end in self._ends.items():
                os.write(self._pipe, _line(mark, end))
        except OSError as error:
            log.warning("commands and isolated handlers are not watched: %s", error.strerror)
            self._end()
        finally:
            os.close(reading)

    def _end(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _line(mark: int, end: float) -> bytes:
    return f"{mark} {end!r}\n".encode()


# -- in the process ----------------------------------------------------------------------------------------------------


def main(pipe: int) -> None:
    ends: dict[int, float] = {}
    kept = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while True:
        wait_ms = max(0.0, min(ends.values()) - time.monotonic()) * 1000 + 1 if ends else None
        if poll.poll(wait_ms):
            data = os.read(pipe, _READ_BYTES)
            if not data:
                return
            *lines, kept = (kept + data).split(b"\n")
            for line in lines:
                mark, end = line.split()
                ends[int(mark)] = float(end)
            ends = {mark: end for mark, end in ends.items() if end}
            continue  # read all renewals before anything is killed
        now = time.monotonic()
        if over := {mark for mark, end in ends.items() if end <= now}:
            kill_marked(over)
            ends = {mark: end for mark, end in ends.items() if mark not in over}
