"""One at a time. It only saves work: nothing may rest on it.

For good (`leading`): a lease in Postgres that its holder renews. A leader that freezes, or whose host loses its power
or its network, is replaced when the lease is over, whatever Postgres still thinks of its connections. One that comes
back asks before it does more (`LeaderLease.check`), learns that another leads, and stands by.

The lease is judged by the clock of Postgres. If that clock is set forward, another node leads at once, and the old
leader learns of it at its next renewal; if it is set back, a lease that ends too late counts as over. So a step makes
two leaders for at most `RENEW_S`, and none for at most twice `TTL_S`.

For a short while (`leading_once`): a session lock.
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


class Names(NamedTuple):
    """Who asks for the lead; and who it was before, of whom nobody lives any more."""

    holder: str
    dead: tuple[str, ...] = ()


class LeaderLease:
    def __init__(self, database: Database, name: str, names: Names | None = None) -> None:
        self._database = database
        self._name = name
        self._names = names or Names(str(uuid.uuid4()))
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
            TAKE_LEAD, self._name, self._names.holder, TTL_S, list(self._names.dead), None
        )
        self.is_led = row["left_s"] > TTL_S - 2 * RENEW_S
        if row["leads"]:
            self._renewed_at = sent_at
        return bool(row["leads"])

    async def check(self) -> None:
        """For the leader, before it does anything: renew if overdue, as it is after a freeze; ends it if lost."""
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
        await self._database.execute(GIVE_UP_LEAD, self._name, self._names.holder)

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        with anyio.CancelScope() as self._leading:
            yield
        if self._leading.cancelled_caught:
            log.info("another node leads %s; standing by", self._name)

    async def _lose(self) -> None:
        self._leading.cancel()
        await anyio.lowlevel.checkpoint()  # for the leader's own task: it ends here


@contextlib.asynccontextmanager
async def leading(lease: LeaderLease, handle: Handle, tasks: TaskGroup) -> AsyncIterator[bool]:
    """The body runs while this node leads, and is ended when it does not any more; False: asked to stop before that."""
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
    """A session that holds the lock `key`, for a short while and without standing by: None if another holds it."""
    async with database.connection() as session:
        if not await session.fetchval("SELECT pg_try_advisory_lock($1)", key):
            yield None
            return
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
                await session.fetchval(UNLOCK, key)
