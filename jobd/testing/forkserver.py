"""The process that has imported jobd once and forks a daemon for each start: the imports are half of a start.

It reads one request a line on standard input and answers each with one line on standard output. It has imported nothing
of the user's: each daemon imports tasks itself, afresh. When its input ends, because the tests have ended in whatever
way, it stops the daemons that are left and removes their folders.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from subprocess import SubprocessError
from typing import IO, TYPE_CHECKING

import anyio
import msgspec

from jobd.config.load import load
from jobd.errors import JobdError, root_cause
from jobd.host import locks, logs
from jobd.host.data_dir import CLUSTER
from jobd.serve.daemon import Daemon
from jobd.tasks.registry import with_declared_tasks
from jobd.testing.requests import DATA, LOG, StartAnswer, StartRequest, StopRequest, log_of
from jobd.testing.settings import POSTGRES, for_tests
from jobd.testing.template import Template

if TYPE_CHECKING:
    from jobd.config.model import Loaded
    from jobd.host.data_dir import Addresses

#: Names of locks in a data directory, whose holders are all processes of one jobd.
LOCKS = ("jobd.lock", "postgres.lock", "valkey.lock")
#: Descriptor of the requests: standard input.
REQUESTS = 0
#: Seconds that a daemon has to become ready.
START_S = 60.0
#: Seconds that a daemon has to drain before it is killed.
STOP_S = 10.0


def main() -> None:
    requests = msgspec.json.Decoder(StartRequest | StopRequest)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a task prints while it is imported is no answer
    pids: dict[str, int] = {}
    try:
        for line in sys.stdin.buffer:
            request = requests.decode(line)
            if isinstance(request, StartRequest):
                answer = start(request)
                pids[request.folder] = answer.pid
                answers.write(msgspec.json.encode(answer) + b"\n")
            else:
                stop(request.folder, pids.pop(request.folder))
                answers.write(b"{}\n")
    except BrokenPipeError:  # the tests were killed while they waited for an answer
        pass
    finally:
        for folder, pid in pids.items():
            stop(folder, pid)


def start(request: StartRequest) -> StartAnswer:
    """Prepare a data directory, fork a daemon and wait until it is ready, or has ended."""
    try:
        _prepare(request)
    except (OSError, SubprocessError, JobdError) as error:
        return StartAnswer(pid=0, error=f"its data directory cannot be prepared: {error}")
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(readable)
            code = _serve(request, os.fdopen(writable, "wb", buffering=0))
        finally:
            os._exit(code)  # whatever is raised: what the parent has to clean up is not the child's
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        if why := _why_not_heard(pipe.fileno()):
            return StartAnswer(pid=pid, error=f"{why}; see its log:\n{log_of(Path(request.folder))}")
        line = pipe.readline()
    if not line:
        return StartAnswer(pid=pid, error=f"it ended before it was ready; see its log:\n{log_of(Path(request.folder))}")
    return msgspec.structs.replace(msgspec.json.decode(line, type=StartAnswer), pid=pid)


def stop(folder: str, pid: int) -> None:
    """Drain a daemon, end what is left of it, and remove all that it had. `pid` 0: it was never forked."""
    if pid:
        _end(pid)
    data = Path(folder, DATA)
    for name in LOCKS:
        for left in locks.holders(data / name) if (data / name).exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
    if (data / "run").is_symlink():
        shutil.rmtree((data / "run").resolve().parent, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _why_not_heard(pipe: int) -> str:
    """Wait until a daemon says something or ends; or why that is waited for no longer."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(REQUESTS, 0)  # only that nobody asks any more
    heard = dict(poll.poll(START_S * 1000))
    if REQUESTS in heard:
        return "the tests have ended"
    return "" if heard else f"it was not ready after {START_S:g} s"


def _prepare(request: StartRequest) -> None:
    data = Path(request.folder, DATA)
    Template(None if request.templates is None else Path(request.templates)).copy_to(data)
    with (data / CLUSTER / "postgresql.auto.conf").open("a") as file:
        file.write(POSTGRES)


def _serve(request: StartRequest, pipe: IO[bytes]) -> int:
    """The daemon; returns its exit code."""
    try:
        _enter(request)
        loaded = _loaded(request)
        logs.set_up(loaded.config.log.level, "text", environ=os.environ)

        def on_ready(where: Addresses) -> None:
            pipe.write(msgspec.json.encode(StartAnswer(pid=0, url=where.JOBD_URL)) + b"\n")
            pipe.close()

        anyio.run(Daemon(loaded, reload=lambda: _loaded(request)).run, on_ready, backend_options={"use_uvloop": True})
    except Exception as error:
        cause = root_cause(error)
        text = str(cause) if isinstance(cause, JobdError) else f"{type(cause).__name__}: {cause}"
        if not pipe.closed:
            pipe.write(msgspec.json.encode(StartAnswer(pid=0, error=text)) + b"\n")
        return cause.exit_code if isinstance(cause, JobdError) else 1
    return 0


def _enter(request: StartRequest) -> None:
    """Make this process one of its own: its log, its directory, its variables."""
    log = os.open(Path(request.folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in [name for name in os.environ if name.startswith("JOBD_")]:
        del os.environ[name]
    os.environ.update(request.variables)
    os.chdir(request.root)
    sys.path.insert(0, request.root)


def _loaded(request: StartRequest) -> Loaded:
    file = None if request.config is None else Path(request.config)
    flags = {**request.settings, "data_dir": str(Path(request.folder, DATA))}
    loaded = load(file, os.environ, flags, search=())
    return msgspec.structs.replace(loaded, config=for_tests(with_declared_tasks(loaded.config)))


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)  # not waited for yet, so the number is still its own
    if not _ended_within(pid, STOP_S):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _ended_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


if __name__ == "__main__":
    main()
