"""The `jobd serve` under test: start it, find its processes, kill them, wait until it is ready."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.chaos.handlers import RUNS_VARIABLE
from jobd.errors import ServerFailed
from jobd.host import locks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Seconds that a start, or a restart of a server, may take. Much more than it does: a drill that gives up on a board
#: under load finds nothing.
READY_S = 120.0
#: Seconds between two looks whether it is ready, and so the error of the time until it is.
LOOK_S = 0.02
#: Seconds that a request may take; one to a board that stands still ends by this.
REQUEST_S = 5.0
LOCKS = ("jobd.lock", "postgres.lock", "valkey.lock")
#: Bytes of the end of the log that an error shows.
LOG_BYTES = 2000


class BoardAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class DrillBoard:
    def __init__(self, folder: Path, data_dir: Path, config: str) -> None:
        #: Beside the data directory, so that no fault of its disk reaches them.
        self.runs = folder / "runs"
        self.log_file = folder / "jobd.log"
        self._config = folder / "jobd.toml"
        self._config.write_text(config)
        self.data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        command = [sys.executable, "-m", "jobd", "serve", "--port", "0"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--config", str(self._config), "--data-dir", str(self.data_dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, RUNS_VARIABLE: str(self.runs)},
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def pids_of(self, name: str) -> list[int]:
        """Of `jobd`, `postgres` or `valkey`; found by the locks of the data directory, as jobd itself finds them."""
        return locks.holders(self.data_dir / f"{name}.lock") if name != "jobd" else self._own_pid()

    def _own_pid(self) -> list[int]:
        return [self._process.pid] if self._process is not None and self.is_running else []

    def all_pids(self) -> list[int]:
        found = {pid for name in LOCKS for pid in locks.holders(self.data_dir / name)}
        return sorted(found | set(self._own_pid()))

    def first_of(self, name: str) -> list[int]:
        """The process of a server that jobd started; its children go with it."""
        pids = self.pids_of(name)
        return [pid for pid in pids if _parent(pid) not in pids and pid not in self._own_pid()]

    def signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, pids: Iterable[int]) -> None:
        """kill -9; collects the jobd if it was among them."""
        targets = set(pids)
        self.signal(targets, signal.SIGKILL)
        if self._process is not None and self._process.pid in targets:
            self._process.wait()

    def kill_all(self) -> None:
        """Until no process of the data directory is left."""
        while pids := self.all_pids():
            self.kill(pids)
            time.sleep(LOOK_S)

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(READY_S)

    def clear_away(self) -> None:
        self.kill_all()
        if (self.data_dir / "run").is_symlink():
            shutil.rmtree((self.data_dir / "run").resolve().parent, ignore_errors=True)

    # -- requests --------------------------------------------------------------------------------------------------

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> BoardAnswer | None:
        """None: there was no answer, and whether it had an effect is unknown."""
        try:
            connection = http.client.HTTPConnection(self._address(), timeout=REQUEST_S)
        except (OSError, ValueError, KeyError):
            return None
        content = None if body is None else msgspec.json.encode(body)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return BoardAnswer(answer.status, answer.read())
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def addresses(self) -> dict[str, str]:
        found: dict[str, str] = msgspec.json.decode((self.data_dir / "env.json").read_bytes())
        return found

    def _address(self) -> str:
        return self.addresses()["JOBD_URL"].partition("://")[2]

    def is_ready(self) -> bool:
        answer = self.request("GET", "/readyz")
        return answer is not None and answer.status == 200

    def until_ready(self, since: float | None = None) -> float:
        """Seconds from `since` (by the monotonic clock; without it, from now) until it answered that it is ready."""
        started = time.monotonic()
        while not self.is_ready():
            if not self.is_running:
                raise ServerFailed(f"the jobd under test ended by itself: {self.log_end()}")
            if time.monotonic() - started > READY_S:
                raise ServerFailed(f"the jobd under test was not ready within {READY_S:g} s: {self.log_end()}")
            time.sleep(LOOK_S)
        return time.monotonic() - (started if since is None else since)

    def until_all_run(self) -> None:
        """Until both servers run again: one of them was killed, and jobd may not have noticed it yet."""
        started = time.monotonic()
        while not (self.first_of("postgres") and self.first_of("valkey")):
            if time.monotonic() - started > READY_S:
                raise ServerFailed(f"a server was not started again within {READY_S:g} s: {self.log_end()}")
            time.sleep(LOOK_S)

    def log_end(self) -> str:
        return self.log_file.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
