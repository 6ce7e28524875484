"""A real `jobd serve` in a process of its own, and the questions that tests ask about it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jobd.host import locks
from tests.support.prepared import prepare
from tests.support.wait import wait_until

TOP = Path(__file__).resolve().parents[2]
READY_S = 45.0
#: For what should end by itself: it hangs, even on a busy machine.
TOO_LONG_S = 150.0
LOCKS = ("jobd.lock", "postgres.lock", "valkey.lock")


def run_jobd(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a jobd command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "jobd", *arguments],
        cwd="/",
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=TOO_LONG_S,
    )


def environment(variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TOP), "PYTHONWARNINGS": "error", **variables}


class Jobd:
    def __init__(self, data_dir: Path, *arguments: str, **variables: str) -> None:
        self.data_dir = data_dir
        self._arguments = arguments
        self._variables = variables
        self._process: subprocess.Popen[str] | None = None
        self.log_file = Path(f"{tempfile.mkdtemp(prefix='jt-')}/jobd.log")

    def start(self, *, prepared: bool = True) -> Jobd:
        """Start on what is in the data directory. A new one gets a cluster with the schema beforehand, unless the
        test is about a first start (`prepared=False`)."""
        if prepared and not self.data_dir.exists() and "JOBD_POSTGRES_URL" not in self._variables:
            prepare(self.data_dir)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "jobd",
                    "serve",
                    "--data-dir",
                    str(self.data_dir),
                    "--port",
                    "0",
                    *self._arguments,
                ],
                cwd="/",
                env=environment(self._variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        return self

    def until_ready(self) -> Jobd:
        wait_until(lambda: self.readiness()[0] == 200, self.log, READY_S)
        return self

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /readyz; status 0 while nobody answers there."""
        assert self._process is None or self._process.poll() is None, f"jobd ended: {self.log()}"
        try:
            return self.get("/readyz")
        except (OSError, http.client.HTTPException, FileNotFoundError, KeyError):
            return 0, {}

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(self.address, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    @property
    def addresses(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.data_dir / "env.json").read_text())
        return found

    @property
    def address(self) -> str:
        return self.addresses["JOBD_URL"].removeprefix("http://")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def _pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def server_pid(self, name: str) -> int:
        """The server's first process: the one that jobd started."""
        pids = locks.holders(self.data_dir / f"{name}.lock")
        first = [pid for pid in pids if parent(pid) not in pids and pid != self._pid]
        if not first:
            raise LookupError(f"no {name} runs")
        return first[0]

    def processes(self) -> set[int]:
        """Every process of this data directory, found the way jobd finds them."""
        return {pid for name in LOCKS for pid in locks.holders(self.data_dir / name)}

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = TOO_LONG_S) -> int:
        assert self._process is not None
        return self._process.wait(timeout)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def log(self) -> str:
        return self.log_file.read_text()[-4000:] if self.log_file.exists() else ""

    def clean_up(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(LookupError, ProcessLookupError):
            os.kill(self.server_pid("postgres"), signal.SIGQUIT)  # it then takes its shared memory along
            wait_until(lambda: not locks.is_held(self.data_dir / "postgres.lock"), self.log, 20)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.processes(), lambda: f"left behind: {self.processes()}", 20)
        if (self.data_dir / "run").is_symlink():
            shutil.rmtree((self.data_dir / "run").resolve().parent, ignore_errors=True)
        shutil.rmtree(self.log_file.parent)


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def is_alive(pid: int) -> bool:
    """A zombie is dead; who has to reap it is not our concern."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
