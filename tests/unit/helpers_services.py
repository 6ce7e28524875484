"""Services that do what a test says, and a supervisor run under watch."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from jobd.host.systemd import Notifier
from jobd.supervise.restart import RestartPolicy
from jobd.supervise.service import Handle, Phase, Service, Spec
from jobd.supervise.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

DEADLINE_S = 10.0
#: Backs off for next to no time, so that a test need not wait.
QUICK = RestartPolicy(base_s=0.0001, cap_s=0.001)


class Scripted:
    """Starts, is ready, and stops when told to; writes each step down in the diary that it shares with others."""

    def __init__(self, name: str, diary: list[str] | None = None, *, held: bool = False) -> None:
        self.name = name
        self.diary = diary if diary is not None else []
        self.starts = 0
        #: Errors that the next runs begin with.
        self.failing: list[BaseException] = []
        self.handle: Handle | None = None
        self._may_be_ready = anyio.Event()
        self._crash: BaseException | None = None
        self._crashed = anyio.Event()
        if not held:
            self._may_be_ready.set()

    async def run(self, handle: Handle) -> None:
        self.handle = handle
        self.starts += 1
        self._crashed = anyio.Event()
        self.diary.append(f"{self.name} starts")
        if self.failing:
            raise self.failing.pop(0)
        await self._may_be_ready.wait()
        self.diary.append(f"{self.name} is ready")
        handle.ready()
        try:
            await self.work(handle)
        except anyio.get_cancelled_exc_class():
            self.diary.append(f"{self.name} is cut off")
            raise
        self.diary.append(f"{self.name} ends")

    async def work(self, handle: Handle) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._raise_when_crashed)
            await handle.stop.wait()
            tasks.cancel_scope.cancel()

    def let_be_ready(self) -> None:
        self._may_be_ready.set()

    def crash(self, error: BaseException) -> None:
        self._crash = error
        self._crashed.set()

    async def _raise_when_crashed(self) -> None:
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash


class Deaf(Scripted):
    """Never heeds a stop; only being cancelled ends it."""

    async def work(self, handle: Handle) -> None:
        await anyio.sleep_forever()


class Run:
    """How a supervisor's run came out."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: BaseException | None = None

    async def follow(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.run()
        except Exception as error:
            self.error = error
        self.ended.set()


@asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[Run]:
    """Run it, end it after the test if it still runs, and see that it left no task behind."""
    before = asyncio.all_tasks()
    run = Run()
    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.follow, supervisor)
            yield run
            if not run.ended.is_set():
                supervisor.stop()
                supervisor.stop()
            await run.ended.wait()
    assert asyncio.all_tasks() <= before


def spec(
    service: Service,
    name: str = "",
    *needs: str,
    phase: Phase = Phase.WORK,
    stall_s: float = DEADLINE_S,
    needed: bool = True,
) -> Spec:
    name = name or (service.name if isinstance(service, Scripted) else "service")
    return Spec(name=name, service=service, phase=phase, needs=needs, stall_s=stall_s, needed=needed)


def supervise(
    tree: Sequence[Spec],
    *,
    drain_s: float = DEADLINE_S,
    policy: RestartPolicy = QUICK,
    environ: dict[str, str] | None = None,
    on_ready: Callable[[], None] | None = None,
) -> Supervisor:
    return Supervisor(tree, notifier=Notifier(environ or {}), drain_s=lambda: drain_s, policy=policy, on_ready=on_ready)
