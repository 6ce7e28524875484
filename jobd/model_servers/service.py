"""The model servers of a node: starts them when jobs ask for them, and ends them.

A job enters by `using`, holding its slot, and is let in when the server of its model is ready. Servers of one
`swap_group` take turns (see `turns`); any other server is a group of its own. Each group has one coroutine, so two of
its servers can never run at once: the next starts when nothing of the last one is left.

A server that cannot start, or ends by itself, is failed. Jobs that wait for it are put off until it may be started
again, and not charged: it is not their fault. Jobs that it was answering have lost their connection and fail as with
any other server, charged, since a job may be what makes a server crash. A program that cannot be run at all fails its
jobs at once: only a change of the configuration mends it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING

import anyio

from jobd.host.process import EXHAUSTED
from jobd.job.retry import SHORTEST_SNOOZE_S
from jobd.lifecycle.take_resident import PutBehind
from jobd.model_servers.turns import (
    STEADY_S,
    ModelWait,
    behind_s,
    decide_turn,
    next_model,
    restart_delay_s,
    spell_s,
)
from jobd.tasks.command.processes import adopt_orphans
from jobd.tasks.runner import Snoozed, TaskFailed
from jobd.wire.board import ModelServerObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from jobd.config.model import Config, ModelConfig
    from jobd.model_servers.process import HealthCheck, ServerProcess
    from jobd.supervise.service import Handle
    from jobd.tasks.runner import Context
    from jobd.wire.board import ModelServerState

log = logging.getLogger("jobd.model_servers")

#: Of all its log lines.
FIELDS = {"service": "model_servers"}
#: Seconds between two signs of life to the supervisor.
BEAT_S = 5.0
#: Seconds between the first two questions whether a starting server is up; each pause is half as long again.
FIRST_ASK_S = 0.05
#: Longest time in seconds between two of these questions.
LONGEST_ASK_S = 1.0
#: Seconds before the deadline of an attempt at which a job that still waits for its server is put off.
BEFORE_DEADLINE_S = 1.0
#: Number of the last attempt that is put off for a server that cannot start; from then on the attempt fails.
MOST_PUT_OFFS = 100
#: Seconds of waiting from which on the events of a job say how long it has waited.
TOLD_WAIT_S = 0.5
#: Longest reason of a failure in characters.
REASON_CHARACTERS = 500


class _Use:
    """A job that waits for a server."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.asked_at = time.monotonic()
        #: Set when it is let in, or the server has failed.
        self.is_decided = anyio.Event()
        self.is_let_in = False


class ModelServer:
    def __init__(self, name: str, settings: ModelConfig) -> None:
        self.name = name
        self.settings = settings
        self.state: ModelServerState = "stopped"
        #: Of a failed one, why.
        self.reason: str | None = None
        #: The program cannot be run: only a change of the configuration helps.
        self.is_unfit = False
        #: Jobs that were let in and have not ended.
        self.uses = 0
        #: In a row.
        self.failures = 0
        #: When a failed one may be started again, by time.monotonic().
        self.retry_at = 0.0
        self.ready_at = 0.0
        #: When the last job has ended, or it was ready.
        self.idle_at = 0.0
        self.starts = 0
        #: Seconds that its last start took until it was ready.
        self.load_s: float | None = None
        self.pid: int | None = None

    def may_start(self, now: float) -> bool:
        return self.state != "failed" or now >= self.retry_at


