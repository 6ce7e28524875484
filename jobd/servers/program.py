"""What both embedded servers have in common: find the program, stop orphans, run, stop.

A running server is either *ours*, a child of this jobd, or *an orphan* of a jobd that was killed. An
orphan still holds the server's lock (see locks.py); it is stopped before a new server starts, and while anything holds
the lock nothing of the server's files is touched.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from jobd.errors import ServerFailed, ServerMissing
from jobd.host import locks
from jobd.host.account import can_reach
from jobd.host.process import Child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from jobd.host.data_dir import DataDir
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

Steps = tuple[tuple[signal.Signals, float], ...]

#: Seconds that a starting server may take: crash recovery (WAL replay) after a power failure can take minutes.
START_S = 300.0
#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0
#: Seconds between two checks whether a starting server answers.
POLL_S = 0.01
#: Seconds that a program may take to say its version.
VERSION_S = 10.0


class Program:
    """A server's program inside an installed distribution."""

    def __init__(self, distribution: str, package: str, executable: str, parts: tuple[str, ...] = ()) -> None:
        self.distribution = distribution
        self._package = package
        self._executable = executable
        #: What must be copied where the installed one is out of reach, as paths below site-packages.
        self._parts = (executable, *parts)

    @property
    def remedy(self) -> str:
        return f"reinstall package {self.distribution}"

    def installed(self) -> Path:
        """Its path as installed; refuses if it is not there or not executable."""
        spec = importlib.util.find_spec(self._package)
        if spec is None or not spec.submodule_search_locations:
            raise ServerMissing(f"package {self.distribution} is not installed; install jobd from its lock file")
        path = Path(spec.submodule_search_locations[0]).parent / self._executable
        if not path.is_file():
            raise ServerMissing(f"{path} is missing; reinstall package {self.distribution}")
        if not os.access(path, os.X_OK):
            raise ServerMissing(f"{path} is not executable; chmod +x it or reinstall package {self.distribution}")
        return path

    def reachable(self, data_dir: DataDir) -> Path:
        root = self.installed().parents[len(Path(self._executable).parents) - 1]
        label = f"{self._package}-{importlib.metadata.version(self.distribution)}"
        return data_dir.reachable_copy(root, self._parts, label) / self._executable


class GivenProgram:
    """A server's program that the configuration names by its path."""

    def __init__(self, option: str, path: str) -> None:
        self.option = option
        self._path = Path(path)

    @property
    def remedy(self) -> str:
        return f"set {self.option} to the program of the server, or to nothing for the one that comes with jobd"

    def installed(self) -> Path:
        if not self._path.is_file():
            raise ServerMissing(f"{self.option} = {self._path} is no file; {self.remedy}")
        if not os.access(self._path, os.X_OK):
            raise ServerMissing(f"{self.option} = {self._path} is not executable; chmod +x it, or {self.remedy}")
        return self._path

    def reachable(self, data_dir: DataDir) -> Path:
        path = self.installed()
        if not can_reach(data_dir.account, path):
            raise ServerMissing(
                f"{self.option} = {path} cannot be run by {data_dir.account.name}, who runs the servers; open its "
                "folders to that user (chmod o+x)"
            )
        return path

    def version(self) -> str:
        """What it says of itself, such as `postgres (PostgreSQL) 17.2`."""
        path = self.installed()
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=True)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise ServerMissing(f"{self.option} = {path} does not run: {error}; {self.remedy}") from None
        return done.stdout.strip().partition("\n")[0][:200]


async def clear_orphans(lock: Path, steps: Steps) -> None:
    """Stop what a dead jobd left running, so that the lock is free."""
    if not locks.is_held(lock):
        return
    pids = await locks.release_by_force(lock, steps)
    if locks.is_held(lock):
        raise ServerFailed(f"{lock} is held by {locks.holders(lock)}, which do not stop; end them by hand")
    log.info("stopped %d processes left by a jobd that was killed (%s)", len(pids), lock.stem)


async def run_server(
    argv: Sequence[str],
    handle: Handle,
    *,
    data_dir: DataDir,
    lock: Path,
    cwd: Path,
    on_line: Callable[[str], None],
    is_up: Callable[[], Awaitable[bool]],
    stop_steps: Steps,
    stop_now: Steps,
    stdin: bytes | None = None,
) -> None:
    """Start the server, report ready once `is_up`, and stay until asked to stop or until it ends by itself."""
    child = start_locked(argv, data_dir=data_dir, lock=lock, cwd=cwd, stdin=stdin)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.pump, on_line)
            tasks.start_soon(_raise_when_it_ends, child, handle)
            with anyio.fail_after(START_S):
                while not await is_up():
                    await anyio.sleep(POLL_S)
            handle.ready()
            while not handle.stop.is_set():
                with anyio.move_on_after(BEAT_S):
                    await handle.stop.wait()
                handle.beat()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            asked = handle.stop.is_set() and not handle.hurry
            await child.stop(stop_steps if asked else stop_now)


async def run_tool(
    argv: Sequence[str], *, data_dir: DataDir, lock: Path, cwd: Path, on_line: Callable[[str], None]
) -> Child:
    """Run a program of the server's to its end under the server's lock."""
    child = start_locked(argv, data_dir=data_dir, lock=lock, cwd=cwd)
    try:
        await child.pump(on_line)
        await child.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await child.stop(())
    return child


def start_locked(argv: Sequence[str], *, data_dir: DataDir, lock: Path, cwd: Path, stdin: bytes | None = None) -> Child:
    fd = locks.take(lock)
    if fd is None:
        raise ServerFailed(f"{lock} is held by {locks.holders(lock)}")
    try:
        return Child.start(argv, account=data_dir.account, cwd=cwd, lock_fd=fd, stdin=stdin)
    finally:
        os.close(fd)  # from here on only the child, and what it forks, holds the lock


def remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


async def _raise_when_it_ends(child: Child, handle: Handle) -> None:
    await child.wait()
    if not handle.stop.is_set():
        raise ServerFailed(f"{child.name} ended, {child.why()}")
