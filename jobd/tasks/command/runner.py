"""`run = "command"`: a program for each job. No shell, no template: the API cannot choose a word of the command line.

    in    the payload as JSON on stdin: a file at its beginning, so a program that reads late, in part or not at all
          blocks nobody; JOBD_JOB_ID, JOBD_TASK, JOBD_ATTEMPT, JOBD_DEADLINE_S (seconds left), JOBD_RESULT_FILE
    out   see `output`; the result file wins over stdout
    end   exit code 0 and a result

The failures, `exited` with any other code, `killed` by a signal, `oom`, `no_result`, `bad_result`, are worth another
attempt; even the last two, because a shell pipeline whose first half crashed looks just like that. Not so
`exec_failed`, which only a change of the configuration mends, and `result_too_large`, which would be as large again.

Whatever the way out, `run` is left only when every process of the attempt is gone (see `processes`). The program's own
end comes first: those that hold its output open after it get two seconds, then SIGTERM. A jobd that is
killed cannot do this; its systemd unit does, and the next start in the same data directory ends what is left. A
jobd that stands still cannot either; then the `watchdog` kills what would outlive its lease.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd.host.logs import job_fields
from jobd.host.process import EXHAUSTED, signal_name
from jobd.tasks.command.marks import new_mark
from jobd.tasks.command.oom import oom_kills
from jobd.tasks.command.output import EventEmitter, LogLines, Pipe, ResultOutput, last_document, printable
from jobd.tasks.command.processes import Family, adopt_orphans, tasks_of_user
from jobd.tasks.command.workdir import ATTEMPTS, Workdir, clear_leftovers
from jobd.tasks.runner import Runner, TaskFailed, trace_headers
from jobd.tasks.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jobd.config.model import Task
    from jobd.tasks.runner import Context

#: Bytes of a megabyte, for memory_mb and max_output_mb.
MB = 1 << 20
#: Seconds that children may keep the output of the program open after it has ended.
PIPES_S = 2.0
#: Seconds between two sweeps for ended orphans (zombies) while a program runs.
BURY_EVERY_S = 10.0
#: Largest file in bytes that a program may write (RLIMIT_FSIZE), so that it cannot fill the disk of Postgres.
FILE_BYTES = 16 << 30
#: Open files of a program (RLIMIT_NOFILE): the usual default; the limit of jobd itself is far higher.
OPEN_FILES = 1024

PASSED_ON = ("PATH", "HOME", "LANG", "TZ")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
#: Longest message of a failed command in characters.
MESSAGE_CHARACTERS = 500

log = logging.getLogger(__name__)


class CommandRunner(Runner):
    def __init__(self, task: Task, data_dir: Path, watchdog: Watchdog | None = None) -> None:
        self._task = task
        self._watchdog = watchdog or Watchdog()
        self._root = data_dir / ATTEMPTS
        adopt_orphans()
        if ended := clear_leftovers(self._root):
            log.warning("ended %d processes of commands that a killed jobd had left running", ended)

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        mark = new_mark()
        workdir = self._make_workdir(mark)
        attempt = _Attempt(self._task, context, workdir)
        try:
            with self._watchdog.watching(mark, context.lease):
                code = await attempt.follow(self._start(mark, payload, context, workdir))
            return attempt.judge(code)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(workdir.remove)

    async def close(self) -> None:
        self._watchdog.close()

    def _make_workdir(self, mark: int) -> Workdir:
        try:
            return Workdir(self._root, mark)
        except OSError as error:  # jobd's own trouble, such as a full disk, and not the command's
            raise TaskFailed("exec_failed", f"cannot make a folder in {self._root}: {error.strerror}") from error

    def _start(self, mark: int, payload: Mapping[str, Any], context: Context, workdir: Workdir) -> Family:
        try:
            with _file_of(msgspec.json.encode(payload)) as stdin:
                return Family.start(
                    self._task.argv,
                    mark=mark,
                    env=environment(self._task, context, workdir),
                    cwd=Path(self._task.cwd) if self._task.cwd else workdir.path,
                    stdin=stdin,
                    limits=limits(self._task),
                )
        except OSError as error:
            what = error.filename or self._task.argv[0]
            message = f"cannot start {what}: {error.strerror}"
            raise TaskFailed("exec_failed", message, retryable=error.errno in EXHAUSTED) from error


class _Attempt:
    """One run of the program: its output and its end."""

    def __init__(self, task: Task, context: Context, workdir: Workdir) -> None:
        self._context = context
        self._workdir = workdir
        self._kill_after_s = task.kill_after_s
        self._limit = int(task.max_output_mb * MB)
        self._emitter = EventEmitter(context)
        self._results = ResultOutput(self._emitter, self._limit)
        self._log_lines = LogLines(self._emitter)
        self._oom_kills = oom_kills()

    async def follow(self, family: Family) -> int:
        """Wait for the program to end by itself; leave nothing of it behind even if cancelled meanwhile."""
        self._context.pid = family.pid
        stdout, stderr = family.outputs
        pipes = Pipe(stdout, self._results.feed), Pipe(stderr, self._log_lines.feed)
        code: int | None = None
        try:
            await self._listen_until_exit(family, pipes)
        except BaseException:
            self._emitter.muted = True
            raise
        finally:
            with anyio.CancelScope(shield=True):
                code = await self._end(family, pipes)
        assert code is not None, "it has exited"
        return code

    async def _listen_until_exit(self, family: Family, pipes: tuple[Pipe, Pipe]) -> None:
        async with anyio.create_task_group() as listening:
            for pipe in pipes:
                listening.start_soon(pipe.drain)
            listening.start_soon(_bury_regularly, family)
            await family.exited()
            with anyio.move_on_after(PIPES_S):
                for pipe in pipes:
                    await pipe.closed.wait()
            listening.cancel_scope.cancel()

    async def _end(self, family: Family, pipes: tuple[Pipe, Pipe]) -> int | None:
        async with anyio.create_task_group() as listening:  # keep reading: a writer that blocks handles no signal
            for pipe in pipes:
                listening.start_soon(pipe.drain)
            left = await family.end(self._kill_after_s)
            listening.cancel_scope.cancel()
        if left:
            context = self._context
            fields = job_fields(context.job_id, context.attempt, context.traceparent)
            log.error(
                "processes %s of a %s job hang in the kernel and cannot be ended", left, context.task, extra=fields
            )
        self._results.close()
        self._log_lines.close()
        self._emitter.log_dropped()
        return family.collect()

    def judge(self, code: int) -> Any:
        if code == 0:
            return self._result()
        why = self._why_killed(-code) if code < 0 else TaskFailed("exited", f"exit code {code}")
        tail = self._log_lines.tail()
        if tail:
            why.message = f"{why.message}: {tail.splitlines()[-1]}"[:MESSAGE_CHARACTERS]
            why.stack = tail
        self._note_result(code)
        raise why

    def _why_killed(self, number: int) -> TaskFailed:
        name = signal_name(number)
        if number == signal.SIGKILL and oom_kills() > self._oom_kills:
            return TaskFailed("oom", f"killed by {name}: out of memory")
        return TaskFailed("killed", f"killed by {name}")

    def _note_result(self, code: int) -> None:
        """Log the result of a failed program: it does not count, but may explain the failure."""
        written = self._workdir.read_result(self._limit) or self._results.text().rpartition(b"\n")[2]
        if written:
            self._context.log(f"not taken as a result, for its exit code {code}: {printable(written)}", "warning")

    def _result(self) -> Any:
        written = self._workdir.read_result(self._limit)
        if written is not None:
            return self._decoded(written, "the result file", too_large=len(written) > self._limit)
        text = self._results.text()
        if not text:
            events = f"; its {self._results.events} lines there are events" if self._results.events else ""
            raise TaskFailed("no_result", f"exit code 0, but no result on stdout or in $JOBD_RESULT_FILE{events}")
        cut = self._results.overflowed and (b"\n" not in text or text[-1:] in (b"}", b"]"))
        return self._decoded(text, "stdout", too_large=cut)

    def _decoded(self, text: bytes, where: str, *, too_large: bool) -> Any:
        try:
            if where == "stdout":
                return last_document(text)
            if not too_large:
                return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not too_large:
                message = f"exit code 0, but {where} does not end with a JSON document: {error}"
                raise TaskFailed("bad_result", message[:MESSAGE_CHARACTERS]) from None
        message = f"the result on {where} is larger than max_output_mb, which is {self._limit / MB:.9g}"
        raise TaskFailed("result_too_large", message, retryable=False)


def environment(task: Task, context: Context, workdir: Workdir) -> dict[str, str]:
    passed = {*PASSED_ON, *task.env}
    taken = {name: value for name, value in os.environ.items() if name in passed or name.startswith("LC_")}
    return {
        "PATH": DEFAULT_PATH,
        **taken,
        "TMPDIR": str(workdir.path),
        "JOBD_JOB_ID": str(context.job_id),
        "JOBD_TASK": context.task,
        "JOBD_ATTEMPT": str(context.attempt),
        "JOBD_DEADLINE_S": f"{context.left_s:.3f}",
        "JOBD_RESULT_FILE": str(workdir.result_file),
        **{name.upper(): value for name, value in trace_headers(context).items()},
    }


def limits(task: Task) -> dict[int, int]:
    """The resource limits of each process of the program; a lower limit of jobd itself stays in force."""
    chosen = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: FILE_BYTES, resource.RLIMIT_NOFILE: OPEN_FILES}
    if task.memory_mb:
        chosen[resource.RLIMIT_AS] = task.memory_mb * MB
    if task.max_processes:
        chosen[resource.RLIMIT_NPROC] = tasks_of_user() + task.max_processes
    return chosen


async def _bury_regularly(family: Family) -> None:
    while True:
        await anyio.sleep(BURY_EVERY_S)
        family.living()


@contextmanager
def _file_of(content: bytes) -> Iterator[int]:
    """A read-only file in memory (memfd), freed with its last open descriptor."""
    writing = os.memfd_create("payload", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(writing, view) :]
        reading = os.open(f"/proc/self/fd/{writing}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)