class _Group:
    """Servers of which one runs at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers: list[ModelServer] = []
        self.waiting: list[_Use] = []
        self.changed = anyio.Event()
        #: The server that has made room, when it was told to, and how long its end took in seconds.
        self.left: tuple[ModelServer, float, float] | None = None

    def note(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_until(self, when: float) -> None:
        """Until something has changed, or that time by time.monotonic()."""
        with anyio.move_on_after(max(0.0, when - time.monotonic())):
            await self.changed.wait()

    @property
    def takes_turns(self) -> bool:
        return len(self.servers) > 1

    def loaded(self) -> ModelServer | None:
        """The server that runs, or is about to."""
        return next((server for server in self.servers if server.state in ("starting", "ready")), None)

    def waits(self) -> list[ModelWait]:
        return [ModelWait(use.server.name, use.asked_at) for use in self.waiting]


class ModelServers:
    def __init__(self, config: Callable[[], Config], data_dir: Path) -> None:
        self._config = config
        self._data_dir = data_dir
        self._groups: dict[str, _Group] = {}
        #: By the address that tasks ask.
        self._by_url: dict[str, tuple[_Group, ModelServer]] = {}
        for name, settings in config().models.items():
            if settings.argv:
                group = self._groups.setdefault(settings.swap_group or f"model {name}", _Group(settings.swap_group))
                server = ModelServer(name, settings)
                group.servers.append(server)
                self._by_url[settings.base_url] = group, server
        self._handle: Handle | None = None

    @property
    def is_used(self) -> bool:
        """Whether jobd starts any."""
        return bool(self._groups)

    def read(self) -> list[ModelServerObject]:
        """Every server, in the order of the configuration."""
        return [
            ModelServerObject(
                model=server.name,
                state=server.state,
                reason=server.reason,
                swap_group=group.name or None,
                pid=server.pid,
                jobs=server.uses,
                waiting=sum(use.server is server for use in group.waiting),
                starts=server.starts,
                load_s=server.load_s,
            )
            for group, server in self._by_url.values()
        ]

    # -- jobs in line ----------------------------------------------------------------------------------------------

    @property
    def queues(self) -> set[str]:
        """Where jobs of models that take turns are expected."""
        return {
            task.queue
            for task in self._config().tasks.values()
            if task.run == "openai" and task.base_url in self._by_url and self._by_url[task.base_url][0].takes_turns
        }

    def put_behind(self) -> PutBehind | None:
        """Jobs in line that are put behind those of loaded models; None: none."""
        now, urls = time.monotonic(), set[str]()
        for group in self._groups.values():
            loaded = group.loaded() if group.takes_turns else None
            if loaded is not None and (loaded.state == "starting" or now < self._first_until(group, loaded)):
                urls |= {server.settings.base_url for server in group.servers if server is not loaded}
        if not urls:
            return None
        tasks = [name for name, task in self._config().tasks.items() if task.run == "openai" and task.base_url in urls]
        return PutBehind(tasks, behind_s(self._config().openai.max_model_wait_s))

    def why_waiting(self, task: str) -> str | None:
        """Which other model a job of this task has to wait for, in words; None: it waits for none."""
        configured = self._config().tasks.get(task)
        found = None if configured is None or configured.run != "openai" else self._by_url.get(configured.base_url)
        loaded = None if found is None else found[0].loaded()
        if found is None or loaded is None or loaded is found[1]:
            return None
        return f"{loaded.name} is loaded, and of group {found[0].name} one model at a time"

    # -- jobs ------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def using(self, task: str, context: Context) -> AsyncIterator[None]:
        """While a job of this task asks its server, if jobd runs that; raises TaskFailed if it cannot be had."""
        configured = self._config().tasks.get(task)
        found = None if configured is None or configured.run != "openai" else self._by_url.get(configured.base_url)
        if found is None:
            yield
            return
        group, server = found
        await self._enter(group, server, context)
        try:
            yield
        finally:
            server.uses -= 1
            server.idle_at = time.monotonic()
            group.note()

    async def _enter(self, group: _Group, server: ModelServer, context: Context) -> None:
        if not server.may_start(time.monotonic()):
            raise _cannot_be_had(server, context)
        use = _Use(server)
        group.waiting.append(use)
        group.note()
        try:
            with anyio.move_on_after(max(0.0, context.left_s - BEFORE_DEADLINE_S)):
                await use.is_decided.wait()
        except BaseException:
            if use.is_let_in:  # at the very moment at which the job was stopped
                server.uses -= 1
            raise
        finally:
            if use in group.waiting:
                group.waiting.remove(use)
            group.note()
        waited_s = time.monotonic() - use.asked_at
        if use.is_let_in:
            if waited_s >= TOLD_WAIT_S:
                context.log(f"waited {waited_s:.1f} s for the server of model {server.name}")
        elif use.is_decided.is_set():
            raise _cannot_be_had(server, context)
        else:
            context.log(f"the server of model {server.name} is not ready after {waited_s:.0f} s", "warning")
            raise Snoozed(SHORTEST_SNOOZE_S)

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, handle: Handle) -> None:
        self._handle = handle
        adopt_orphans()
        async with anyio.create_task_group() as tasks:
            for group in self._groups.values():
                tasks.start_soon(self._tend, group)
            handle.ready()
            self._tell()
            while not handle.stop.is_set():
                with anyio.move_on_after(BEAT_S):
                    await handle.stop.wait()
                handle.beat()
            tasks.cancel_scope.cancel()

    async def _tend(self, group: _Group) -> None:
        while True:
            await self._serve(group, await self._next(group))

    async def _next(self, group: _Group) -> ModelServer:
        """The server to start: that of the job that has waited longest, else one that always runs."""
        while True:
            now = time.monotonic()
            wanted = next_model(group.waits())
            always = [server for server in group.servers if server.settings.start == "always"]
            for server in group.servers:
                if server.name == wanted or (wanted is None and server in always and server.may_start(now)):
                    return server
            await group.wait_until(min((server.retry_at for server in always), default=math.inf))

    async def _serve(self, group: _Group, server: ModelServer) -> None:
        """One run of a server, from its start until nothing of it is left."""
        from jobd.model_servers.process import HealthCheck, ServerProcess  # only where there are such servers

        began_at = time.monotonic()
        self._enter_state(server, "starting")
        server.starts += 1
        health = HealthCheck(server.settings)
        process: ServerProcess | None = None
        why = ""
        try:
            if (status := await health.status()) is not None:
                why = (
                    f"another server answers at its base_url already (status {status}); end that one, or leave argv out"
                )
            else:
                process = ServerProcess(server.settings, self._data_dir, self._line_logger(server))
                server.pid = process.pid
                why = await self._follow(group, server, process, health, began_at)
        except OSError as error:
            server.is_unfit = error.errno not in EXHAUSTED and process is None
            why = f"cannot start {error.filename or server.settings.argv[0]}: {error.strerror}"
        finally:
            with anyio.CancelScope(shield=True):
                await health.close()
                if process is not None:
                    await self._end(group, server, process)
            server.pid = None
            self._enter_state(server, "stopped")
        if why:
            self._fail(group, server, process.why() if process is not None and why == _ENDED else why)

    async def _follow(
        self, group: _Group, server: ModelServer, process: ServerProcess, health: HealthCheck, began_at: float
    ) -> str:
        """Why the server failed; empty: it is to be stopped."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(process.follow)
            tasks.start_soon(_note_end, process, group)
            why = await self._until_up(server, process, health, began_at)
            if not why:
                self._is_ready(group, server, began_at)
                why = await self._until_over(group, server, process)
            tasks.cancel_scope.cancel()
        return why

    async def _until_up(self, server: ModelServer, process: ServerProcess, health: HealthCheck, began_at: float) -> str:
        deadline, pause_s, status = began_at + server.settings.start_timeout_s, FIRST_ASK_S, None
        while not process.ended.is_set():
            status = await health.status()
            if status == 200 and not process.ended.is_set():
                return ""
            if time.monotonic() >= deadline:
                answer = "it does not answer" if status is None else f"it answers {status}"
                return f"not ready after start_timeout_s = {server.settings.start_timeout_s:g}: {answer}"
            with anyio.move_on_after(min(pause_s, max(0.01, deadline - time.monotonic()))):
                await process.ended.wait()
            pause_s = min(LONGEST_ASK_S, pause_s * 1.5)
        return _ENDED

    async def _until_over(self, group: _Group, server: ModelServer, process: ServerProcess) -> str:
        """Let jobs in until the server has to go, and why if it failed."""
        while not process.ended.is_set():
            now = time.monotonic()
            turn = decide_turn(
                server.name,
                group.waits(),
                uses=server.uses,
                first_until=self._first_until(group, server),
                now=now,
            )
            for use in [use for use, is_let_in in zip(group.waiting, turn.lets_in, strict=True) if is_let_in]:
                group.waiting.remove(use)
                use.is_let_in = True
                server.uses += 1
                use.is_decided.set()
            idle_until = self._idle_until(server)
            if turn.is_over or now >= idle_until:
                return ""
            await group.wait_until(min(turn.again_at, idle_until))
        return _ENDED

    def _first_until(self, group: _Group, server: ModelServer) -> float:
        """When the spell of a loaded model ends."""
        return server.ready_at + spell_s(len(group.servers), self._config().openai.max_model_wait_s)

    def _idle_until(self, server: ModelServer) -> float:
        is_idle = server.settings.idle_stop_s and not server.uses
        return server.idle_at + server.settings.idle_stop_s if is_idle else math.inf

    def _is_ready(self, group: _Group, server: ModelServer, began_at: float) -> None:
        now = time.monotonic()
        server.ready_at = server.idle_at = now
        server.load_s = round(now - began_at, 3)
        self._enter_state(server, "ready")
        log.info("the server of model %s is ready after %.1f s", server.name, server.load_s, extra=FIELDS)
        if group.left is not None:
            last, told_at, stop_s = group.left
            group.left = None
            if last is not server:
                log.info(
                    "swap in group %s: %s for %s took %.1f s (stop %.1f s, start %.1f s)",
                    *(group.name, server.name, last.name, now - told_at, stop_s, server.load_s),
                    extra=FIELDS,
                )

    async def _end(self, group: _Group, server: ModelServer, process: ServerProcess) -> None:
        told_at = time.monotonic()
        self._enter_state(server, "stopping")
        is_hurried = self._handle is not None and self._handle.hurry
        await process.end(0.0 if is_hurried else server.settings.kill_after_s)
        if any(use.server is not server for use in group.waiting):
            group.left = server, told_at, time.monotonic() - told_at

    def _fail(self, group: _Group, server: ModelServer, why: str) -> None:
        now = time.monotonic()
        if server.ready_at and now - server.ready_at >= STEADY_S:
            server.failures = 0
        server.failures += 1
        server.ready_at = 0.0
        group.left = None
        delay_s = restart_delay_s(server.failures)
        server.retry_at = now + delay_s
        server.reason = why[:REASON_CHARACTERS]
        self._enter_state(server, "failed")
        log.warning(
            "the server of model %s failed, next start in %g s at the earliest: %s",
            *(server.name, delay_s, server.reason),
            extra=FIELDS,
        )
        for use in [use for use in group.waiting if use.server is server]:
            group.waiting.remove(use)
            use.is_decided.set()

    def _enter_state(self, server: ModelServer, state: ModelServerState) -> None:
        server.state = state
        if state in ("starting", "ready"):
            server.reason, server.is_unfit = None, False
        self._tell()

    def _tell(self) -> None:
        """For /readyz: a failed server leaves jobd ready, since all else works."""
        if self._handle is not None:
            self._handle.tell("ready: " + ", ".join(f"{each.model} {each.state}" for each in self.read()))

    def _line_logger(self, server: ModelServer) -> Callable[[str], None]:
        return lambda line: log.info("%s: %s", server.name, line, extra=FIELDS)


#: Why a server failed whose program has ended by itself; its exit code and last line say more.
_ENDED = "ended"


async def _note_end(process: ServerProcess, group: _Group) -> None:
    await process.ended.wait()
    group.note()


def _cannot_be_had(server: ModelServer, context: Context) -> TaskFailed:
    """What to raise: the job is put off until the server may be started again, at no cost to it."""
    message = f"the server of model {server.name} does not run: {server.reason}"
    if server.is_unfit or context.attempt > MOST_PUT_OFFS:
        return TaskFailed("model_server_failed", message, retryable=not server.is_unfit)
    delay_s = max(SHORTEST_SNOOZE_S, server.retry_at - time.monotonic())
    context.log(f"put off for {delay_s:.1f} s: {message}", "warning")
    return Snoozed(float(delay_s))
