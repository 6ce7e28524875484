"""A whole jobd that a test starts, calls and stops: its own servers, in a folder of its own, on a free port."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.client import Client
from jobd.errors import ServerFailed
from jobd.testing.requests import DATA, StartAnswer, StartRequest, StopRequest, log_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.client import Job

#: The folder with the package `jobd`.
IMPORT_PATH = Path(__file__).resolve().parents[2]
#: A file system in memory, where every fsync is free; used only if that many bytes are free there.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 1 << 30
#: Seconds that `run` waits for the end of a job.
WAIT_S = 30.0


class JobdServer:
    """A jobd that runs. `with start_server() as server` stops it at the end."""

    def __init__(self, folder: Path, url: str, forkserver: ForkServer) -> None:
        self.url = url
        self.data_dir = folder / DATA
        self._folder = folder
        self._forkserver = forkserver
        self._client: Client | None = None
        self._is_stopped = False

    @property
    def client(self) -> Client:
        """One that is used again for every call."""
        if self._client is None:
            self._client = Client(self.url)
        return self._client

    def run(
        self, task: str, payload: Mapping[str, Any] | None = None, *, wait_s: float = WAIT_S, **options: Any
    ) -> Job:
        """Submit a job and wait for its end; `options` are those of `Client.submit_and_wait`."""
        return self.client.submit_and_wait(task, {} if payload is None else payload, wait_s=wait_s, **options)

    def log(self) -> str:
        """What it has logged so far, with what tasks printed."""
        return log_of(self._folder)

    def stop(self) -> None:
        """Drain it and remove its folder; once is enough."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._client is not None:
            self._client.close()
        self._forkserver.ask(StopRequest(folder=str(self._folder)))

    def __enter__(self) -> JobdServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_server(
    config: Path | str | None = None,
    *,
    root: Path | None = None,
    settings: Mapping[str, object] | None = None,
    variables: Mapping[str, str] | None = None,
    templates: Path | None = None,
) -> JobdServer:
    """Start a jobd and wait until it is ready; raises ServerFailed with the reason if it does not start.

    `config` is a file, or the text of one. Tasks are imported from `root` (default: the working directory). `settings`
    are options by dotted key, such as {"queues.default.slots": 1}, and win over the file.
    """
    forkserver = shared_forkserver()
    folder = Path(tempfile.mkdtemp(prefix="jobd-test-", dir=MEMORY if _has_room(MEMORY) else None))
    folder.chmod(0o711)  # the servers' account has to get through
    try:
        if isinstance(config, str):
            (folder / "jobd.toml").write_text(config)
            config = folder / "jobd.toml"
        answer = forkserver.start(
            StartRequest(
                folder=str(folder),
                config=None if config is None else str(config.resolve()),
                root=str((root or Path.cwd()).resolve()),
                settings=dict(settings or {}),
                variables=dict(variables or {}),
                templates=None if templates is None else str(templates),
            )
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if answer.error:
        forkserver.ask(StopRequest(folder=str(folder)))
        raise ServerFailed(f"no jobd for a test: {answer.error}")
    return JobdServer(folder, answer.url, forkserver)


class ForkServer:
    """The process of `jobd.testing.forkserver`, and who asks it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        paths = [str(IMPORT_PATH), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jobd.testing.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # a Ctrl-C is for the tests: they stop what they started
        )

    def start(self, request: StartRequest) -> StartAnswer:
        return msgspec.json.decode(self.ask(request), type=StartAnswer)

    def ask(self, request: StartRequest | StopRequest) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise ServerFailed(f"the process that starts jobd for tests has ended (exit code {self._process.wait()})")
        return answer

    def close(self) -> None:
        """It stops what is left, and ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@functools.cache
def shared_forkserver() -> ForkServer:
    """The one of this process; its imports go on in the background."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def _has_room(folder: Path) -> bool:
    """Room on it, and programs may be run there: the servers' account may need copies of them."""
    if not (folder.is_mount() and os.access(folder, os.W_OK | os.X_OK)):
        return False
    info = os.statvfs(folder)
    return info.f_bavail * info.f_frsize >= ROOM_BYTES and not info.f_flag & os.ST_NOEXEC
