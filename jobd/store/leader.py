"""Leader election: one node at a time does the work. It only saves work; correctness must not depend on it.

For a service (`leading`): a lease in Postgres that its holder renews. A leader that freezes, or whose host loses power
or network, is replaced when the lease expires, even if Postgres still counts it as connected. A leader that comes back
checks its lease before it goes on (`LeaderLease.check`), learns that another leads, and stands by.

The lease is judged by the clock of Postgres. If that clock is set forward, another node leads at once, and the old
leader learns of it at its next renewal; if it is set back, a lease that ends too late counts as over. So a step of the
clock makes two leaders for at most `RENEW_S`, and none for at most twice `TTL_S`.

For one action (`leading_once`): a session-level advisory lock.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.lowlevel

from jobd.store.clock import boot_clock_s
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import TaskGroup

    from jobd.store.postgres import Database
    from jobd.store.session import Connection
    from jobd.supervise.service import Handle

TAKE_LEAD = statement("take_lead", "jobd.store")
GIVE_UP_LEAD = statement("give_up_lead", "jobd.store")
UNLOCK = "SELECT pg_advisory_unlock($1)"

#: Seconds after which a leader that does not renew its lease is replaced.
TTL_S = 10.0
#: Seconds between two renewals: three fit into a lease.
RENEW_S = 3.0
#: Seconds between two checks of a node that stands by whether the lease is over.
STAND_BY_S = 1.0
#: Seconds for a leader that stops to give its lease up, so that the next need not wait for its end.
GIVE_UP_S = 1.0

log = logging.getLogger(__name__)


#: Begins the owner_id of every node: a lease of such an owner is held by the slots of a node. No worker may have a name
#: that begins so. (reap.sql and claim.sql go by the same.)
NODE_PREFIX = "slots:"


class OwnerNames(NamedTuple):
    """The owner_id of leases: one for each run of jobd, never used twice."""

    owner_id: str
    #: Those of this data directory's earlier runs, which are known to be dead: their leases may be taken at once.
    dead: tuple[str, ...] = ()

    def of(self, service: str) -> OwnerNames:
        """The names of one service of this node, where each service holds leases of its own."""
        return OwnerNames(f"{self.owner_id}:{service}", tuple(f"{name}:{service}" for name in self.dead))


class LeaderLease:
    def __init__(self, database: Database, name: str, names: OwnerNames | None = None) -> None:
        self._database = database
        self._name = name
        self._names = names or OwnerNames(str(uuid.uuid4()))
        #: When the last renewal that succeeded was sent, by the boot clock.
        self._renewed_at = 0.0
        #: Cancelled when the lead is lost: ends the body of `leading`.
        self._leading = anyio.CancelScope()
        #: Whether some node holds a lease that was renewed in time.
        self.is_led = False

    async def take(self) -> bool:
        """Take the lead, or renew it; False if another has it."""
        sent_at = boot_clock_s()
        (row,) = await self._database.fetch(
            TAKE_LEAD, self._name, self._names.owner_id, TTL_S, list(self._names.dead), None
        )
        self.is_led = row["left_s"] > TTL_S - 2 * RENEW_S
        if row["leads"]:
            self._renewed_at = sent_at
        return bool(row["leads"])

    async def check(self) -> None:
        """Called by the leader before each action: renews an overdue lease (after a freeze); ends `leading` if lost."""
        if boot_clock_s() - self._renewed_at > TTL_S - RENEW_S and not await self.take():
            await self._lose()

    async def keep(self, keeping: anyio.CancelScope) -> None:
        """Renew until cancelled, or until it is lost or could not be renewed in time."""
        with keeping:
            while True:
                await anyio.sleep(RENEW_S)
                try:
                    with anyio.fail_after(RENEW_S):
                        stands = await self.take()
                except Exception as error:
                    log.debug("the lead of %s was not renewed: %s", self._name, error)
                    stands = boot_clock_s() - self._renewed_at < TTL_S
                if not stands:
                    await self._lose()

    async def give_up(self) -> None:
        await self._database.execute(GIVE_UP_LEAD, self._name, self._names.owner_id)

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        with anyio.CancelScope() as self._leading:
            yield
        if self._leading.cancelled_caught:
            log.info("another node leads %s; standing by", self._name)

    async def _lose(self) -> None:
        self._leading.cancel()
        await anyio.lowlevel.checkpoint()  # if this is the leader's own task, the cancellation ends it here


@contextlib.asynccontextmanager
async def leading(lease: LeaderLease, handle: Handle, tasks: TaskGroup) -> AsyncIterator[bool]:
    """Waits for the lead, runs the body and cancels it when the lead is lost; yields False if stopped before it led."""
    while not await lease.take():
        handle.tell("standing by" if lease.is_led else "no leader", is_impaired=not lease.is_led)
        handle.beat()
        with anyio.move_on_after(STAND_BY_S):
            await handle.stop.wait()
        if handle.stop.is_set():
            yield False
            return
    handle.tell("")
    keeping = anyio.CancelScope()
    try:
        with lease.leading():
            tasks.start_soon(lease.keep, keeping)
            yield True
    finally:
        keeping.cancel()
        with anyio.CancelScope(shield=True), contextlib.suppress(Exception), anyio.move_on_after(GIVE_UP_S):
            await lease.give_up()


@contextlib.asynccontextmanager
async def leading_once(database: Database, key: int) -> AsyncIterator[Connection | None]:
    """A session that holds the advisory lock `key`; None if another holds it: it does not wait."""
    async with database.connection() as session:
        if not await session.fetchval("SELECT pg_try_advisory_lock($1)", key):
            yield None
            return
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                await session.fetchval(UNLOCK, key)
