"""Renews leases from a thread of its own while a handler keeps the event loop from doing so.

An `async def` that does not await stops everything in this process, the renewals of all other jobs included. The
watchdog is a thread with an event loop and a connection of its own. It sleeps and checks; only when the loop shows no
sign of life and a renewal is overdue by `OVERDUE` of the lease does it send the renewal that the loop would have sent.
Holders that are to stop (lease lost, job to be canceled) are stopped as soon as the loop turns again.

After `BLOCK_S` without a sign of the loop it stops: a jobd that hangs for good must lose its jobs to others.

Code that keeps the interpreter's lock, the GIL (a C extension that computes without releasing it), stops this thread
too, and nothing in this process can help then. Afterwards the watchdog says so and names the tasks that it may have
been: such a handler belongs in a process of its own, with `isolate = true`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

import anyio

from jobd.config.task_settings import shortest_heartbeat_s, shortest_lease_s
from jobd.lifecycle.heartbeat import heartbeat
from jobd.store.postgres import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import asyncpg

    from jobd.config.model import Config
    from jobd.job.model import LeaseLost
    from jobd.leases.jobs import Hold, JobLeases
    from jobd.lifecycle.heartbeat import Renewal
    from jobd.lifecycle.lease import LeaseProof
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Part of the lease time by which a renewal must be late before this thread sends it instead of the event loop.
OVERDUE = 0.25
#: Time between two signs of life of the event loop, and between two checks of the thread, as a part of the shortest
#: lease time.
CHECK = 0.05
#: Longest time between two checks in seconds, for long leases.
LONGEST_CHECK_S = 1.0
#: Missed signs of life from which on the event loop counts as blocked. One that only waits for Postgres misses none.
MISSED_BEATS = 3
#: Seconds without a sign of life after which the thread renews nothing more: a jobd that hangs for good must lose its
#: jobs to others.
BLOCK_S = 60.0


class RenewalLine(Protocol):
    """A connection to where leases are renewed; used in the watchdog's thread only."""

    async def renew(self, beats: Sequence[LeaseProof], ttl_s: float) -> Sequence[Renewal | LeaseLost]: ...

    def drop(self) -> None:
        """Close the connection, after an error or at the end; the next renewal opens another."""
        ...


class PostgresLine:
    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def renew(self, beats: Sequence[LeaseProof], ttl_s: float) -> Sequence[Renewal | LeaseLost]:
        if self._connection is None:
            self._connection = await connect(self._url)
        return await heartbeat(self._connection, beats, ttl_s=ttl_s)

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


class LeaseWatchdog:
    def __init__(self, line: RenewalLine, leases: JobLeases, config: Callable[[], Config]) -> None:
        self._line = line
        self._leases = leases
        self._config = config
        self._beat_at = 0.0
        #: When it last logged that the loop is blocked.
        self._logged_at = 0.0
        self._stopped = threading.Event()
        #: Number of renewals that the thread has sent.
        self.renewed = 0

    async def run(self, handle: Handle) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped.clear()
        self._beat_at = time.monotonic()
        thread = threading.Thread(target=self._watch, name="jobd-lease-guard", daemon=True)
        thread.start()
        handle.ready()
        try:
            while not handle.stop.is_set():
                with anyio.move_on_after(self._check_s()):
                    await handle.stop.wait()
                self._beat_at = time.monotonic()
                handle.beat()
        finally:
            self._stopped.set()

    def _check_s(self) -> float:
        return min(LONGEST_CHECK_S, shortest_lease_s(self._config()) * CHECK)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        # Plain asyncio: the loop of the daemon is not to be touched from here.
        asyncio.run(self._watch_until_stopped())

    async def _watch_until_stopped(self) -> None:
        while not self._stopped_while_waiting():
            overdue = self._overdue()
            if not overdue:
                continue
            try:
                with anyio.fail_after(shortest_lease_s(self._config()) / 2):
                    await self._renew(overdue)
            except (Exception, asyncio.CancelledError) as error:
                log.warning("a handler blocks the event loop, and leases are not renewed: %s", type(error).__name__)
                self._line.drop()
        self._line.drop()

    def _stopped_while_waiting(self) -> bool:
        suspects, check_s, slept_at = self._suspects(), self._check_s(), time.monotonic()
        is_stopped = self._stopped.wait(check_s)
        stood_s = time.monotonic() - slept_at - check_s
        if stood_s > shortest_heartbeat_s(self._config()):
            _hint(stood_s, sorted(suspects | self._suspects()))
        return is_stopped

    def _suspects(self) -> set[str]:
        """The tasks whose handlers run in this process now."""
        tasks = self._config().tasks
        held = {hold.job.task for hold in self._leases.all()}
        return {name for name in held if name in tasks and tasks[name].run == "python" and not tasks[name].isolate}

    def _overdue(self) -> list[Hold]:
        """Empty unless the loop is blocked and a renewal overdue; then all that are past half a heartbeat interval."""
        leases, now = self._config().leases, time.monotonic()
        if not self._check_s() * MISSED_BEATS < now - self._beat_at < BLOCK_S:
            return []
        holds = self._leases.kept()
        if not any(now - hold.renewed_at > hold.heartbeat_s(leases) + hold.ttl_s(leases) * OVERDUE for hold in holds):
            return []
        return [hold for hold in holds if now - hold.renewed_at > hold.heartbeat_s(leases) / 2]

    async def _renew(self, holds: Sequence[Hold]) -> None:
        sent_at, leases = time.monotonic(), self._config().leases
        answers = await self._line.renew([hold.beat for hold in holds], leases.ttl_s)
        if len(answers) != len(holds):
            raise ValueError(f"{len(answers)} answers to {len(holds)} renewals")
        self.renewed += len(holds)
        self._leases.settle(holds, answers, sent_at, leases, self._call_in_loop)
        level = logging.WARNING if self._logged_at < self._beat_at else logging.DEBUG  # once for each block
        self._logged_at = sent_at
        log.log(level, "a handler blocks the event loop; a thread renews %d leases for it", len(holds))

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)


def _hint(stood_s: float, suspects: Sequence[str]) -> None:
    """Log that the process stood still, and which tasks may have held the GIL; none: the machine stood still too."""
    if not suspects:
        log.warning("this process stood still for %.1f s, and no lease was renewed meanwhile", stood_s)
        return
    log.warning(
        "a handler of %s keeps the interpreter's lock: nothing else ran for %.1f s, and no lease was renewed;"
        " isolate = true in %s gives it a process of its own",
        " or ".join(suspects),
        stood_s,
        " or ".join(f"[tasks.{name}]" for name in suspects),
    )
