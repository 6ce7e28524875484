"""A gate in a process of its own: a program that gets the output on stdin, and passes it by exiting with 0.

No shell, no argument from outside: the configuration has the whole command line. The program starts in an empty private
directory and sees no secret of jobd's environment. When these functions return, it and all its children have ended.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd.config.model import GateCommand
from jobd.errors import JobdError
from jobd.host.process import signal_name
from jobd.tasks.command.marks import new_mark
from jobd.tasks.command.output import Pipe, printable
from jobd.tasks.command.processes import Family
from jobd.tasks.command.runner import DEFAULT_PATH, FILE_BYTES, OPEN_FILES, PASSED_ON, PIPES_S
from jobd.tasks.command.workdir import Workdir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Bytes of a gate's last output that are kept as its reason.
TAIL_BYTES = 2000
#: Errors of a start that are the program's fault: it is missing or not executable. Any other (no memory, no descriptor,
#: no process) is jobd's own, and the gate is asked again.
PROGRAM_FAULTS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ELOOP}
#: Seconds between SIGTERM and SIGKILL for a gate process that has to end.
KILL_AFTER_S = 2.0
#: Seconds after which the evaluation of a schema is killed; real schemas take milliseconds, hostile ones for ever.
SCHEMA_S = 10.0
#: Resource limits of a gate process: those of command tasks, and no core dumps.
LIMITS = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: FILE_BYTES, resource.RLIMIT_NOFILE: OPEN_FILES}


class NotAsked(JobdError):
    """A gate that jobd could not ask; it is asked again."""

    code = "gate_not_asked"
    exit_code = 70


async def run_schema(schema: dict[str, Any] | bool, output: bytes, root: Path) -> str | None:
    """Why the output does not fit the schema; None: it does. A schema that takes too long is not fitted."""
    child = GateCommand(argv=(sys.executable, "-m", "jobd.tickets.pollers.schema_child"), timeout_s=SCHEMA_S)
    stdin = b'{"schema":' + msgspec.json.encode(schema) + b',"output":' + output + b"}"
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    fault = await run_gate_command(child, stdin, root, env)
    return None if fault is None else fault.removeprefix("exit code 1: ")


async def run_gate_command(
    gate: GateCommand, output: bytes, root: Path, more_env: Mapping[str, str] | None = None
) -> str | None:
    """Why the program does not pass the output; None: it does.

    Raises NotAsked if jobd has no disk space, descriptor or process for it: that is no verdict about the output.
    """
    mark = new_mark()
    try:
        workdir = Workdir(root, mark)
    except OSError as error:
        raise NotAsked(f"cannot make a folder in {root}: {error.strerror}") from error
    try:
        try:
            family = _start(gate, output, mark, workdir, more_env or {})
        except OSError as error:
            if error.errno not in PROGRAM_FAULTS:
                raise NotAsked(f"cannot start {gate.argv[0]}: {error.strerror}") from error
            return f"cannot start {error.filename or gate.argv[0]}: {error.strerror}"
        return await _verdict(family, gate.timeout_s)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(workdir.remove)


def _start(gate: GateCommand, output: bytes, mark: int, workdir: Workdir, more_env: Mapping[str, str]) -> Family:
    stdin_file = workdir.path / "output.json"
    stdin_file.write_bytes(output)
    passed = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("LC_")}
    env = {"PATH": DEFAULT_PATH, **passed, "TMPDIR": str(workdir.path), **more_env}
    with stdin_file.open("rb") as stdin:
        return Family.start(gate.argv, mark=mark, env=env, cwd=workdir.path, stdin=stdin.fileno(), limits=LIMITS)


async def _verdict(family: Family, timeout_s: float) -> str | None:
    tail = bytearray()

    def keep(data: bytes) -> None:
        tail[:] = (tail + data)[-TAIL_BYTES:]

    pipes = [Pipe(fd, keep) for fd in family.outputs]
    code: int | None = None
    with anyio.move_on_after(timeout_s) as limit:
        try:
            async with anyio.create_task_group() as listening:
                for pipe in pipes:
                    listening.start_soon(pipe.drain)
                await family.exited()
                with anyio.move_on_after(PIPES_S):
                    for pipe in pipes:
                        await pipe.closed.wait()
                listening.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                code = await _end(family, pipes)
    if limit.cancelled_caught:
        return f"it took longer than {timeout_s:g} s"
    if code == 0:
        return None
    what = f"exit code {code}" if code is not None and code > 0 else f"killed by {signal_name(-(code or 0))}"
    last = bytes(tail).strip().rpartition(b"\n")[2]
    return f"{what}: {printable(last)}" if last else what


async def _end(family: Family, pipes: list[Pipe]) -> int | None:
    async with anyio.create_task_group() as listening:  # keep reading: a process blocked in a write handles no signal
        for pipe in pipes:
            listening.start_soon(pipe.drain)
        await family.end(KILL_AFTER_S)
        listening.cancel_scope.cancel()
    return family.collect()
