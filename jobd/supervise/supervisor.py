"""Keeps the tree of services alive: starts it in order of need, mends it, and takes it down in order.

A service that ends unasked is started again as `restart.py` decides, and everything that stands on it is ended and
started again behind it. A needed service that keeps failing ends the whole program (`GaveUp`): a new process may do
better, and the service manager sees the exit code. One that is not needed is tried again for ever; jobd is degraded
without it. `StartRefused` ends the program at once (a second try would meet the same wall), unless jobd was ready
before and the service is not needed. A drain goes through the phases one by one; a service that has not returned by
the deadline is cancelled. The servers come last and have `SERVER_STOP_S` of their own.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from typing import TYPE_CHECKING

import anyio

from jobd.errors import GaveUp, JobdError, ServerDown, StartRefused, root_cause
from jobd.supervise.restart import Failures, GiveUp, RestartPolicy, after_failure
from jobd.supervise.service import Handle, Phase, Spec, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobd.host.systemd import Notifier

#: What those who write down the outcome get at least, even if the work before them used up the drain.
FLUSH_S = 0.5
#: What the servers get to stop, after the drain's own time.
SERVER_STOP_S = 4.0
#: Seconds between two checks for stuck services when systemd's watchdog does not set the interval.
WATCH_S = 10.0

log = logging.getLogger(__name__)


class _Cell:
    """A service's place in the tree and what is known of it now."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.state = State.WAITING
        self.error = ""
        self.failures = Failures()
        #: Number of runs that were begun.
        self.runs = 0
        self.handle: Handle | None = None
        self.stop_asked = anyio.Event()
        #: Cancelled to end the present run, or the present wait before the next.
        self.scope: anyio.CancelScope | None = None
        self.interrupted = False
        self.became_ready = anyio.Event()
        self.ended = anyio.Event()

    @property
    def note(self) -> str:
        return self.handle.note if self.handle is not None and self.state is State.READY else ""


