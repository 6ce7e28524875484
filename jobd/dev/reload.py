"""The service that watches the files of a project and loads its tasks again when one was saved.

a file is saved         its tasks are imported again, all modules of the project at once
jobs run                they finish with the code that they began with
the code is broken      the old code goes on, and the log says what is wrong
jobd.toml is saved      its tasks and what SIGHUP would take over count at once; the rest at the next start
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from jobd.config.load import SEARCH
from jobd.dev.modules import Forgotten
from jobd.dev.runners import ExchangedRunner, Generation
from jobd.dev.watch import MOST_FILES, FileWatch
from jobd.errors import ConfigError, JobdError, root_cause
from jobd.tasks.registry import make_runners, with_declared_tasks
from jobd.tasks.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.config.model import Config, Loaded
    from jobd.supervise.service import Handle
    from jobd.tasks.runner import Runner

log = logging.getLogger(__name__)

#: Seconds between two looks at all files.
POLL_S = 0.2
#: Most of a core that looking may take: a large project is looked at less often.
SHARE = 0.1
#: Seconds without another change after which a save counts as finished: some editors write a file in steps.
QUIET_S = 0.05


class LoadedTasks(NamedTuple):
    config: Config
    generation: Generation


class Reloader:
    """Holds the runners of `jobd dev`, and exchanges them."""

    def __init__(
        self,
        load: Callable[[], Loaded],
        folders: Sequence[Path],
        *,
        on_tasks: Callable[[Config], None],
        on_config: Callable[[], None],
    ) -> None:
        self._load = load
        self._folders = folders
        self._on_tasks = on_tasks
        self._on_config = on_config
        self._runners: dict[str, Runner] = {}
        #: Generations that were replaced and still have jobs.
        self._old: list[Generation] = []
        self._generation = Generation({})
        #: One thread that stays: the processes of isolated handlers end with the thread that has started them.
        self._threads = Threads("jobd-reload")

    def make_runners(self, config: Config) -> dict[str, Runner]:
        """Those of the start. The same mapping has the later ones."""
        self._generation = Generation(make_runners(config))
        self._runners.update((name, ExchangedRunner(name, self._generation)) for name in self._generation.runners)
        return self._runners

    @property
    def names(self) -> list[str]:
        """Of all tasks that slots here run."""
        return list(self._runners)

    async def run(self, handle: Handle) -> None:
        config_file = [(self._load().path or SEARCH[0]).absolute()]  # it may be written later
        watch = await anyio.to_thread.run_sync(FileWatch, self._folders, config_file)
        if watch.is_full:
            log.warning("only %d files are watched; name the folders of your tasks with --watch", MOST_FILES)
        handle.ready()
        while not handle.stop.is_set():
            began_at = time.monotonic()
            changed = await anyio.to_thread.run_sync(watch.changes)
            pause_s = max(POLL_S, (time.monotonic() - began_at) / SHARE)
            if changed:
                changed = await self._until_quiet(watch, changed)
                await self.reload(changed, is_config=any(Path(path) in config_file for path in changed))
            await self._close_old()
            handle.beat()
            with anyio.move_on_after(pause_s):
                await handle.stop.wait()

    async def reload(self, changed: Sequence[str], *, is_config: bool) -> bool:
        """Load everything again; False if it cannot be, and the old code goes on."""
        began_at = time.monotonic()
        call = self._threads.start(self._loaded)
        await call.over.wait()
        try:
            new: LoadedTasks = call.outcome()
        except Exception as error:
            _tell_refused(error)
            return False
        try:
            self._on_tasks(new.config)
        except ConfigError as error:
            _tell_refused(error)
            await new.generation.close()
            return False
        self._exchange(new.generation)
        if is_config:
            self._on_config()
        names = ", ".join(map(_short, changed[:3])) + (" ..." if len(changed) > 3 else "")
        running = sum(len(generation.jobs) for generation in self._old)
        log.info(
            "reloaded %s in %.2f s%s",
            names,
            time.monotonic() - began_at,
            f"; {running} running jobs finish with the old code" if running else "",
        )
        return True

    def _loaded(self) -> LoadedTasks:
        forgotten = Forgotten(self._folders)
        try:
            config = with_declared_tasks(self._load().config)
            return LoadedTasks(config, Generation(make_runners(config, is_start=False)))
        except BaseException:
            forgotten.put_back()
            raise

    def _exchange(self, new: Generation) -> None:
        self._old.append(self._generation)
        self._generation = new
        for name in new.runners:
            runner = self._runners.get(name)
            if isinstance(runner, ExchangedRunner):
                runner.exchange(new)
            else:
                self._runners[name] = ExchangedRunner(name, new)
        for name in self._runners.keys() - new.runners.keys():  # jobs of theirs that still run keep what they need
            del self._runners[name]

    async def _until_quiet(self, watch: FileWatch, changed: list[str]) -> list[str]:
        found = set(changed)
        while True:
            await anyio.sleep(QUIET_S)
            more = await anyio.to_thread.run_sync(watch.changes)
            if not more:
                return sorted(found)
            found.update(more)

    async def _close_old(self) -> None:
        for generation in [old for old in self._old if not old.jobs]:
            self._old.remove(generation)
            await generation.close()


def _short(path: str) -> str:
    return os.path.relpath(path)


def _tell_refused(error: Exception) -> None:
    cause = root_cause(error)
    broken = cause.__cause__ if isinstance(cause, ConfigError) else cause
    log.error(
        "not reloaded, the old code goes on: %s",
        cause if isinstance(cause, JobdError) else f"{type(cause).__name__}: {cause}",
        exc_info=broken if isinstance(broken, Exception) else None,
    )
