"""jobd's end of one handler's process (see `child`): starts it, reads from it, gives it one job at a time, ends it.

Once attached to the event loop its pipes are read all the time, also between jobs, so that threads of the handler never
block in a write and the end of the process is noticed at once. stdout and stderr are the log of the running job;
between jobs they are dropped.

The process and all programs that it starts carry a mark, as those of a command do, and are ended together. The mark is
also kept in the data directory (see `workdir`), so that the next jobd finds processes that a killed jobd has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from jobd.tasks.command.marks import new_mark
from jobd.tasks.command.output import TAIL_BYTES, printable
from jobd.tasks.command.processes import Family, pipe
from jobd.tasks.command.runner import MB
from jobd.tasks.command.workdir import Workdir
from jobd.tasks.isolated.frames import (
    BadFrame,
    Done,
    EmittedEvent,
    Failed,
    Frames,
    HandlerRefused,
    Ready,
    decode_from_child,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.tasks.isolated.job import IsolatedJob

#: Seconds that a process has to end by itself after its pipe was closed.
FAREWELL_S = 5.0
#: Bytes that are read from a pipe of the handler's process at a time.
READ_BYTES = 262_144
#: Reads of remaining output before the answer of a job is used; bounded, as a flood of output would not end.
LAST_READS = 64

#: Program of the child process; it gets our import path, as jobd may lie inside a zip file.
_BOOT = """import os, sys
sys.path[:] = os.environ.pop("JOBD_IMPORT_PATH").split("\\n")
from jobd.tasks.isolated.child import main
requests, replies, parent, task, handler = sys.argv[1:]
main(int(requests), int(replies), int(parent), task, handler)"""


class HandlerProcess:
    def __init__(self, family: Family, workdir: Workdir, requests: int, replies: int) -> None:
        self.family = family
        self.ready: Ready | None = None
        self.refused: str | None = None
        self.has_ended = False
        #: Set when the process was reaped (waitpid).
        self.exit_code: int | None = None
        #: Number of jobs that the process was given.
        self.jobs = 0
        #: True once the process has ended or sent an invalid frame: it gets no more jobs.
        self.is_lost = False
        #: Why a frame was invalid.
        self.nonsense = ""
        #: Called when the process ends or is lost while it is idle.
        self.on_lost: Callable[[], None] = lambda: None
        self._workdir = workdir
        self._requests: int | None = requests
        self._replies: int | None = replies
        for fd in (requests, replies, *family.outputs):
            os.set_blocking(fd, False)
        self._frames = Frames()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = anyio.Event()
        #: The running job.
        self.job: IsolatedJob | None = None
        #: End of the output outside of jobs, mostly from the import of the handler.
        self._early = b""
        self._farewell_at = 0.0

    @classmethod
    def start(cls, task: str, handler: str, root: Path) -> HandlerProcess:
        """Start the process, which then imports the handler; raises OSError if it cannot be started."""
        mark = new_mark()
        workdir = Workdir(root, mark)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            ours.callback(workdir.remove)
            requests_end, requests = pipe(theirs, ours)
            replies, replies_end = pipe(ours, theirs)
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, stdin)
            family = Family.start(
                (sys.executable, "-c", _BOOT, str(requests_end), str(replies_end), str(os.getpid()), task, handler),
                mark=mark,
                env={**os.environ, "JOBD_IMPORT_PATH": "\n".join(filter(_is_text, sys.path))},
                cwd=Path.cwd(),
                stdin=stdin,
                limits={resource.RLIMIT_CORE: 0},
                pass_fds=(requests_end, replies_end),
            )
            ours.pop_all()
        return cls(family, workdir, requests, replies)

    # -- hearing it --------------------------------------------------------------------------------------------------

    def hear_until_ready(self, within_s: float) -> None:
        """Wait until the handler is imported, without an event loop: at the start of jobd there is none yet."""
        deadline = time.monotonic() + within_s
        poll = select.poll()
        for fd, _ in self._hearing():
            poll.register(fd, select.POLLIN)
        by_fd = dict(self._hearing())
        while not (self.ready or self.refused or self.is_lost) and (left_s := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                if not by_fd[fd]():
                    poll.unregister(fd)

    def attach(self) -> None:
        """Read its pipes in the running event loop from now on."""
        if self._loop is None and not self.has_ended:
            self._loop = asyncio.get_running_loop()
            for fd, hear in self._hearing():
                self._loop.add_reader(fd, self._hear, fd, hear)

    def _hearing(self) -> list[tuple[int, Callable[[], bool]]]:
        assert self._replies is not None
        stdout, stderr = self.family.outputs
        return [
            (stdout, partial(self._hear_output, 0)),
            (stderr, partial(self._hear_output, 1)),
            (self._replies, self._hear_replies),
            (self.family.pidfd, self._hear_end),  # last, so that what it wrote before its end is read first
        ]

    def _hear(self, fd: int, hear: Callable[[], bool]) -> None:
        if not hear() and self._loop is not None:
            self._loop.remove_reader(fd)

    def _hear_output(self, which: int) -> bool:
        """Read what is there; False at the end of the pipe. The other `_hear` methods return the same."""
        data = _read(self.family.outputs[which])
        if data and self.job is not None:
            self.job.lines[which].feed(data)
        elif data:
            self._early = (self._early + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        return data != b""

    def _hear_replies(self) -> bool:
        data = _read(self._replies) if self._replies is not None else b""
        if not data:
            return data is None
        try:
            for body in self._frames.feed(data):
                self._take(body)
        except BadFrame as error:
            self.nonsense = str(error)
            self._lose()
            return False
        return True

    def _hear_end(self) -> bool:
        for fd, hear in self._hearing()[:-1]:
            for _ in range(LAST_READS):
                if not hear() or not _has_more(fd):
                    break
        self.has_ended = True
        self._lose()
        return False

    def _take(self, body: bytes) -> None:
        job = self.job
        if job is not None and job.is_done and job.result is None:
            job.result = body
            self._news.set()
            return
        message = decode_from_child(body)
        if isinstance(message, (Ready, HandlerRefused)):
            self.ready = message if isinstance(message, Ready) else None
            self.refused = message.message if isinstance(message, HandlerRefused) else None
            self._news.set()
        elif job is None or message.n != job.n:
            if isinstance(message, Done):
                raise BadFrame("an answer to a job that it does not run")
        elif isinstance(message, EmittedEvent):
            job.emit(message)
        elif isinstance(message, Failed):
            job.failed = message
            self._news.set()
        else:
            job.is_done = True

    def _lose(self) -> None:
        self.is_lost = True
        self._news.set()
        if self.job is None:
            self.on_lost()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until this is true, checked after every read; only one task may wait at a time."""
        while not holds():
            self._news = anyio.Event()
            await self._news.wait()

    async def write(self, data: bytes) -> bool:
        """Send a frame; False if it could not be sent whole: the process is lost then."""
        view = memoryview(data)
        while view and not self.is_lost and self._requests is not None:
            try:
                view = view[os.write(self._requests, view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._requests)
            except BrokenPipeError:  # it has ended; its pidfd says so in a moment
                return False
        return not view

    def hear_rest(self) -> None:
        """Read the output that it has written by now."""
        if not self.has_ended:
            for which, fd in enumerate(self.family.outputs):
                for _ in range(LAST_READS):
                    if not _has_more(fd) or not self._hear_output(which):
                        break

    def early_lines(self) -> str:
        return "\n".join(printable(line) for line in self._early.strip().splitlines())

    # -- its end -----------------------------------------------------------------------------------------------------

    @property
    def resident_mb(self) -> float:
        try:
            pages = Path(f"/proc/{self.family.pid}/statm").read_text().split()[1]
        except OSError:
            return 0.0
        return int(pages) * resource.getpagesize() / MB

    def hang_up(self) -> None:
        """Close the pipe to it, upon which an idle process ends by itself."""
        if self._requests is not None:
            os.close(self._requests)
            self._requests = None
            self._farewell_at = time.monotonic() + FAREWELL_S

    async def end(self, grace_s: float = 0.0) -> int | None:
        """End the process and all its descendants; returns its exit code."""
        self.hang_up()
        if self.is_collected:
            return self.exit_code
        if grace_s:
            with anyio.move_on_after(grace_s):
                await self.until(lambda: self.is_lost)
        await self.family.end(0.0)
        return self._collect()

    def is_buried(self) -> bool:
        """Whether nothing is left of a process that was hung up; kills it if it takes too long."""
        self.hang_up()
        living = [] if self.is_collected else self.family.living()
        if not living:
            self._collect()
            return True
        if self.family.pid not in living or time.monotonic() > self._farewell_at:
            self.family.kill(living)
        return False

    def is_over(self) -> bool:
        """Whether it cannot take a job any more, even if it ended only now."""
        return self.is_lost or _has_more(self.family.pidfd)

    @property
    def is_collected(self) -> bool:
        return self._replies is None

    def _collect(self) -> int | None:
        if self._replies is None:
            return self.exit_code
        if self._loop is not None:
            for fd, _ in self._hearing():
                self._loop.remove_reader(fd)
        self.is_lost = self.has_ended = True
        os.close(self._replies)
        self._replies = None
        self._workdir.remove()
        self.exit_code = self.family.collect()
        return self.exit_code


def _read(fd: int) -> bytes | None:
    """The bytes that are there; empty at the end of the pipe, None if there are none now."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None


def _has_more(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _is_text(value: object) -> bool:
    return isinstance(value, str)
