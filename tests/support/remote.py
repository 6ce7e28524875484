"""A real `jobd worker` in a process of its own, and a task that waits for the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from tests.support.daemon import environment
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

    from jobd import Context

WAIT_S = 30.0


class RemoteWorker:
    def __init__(self, config: Path, url: str, *arguments: str, **variables: str) -> None:
        self.log_file = Path(f"{tempfile.mkdtemp(prefix='jt-')}/worker.log")
        argv = ["worker", "--url", url, "--config", str(config), "--data-dir", str(self.log_file.parent), *arguments]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jobd", *argv],
                cwd="/",
                env=environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self.log_file.read_text()[-4000:]

    def until_it_says(self, text: str) -> None:
        wait_until(lambda: text in self.log(), lambda: f"not said: {text}\n{self.log()}", WAIT_S)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def wait(self) -> int:
        return self._process.wait(WAIT_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def remote_worker(config: Path, url: str, *arguments: str) -> Iterator[RemoteWorker]:
    worker = RemoteWorker(config, url, *arguments)
    try:
        yield worker
    finally:
        worker.end()


async def wait_for_file(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Goes on when `go` is there; leaves `begun` and, if it is stopped, `stopped` in the same folder."""
    folder = Path(payload["folder"])
    folder.joinpath("begun").touch()
    try:
        while not folder.joinpath("go").exists():
            await anyio.sleep(0.01)
    except anyio.get_cancelled_exc_class():
        folder.joinpath("stopped").touch()
        raise
    return {"attempt": ctx.attempt}
