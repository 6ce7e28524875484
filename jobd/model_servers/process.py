"""One run of a model server: a program in a session of its own, whose processes carry a mark, as those of commands do.

Its folder in `data_dir/attempts` is called after the mark and locked while jobd runs it. What a jobd that was killed
leaves behind is found by that at the next start and ended.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import httpx

from jobd.host.process import signal_name
from jobd.model_servers.output import ServerOutput
from jobd.tasks.command.marks import new_mark
from jobd.tasks.command.output import Pipe
from jobd.tasks.command.processes import Family
from jobd.tasks.command.runner import DEFAULT_PATH, PASSED_ON
from jobd.tasks.command.workdir import ATTEMPTS, Workdir
from jobd.tasks.openai.runner import server_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jobd.config.model import ModelConfig

#: Seconds that an answer to the question whether a server is up may take.
ASK_S = 5.0
#: Shortest value of an environment variable, in characters, that is looked for in the output of a server.
SECRET_CHARACTERS = 8


class ServerProcess:
    def __init__(self, settings: ModelConfig, data_dir: Path, on_line: Callable[[str], None]) -> None:
        """Start the program; an `OSError` says why that failed."""
        self._settings = settings
        self.output = ServerOutput(on_line, _secrets(settings))
        #: Set when the program has ended, whatever it has started.
        self.ended = anyio.Event()
        self._exit_code: int | None = None
        mark = new_mark()
        self._workdir = Workdir(data_dir / ATTEMPTS, mark)
        try:
            self._family = Family.start(
                settings.argv,
                mark=mark,
                env=_environment(settings, self._workdir.path),
                cwd=self._workdir.path,
                stdin=subprocess.DEVNULL,
                limits={},
            )
        except BaseException:
            self._workdir.remove()
            raise
        self._pipes = [Pipe(fd, self.output.feed) for fd in self._family.outputs]

    @property
    def pid(self) -> int:
        return self._family.pid

    async def follow(self) -> None:
        """Read what it writes, and notice its end."""
        async with anyio.create_task_group() as tasks:
            for pipe in self._pipes:
                tasks.start_soon(pipe.drain)
            await self._family.exited()
            self.ended.set()

    async def end(self, grace_s: float) -> None:
        """SIGTERM, and after the grace SIGKILL, to everything that it has started; then its folder is removed."""
        async with anyio.create_task_group() as tasks:  # keep reading: a writer that blocks handles no signal
            for pipe in self._pipes:
                tasks.start_soon(pipe.drain)
            await self._family.end(grace_s)
            tasks.cancel_scope.cancel()
        self.output.close()
        self._exit_code = self._family.collect()
        await anyio.to_thread.run_sync(self._workdir.remove)

    def why(self) -> str:
        """How it ended, with its last line."""
        code = self._exit_code
        end = f"killed by {signal_name(-code)}" if code is not None and code < 0 else f"exit code {code}"
        return f"{end}: {self.output.why()}" if self.output.why() else end


class HealthCheck:
    """Asks a server whether it is up."""

    def __init__(self, settings: ModelConfig) -> None:
        url = httpx.URL(settings.base_url)
        self._url = url.join(settings.health_path) if settings.health_path else httpx.URL("models")
        key = _key(settings)
        self._headers = {"Authorization": f"Bearer {key}"} if key.isascii() and key.isprintable() and key else {}
        self._http = server_client(url)

    async def status(self) -> int | None:
        """The status that it answers with; None: it does not answer."""
        try:
            async with self._http.stream("GET", self._url, headers=self._headers, timeout=ASK_S) as response:
                return response.status_code
        except (httpx.HTTPError, httpx.InvalidURL):
            return None

    async def close(self) -> None:
        await self._http.aclose()


def _environment(settings: ModelConfig, folder: Path) -> dict[str, str]:
    passed = {*PASSED_ON, *settings.env}
    taken = {name: value for name, value in os.environ.items() if name in passed or name.startswith("LC_")}
    return {"PATH": DEFAULT_PATH, **taken, "TMPDIR": str(folder)}


def _secrets(settings: ModelConfig) -> list[str]:
    """Values of the environment that its output may repeat."""
    words = ("KEY", "TOKEN", "SECRET", "PASSWORD")
    found = [os.environ.get(name, "") for name in settings.env if any(word in name.upper() for word in words)]
    return [value for value in (*found, _key(settings)) if len(value) >= SECRET_CHARACTERS]


def _key(settings: ModelConfig) -> str:
    return os.environ.get(settings.api_key_env, "").strip() if settings.api_key_env else ""
