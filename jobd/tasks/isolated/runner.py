"""`run = "python"` with `isolate = true`: the handler runs in a process of its own, which stays warm from job to job.

What it has imported and loaded is kept. It may hold the interpreter's lock, crash or leak: no other job and no lease
is touched. There is a process for each job that runs at once; they are made when they are first needed and kept.

    a job must stop       `ctx.cancelled` is set, and an `async def` is cancelled; a process that has not ended its
                          job `GRACE_S` later is killed with everything that it started
    a process crashes     its job fails, worth another attempt, and names the signal or the exit code
    jobd stands still     the `watchdog` kills the process of a job whose lease ends meanwhile
    recycle_jobs          after this number of jobs another process takes over
    memory_mb             the same after a job that leaves the process larger than that

The first is started with jobd and must have imported its handler before jobd goes on, so a wrong handler is a refused
start with the same words as without isolation, and yet the daemon never imports it. A handler that takes longer than
`IMPORT_S` for it, a large model perhaps, does not hold up the start: its jobs wait for it. Time that a job waits for a
process to import its handler counts for the job, but a process is not ended for being slow at that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import anyio

from jobd.errors import ConfigError
from jobd.host.process import EXHAUSTED
from jobd.tasks.command.oom import oom_kills
from jobd.tasks.command.processes import DEATH_S, adopt_orphans
from jobd.tasks.command.workdir import ATTEMPTS, clear_leftovers
from jobd.tasks.isolated.job import run_job, why_ended
from jobd.tasks.isolated.process import HandlerProcess
from jobd.tasks.runner import Runner, TaskFailed
from jobd.tasks.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from jobd.config.model import Task
    from jobd.tasks.runner import Context

#: Seconds that the start of jobd waits for the first process to import the handler.
IMPORT_S = 60.0
#: Seconds that idle processes have to end when jobd stops.
CLOSE_S = 1.0
#: Seconds between two checks whether released processes have ended.
SWEEP_S = 0.1
#: Characters of the output that are quoted when the handler cannot be imported.
OUTPUT_CHARS = 300

log = logging.getLogger(__name__)


class IsolatedRunner(Runner):
    def __init__(
        self, name: str, task: Task, data_dir: Path, watchdog: Watchdog | None = None, *, clear: bool = True
    ) -> None:
        """`clear`: end what a killed jobd has left running, unless that was done already."""
        self._name = name
        self._watchdog = watchdog or Watchdog()
        self._task = task
        self._root = data_dir / ATTEMPTS
        #: Idle processes, used last in, first out: the last has the warmest caches.
        self._idle: list[HandlerProcess] = []
        #: Released processes that have not ended yet.
        self._leaving: list[HandlerProcess] = []
        self._is_sweeping = False
        self._is_closed = False
        self._schema: dict[str, Any] | None = None
        adopt_orphans()
        if clear and (ended := clear_leftovers(self._root)):
            log.warning("ended %d processes that a killed jobd had left running", ended)
        self._idle.append(self._first_process())

    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the payload; None if anything goes, or the handler is not imported yet."""
        return self._schema

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        process = self._take()
        context.pid = process.family.pid
        try:
            with self._watchdog.watching(process.family.mark, context.lease):
                return await run_job(process, payload, context)
        finally:
            self._give_back(process)

    def warm_pids(self) -> list[int]:
        return [process.family.pid for process in reversed(self._idle)]

    async def close(self) -> None:
        self._is_closed = True
        self._watchdog.close()
        leaving, self._idle, self._leaving = [*self._idle, *self._leaving], [], []
        async with anyio.create_task_group() as ending:
            for process in leaving:
                process.attach()
                ending.start_soon(process.end, CLOSE_S)

    # -- the first ---------------------------------------------------------------------------------------------------

    def _first_process(self) -> HandlerProcess:
        key, oom = f'tasks.{self._name}.handler = "{self._task.handler}"', oom_kills()
        try:
            process = self._start()
        except OSError as error:
            raise ConfigError(f"{key}: cannot start a process for it: {error.strerror}") from error
        process.hear_until_ready(IMPORT_S)
        if process.ready is not None:
            self._schema = process.ready.payload_schema
        elif process.refused is not None or process.is_lost:
            code = _bury(process)
            why = f"its process ended before it was imported ({why_ended(code, oom).message})"
            output = " ".join(process.early_lines().split())[:OUTPUT_CHARS]
            raise ConfigError(process.refused or f"{key}: {why}{output and '; it said: '}{output}")
        else:
            log.warning("%s is not imported after %g s; its jobs wait for it", key, IMPORT_S)
        return process

    # -- the pool ----------------------------------------------------------------------------------------------------

    def _start(self) -> HandlerProcess:
        process = HandlerProcess.start(self._name, self._task.handler, self._root)
        process.on_lost = lambda: self._drop(process)
        return process

    def _take(self) -> HandlerProcess:
        while self._idle:
            process = self._idle.pop()
            if not process.is_over():
                break
            self._let_go(process)
        else:
            try:
                process = self._start()
            except OSError as error:
                message = f"cannot start a process for {self._task.handler}: {error.strerror}"
                raise TaskFailed("exec_failed", message, retryable=error.errno in EXHAUSTED) from error
        process.attach()
        return process

    def _give_back(self, process: HandlerProcess) -> None:
        if process.is_lost or self._is_closed:
            self._let_go(process)
            return
        if process.ready is not None:
            self._schema = process.ready.payload_schema
        if why := self._why_recycle(process):
            log.info("the process of %s is replaced: %s", self._name, why)
            self._let_go(process)
            self._replace()
        else:
            self._idle.append(process)

    def _why_recycle(self, process: HandlerProcess) -> str:
        task = self._task
        if task.recycle_jobs and process.jobs >= task.recycle_jobs:
            return f"it has run {process.jobs} jobs"
        if task.memory_mb and process.jobs and (resident_mb := process.resident_mb) > task.memory_mb:
            return f"it has {resident_mb:.0f} MB, more than memory_mb = {task.memory_mb}"
        return ""

    def _replace(self) -> None:
        """At once, so that the next job need not wait for all of its imports."""
        try:
            process = self._start()
        except OSError as error:
            log.warning("cannot start another process for %s now: %s", self._name, error.strerror)
            return
        process.attach()
        self._idle.append(process)

    # -- those that leave --------------------------------------------------------------------------------------------

    def _drop(self, process: HandlerProcess) -> None:
        """It ended, or is of no use any more, with nothing to do."""
        if process in self._idle:
            self._idle.remove(process)
            self._let_go(process)

    def _let_go(self, process: HandlerProcess) -> None:
        if process.is_collected:
            return
        process.hang_up()
        self._leaving.append(process)
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep()

    def _sweep(self) -> None:
        self._leaving = [process for process in self._leaving if not process.is_buried()]
        self._is_sweeping = bool(self._leaving)
        if self._leaving:
            asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


def _bury(process: HandlerProcess) -> int | None:
    """Wait for one that has said that it ends, without a loop."""
    deadline = time.monotonic() + DEATH_S
    while not process.is_buried() and time.monotonic() < deadline:
        time.sleep(0.005)
    return process.exit_code