class Supervisor:
    def __init__(
        self,
        tree: Sequence[Spec] = (),
        *,
        notifier: Notifier,
        drain_s: Callable[[], float],
        policy: RestartPolicy | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._cells: dict[str, _Cell] = {}
        self.plant(tree)
        self._notifier = notifier
        self.drain_s = drain_s
        self._policy = policy or RestartPolicy()
        self._on_ready = on_ready
        self._stop_asked = anyio.Event()
        self._hurry = anyio.Event()
        self._told_to_stop = False
        self._failure: JobdError | None = None
        self._was_ready = False
        self.draining = False

    def plant(self, tree: Sequence[Spec]) -> None:
        """Set the tree, before `run`; a service in it may want to know its supervisor."""
        self._cells = {spec.name: _Cell(spec) for spec in _in_order_of_need(tree)}

    # -- what others see ---------------------------------------------------------------------------------------

    def states(self) -> dict[str, State]:
        return {name: cell.state for name, cell in self._cells.items()}

    def notes(self) -> dict[str, str]:
        """Each service's state, or what a ready one says of itself."""
        return {name: cell.note or cell.state.value for name, cell in self._cells.items()}

    def restarts(self) -> dict[str, int]:
        """How often each service was started again: after a failure of its own or of one that it needs."""
        return {name: max(0, cell.runs - 1) for name, cell in self._cells.items()}

    def is_ready(self) -> bool:
        """Every needed service is up, and each of the others is up or has failed (see `is_degraded`)."""
        return not self.draining and all(
            cell.state is State.READY or self._can_do_without(cell) for cell in self._cells.values()
        )

    def is_degraded(self) -> bool:
        return self.is_ready() and any(
            cell.state is not State.READY or (cell.handle is not None and cell.handle.is_impaired)
            for cell in self._cells.values()
        )

    def stuck(self) -> list[str]:
        """The ready services whose loop has not turned for longer than it may."""
        now = time.monotonic()
        return [
            name
            for name, cell in self._cells.items()
            if cell.state is State.READY and cell.handle and now - cell.handle.beat_at > cell.spec.stall_s
        ]

    def _can_do_without(self, cell: _Cell) -> bool:
        """A first start waits for all services; one that is not needed only until it, or what it needs, has failed."""
        has_failed = cell.failures.level > 0
        return not cell.spec.needed and (
            self._was_ready or has_failed or any(self._can_do_without(self._cells[name]) for name in cell.spec.needs)
        )

    # -- what others ask ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Drain, then let `run` return. Asked twice: stop at once."""
        if self._told_to_stop:
            self._hurry.set()
        self._told_to_stop = True
        self._stop_asked.set()

    @property
    def hurried(self) -> bool:
        return self._hurry.is_set()

    async def run(self) -> None:
        """Run the tree until stopped; raises what made it impossible to go on."""
        async with anyio.create_task_group() as tasks:
            for cell in self._cells.values():
                tasks.start_soon(self._keep, cell, name=cell.spec.name)
            tasks.start_soon(self._watch)
            await self._stop_asked.wait()
            await self._drain()
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    # -- keeping one service alive -----------------------------------------------------------------------------

    async def _keep(self, cell: _Cell) -> None:
        try:
            delay_s = 0.0
            while not cell.stop_asked.is_set():
                cell.state = State.WAITING
                with anyio.CancelScope() as cell.scope:
                    await anyio.sleep(delay_s)
                    await self._needs_are_ready(cell)
                if cell.stop_asked.is_set():
                    break
                error = await self._run_once(cell)
                delay_s = 0.0
                if error is not None:
                    delay_s = self._delay_after(cell, error)
        finally:
            cell.state = State.STOPPED
            cell.ended.set()

    async def _run_once(self, cell: _Cell) -> Exception | None:
        """One run; None if it ended as it should: asked to stop, or cut short with what it stands on."""
        cell.state = State.STARTING
        cell.runs += 1
        cell.interrupted = False
        cell.handle = Handle(lambda: self._is_up(cell))
        error: Exception | None = None
        try:
            with anyio.CancelScope() as cell.scope:
                await cell.spec.service.run(cell.handle)
        except Exception as raised:
            error = root_cause(raised)
        except anyio.get_cancelled_exc_class():
            # Only a cancellation of ours may pass; any other would end the whole tree without a word.
            if anyio.current_effective_deadline() == -math.inf:
                raise
            error = RuntimeError("was cancelled from within")
        finally:
            cell.state = State.WAITING
            if cell.became_ready.is_set():  # else somebody may be waiting for this very event
                cell.became_ready = anyio.Event()
            self._interrupt_dependents(cell)
        if cell.stop_asked.is_set() or cell.interrupted:
            if error is not None:
                log.debug("%s ended with an error while stopping: %s", cell.spec.name, error)
            return None
        return error or RuntimeError("returned without being asked to")

    def _is_up(self, cell: _Cell) -> None:
        cell.state = State.READY
        cell.error = ""
        cell.became_ready.set()
        log.debug("%s is ready", cell.spec.name, extra={"service": cell.spec.name})
        self._tell()

    async def _needs_are_ready(self, cell: _Cell) -> None:
        while missing := [name for name in cell.spec.needs if self._cells[name].state is not State.READY]:
            await self._cells[missing[0]].became_ready.wait()

    def _interrupt_dependents(self, cell: _Cell) -> None:
        for other in self._cells.values():
            if cell.spec.name in other.spec.needs and other.state in (State.STARTING, State.READY):
                if other.scope is not None and not other.stop_asked.is_set():
                    other.interrupted = True
                    other.scope.cancel()
        self._tell()

    def _delay_after(self, cell: _Cell, error: Exception) -> float:
        name, cell.error = cell.spec.name, str(error) or type(error).__name__
        if isinstance(error, StartRefused) and (cell.spec.needed or not self._was_ready):
            self._give_up(error)
            return 0.0
        cell.failures, decision = after_failure(
            self._policy,
            cell.failures,
            now=time.monotonic(),
            unit=random.random(),
            patient=isinstance(error, ServerDown) or not cell.spec.needed,
        )
        self._tell()  # a first start does not wait any longer for one that is not needed
        if isinstance(decision, GiveUp):
            self._give_up(GaveUp(f"{name} keeps failing, last with: {cell.error}; see `jobd doctor`"))
            return 0.0
        unexpected = not isinstance(error, JobdError)
        log.warning(
            "%s failed: %s; starting it again%s",
            name,
            cell.error,
            f" in {decision.delay_s:.1f} s" if decision.delay_s else "",
            extra={"service": name},
            exc_info=error if unexpected and log.isEnabledFor(logging.DEBUG) else None,
        )
        return decision.delay_s

    def _give_up(self, error: JobdError) -> None:
        if self._failure is None:
            self._failure = error
        for cell in self._cells.values():
            if cell.state is State.WAITING:
                cell.stop_asked.set()
        self._stop_asked.set()

    # -- stopping ----------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        self.draining = True
        self._notifier.send("STOPPING=1", "STATUS=draining")
        deadline = time.monotonic() + self.drain_s()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hurry_all)
            for phase in Phase:
                if phase is Phase.FLUSH:
                    deadline = max(deadline, time.monotonic() + FLUSH_S)
                if phase is Phase.SERVERS:
                    deadline = time.monotonic() + SERVER_STOP_S
                for cell in reversed(list(self._cells.values())):
                    if cell.spec.phase is phase:
                        await self._stop_one(cell, deadline)
            tasks.cancel_scope.cancel()

    async def _stop_one(self, cell: _Cell, deadline: float) -> None:
        cell.stop_asked.set()
        if cell.handle is not None:
            cell.handle.hurry = self._hurry.is_set()
            cell.handle.stop.set()
        if cell.state is State.WAITING and cell.scope is not None:
            cell.scope.cancel()
        with anyio.move_on_after(max(0.0, deadline - time.monotonic())):
            await cell.ended.wait()
        if cell.ended.is_set():
            return
        if not self._hurry.is_set():
            log.warning("%s did not stop in time and is cut off", cell.spec.name, extra={"service": cell.spec.name})
        if cell.scope is not None:
            cell.scope.cancel()
        await cell.ended.wait()

    async def _hurry_all(self) -> None:
        await self._hurry.wait()
        log.warning("stopping at once")
        for cell in self._cells.values():
            cell.stop_asked.set()
            if cell.handle is not None:
                cell.handle.hurry = True
            if cell.scope is not None:
                cell.scope.cancel()

    # -- reporting --------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        if self.draining:
            return
        ready = self.is_ready()
        if ready and not self._was_ready:
            self._was_ready = True
            self._notifier.send("READY=1")
            if self._on_ready is not None:
                self._on_ready()
        waiting = [name for name, state in self.states().items() if state is not State.READY]
        self._notifier.send(f"STATUS=waiting for {', '.join(waiting)}" if waiting else "STATUS=ready")

    async def _watch(self) -> None:
        """Feed systemd's watchdog, but only while every ready service shows progress."""
        pace_s = min(WATCH_S, (self._notifier.watchdog_s or WATCH_S * 2) / 2)
        while True:
            stuck = self.stuck()
            if stuck:
                log.error("no progress in: %s", ", ".join(stuck))
            else:
                self._notifier.send("WATCHDOG=1")
            await anyio.sleep(pace_s)


def _in_order_of_need(tree: Sequence[Spec]) -> list[Spec]:
    """The tree with every service behind those it needs; refuses unknown names and circles."""
    left = {spec.name: spec for spec in tree}
    if len(left) != len(tree):
        raise ValueError("two services have one name")
    ordered: list[Spec] = []
    while left:
        placed = {spec.name for spec in ordered}
        free = [spec for spec in left.values() if placed.issuperset(spec.needs)]
        if not free:
            raise ValueError(f"services need each other or something unknown: {', '.join(left)}")
        ordered.append(left.pop(free[0].name))
    return ordered


def exit_in_any_case(after_s: float) -> None:
    """A handler that blocks the loop must not keep the machine from shutting down; the servers are found by lock."""

    def leave() -> None:
        log.critical("did not stop within %.1f s; leaving", after_s)
        os._exit(70)

    timer = threading.Timer(after_s, leave)
    timer.daemon = True
    timer.start()
