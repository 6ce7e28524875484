"""The ticket pollers, and the first two of them: readiness and scheduler.

Each works when its wakeup is set. Code that makes work on this node sets it; what other nodes made, what they gave up
and what a lost wakeup was for is found by one look for all four, which the readiness takes every `tickets.poll_s`.
Any number of nodes may run them: who works on an event or a work order holds its claim, and every write proves it.
What cannot be worked on is logged and left alone until its claim ends, so that it keeps nobody else waiting, the look
included.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

import anyio

from jobd.errors import ServerDown
from jobd.tickets.pollers.announce import announce
from jobd.tickets.pollers.claims import Claim, ClaimKeeper, OwnerNames
from jobd.tickets.pollers.look import Work, look_for_work
from jobd.tickets.pollers.schedule import find_ready_events, schedule
from jobd.tickets.pollers.take_back import free_claims_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from jobd.config.model import Config
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle
    from jobd.supervise.wakeup import Wakeup
    from jobd.tickets.service import Wakeups

log = logging.getLogger(__name__)

PAGE = 100
#: A poller shows at least so often that it is alive, however rarely it looks.
LONGEST_WAIT_S = 5.0
#: It looks at least so often without a wakeup (or at every `tickets.poll_s`, should that be longer).
UNASKED_S = 30.0
RELEASE_S = 2.0
#: How often claims are cleared away that a crash left on something that was finished.
SWEEP_S = 600.0


class Poller:
    """What the four have in common; each says what one look does."""

    #: Of the claims that it takes; None: it takes none.
    claims: ClaimKeeper | None = None

    def __init__(
        self, name: str, database: Database, config: Callable[[], Config], wakeups: Wakeups, wakeup: Wakeup
    ) -> None:
        self.name = name
        self._database = database
        self._config = config
        self._wakeups = wakeups
        self._wakeup = wakeup

    async def run(self, handle: Handle) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wakeup.set_when, handle.stop)
            if self.claims is not None:
                tasks.start_soon(self._keep_claims, self.claims)
            try:
                await self._begin()
                handle.ready()
                await self._look_until_stopped(handle)
            finally:
                await self._let_go()
            tasks.cancel_scope.cancel()

    async def run_once(self) -> bool:
        """Look once; True: there may be more to do at once."""
        raise NotImplementedError

    async def _begin(self) -> None:
        """What a killed jobd of this data directory had claimed is free at once, not when the claims end."""
        if self.claims is not None:
            await self.claims.take_back()

    async def _look_until_stopped(self, handle: Handle) -> None:
        while not handle.stop.is_set():
            is_full = await self.run_once()
            handle.beat()
            if not is_full:
                await self._wait(handle)

    async def _wait(self, handle: Handle) -> None:
        await self._wait_for_wakeup(handle, max(UNASKED_S, self._poll_s()))

    def _poll_s(self) -> float:
        return self._config().tickets.poll_s * random.uniform(0.8, 1.0)

    async def _wait_for_wakeup(self, handle: Handle, left_s: float) -> bool:
        """Wait at most so long; whether the wakeup was set."""
        while left_s > 0 and not await self._wakeup.wait(min(left_s, LONGEST_WAIT_S)):
            left_s -= LONGEST_WAIT_S
            handle.beat()
        return left_s > 0

    async def _keep_claims(self, claims: ClaimKeeper) -> None:
        await claims.keep_renewing()

    async def _let_go(self) -> None:
        """Others need not wait for claims of a poller that has stopped."""
        if self.claims is None:
            return
        with anyio.move_on_after(RELEASE_S, shield=True):
            try:
                await self.claims.release_all()
            except Exception as error:
                log.debug("claims of the %s end by themselves: %s", self.name, error)

    async def _apart(self, claims: Sequence[Claim], work: Callable[[Sequence[Claim]], Awaitable[None]]) -> None:
        """Work on all of them at once; if that fails, on each alone, so that one that is bad fails alone."""
        try:
            await work(claims)
        except ServerDown:
            raise
        except Exception as error:
            if len(claims) > 1:
                for claim in claims:
                    await self._apart([claim], work)
                return
            record = claims[0].record
            log.error(
                "the %s cannot work on %s %s and tries again when its claim ends",
                *(self.name, record.resource_type, record.resource_id),
                exc_info=error,
            )
        finally:
            if self.claims is not None and len(claims) == 1:
                self.claims.let_go(*claims)


class Readiness(Poller):
    def __init__(self, database: Database, config: Callable[[], Config], wakeups: Wakeups) -> None:
        super().__init__("readiness", database, config, wakeups, wakeups.readiness)
        self._swept_at = time.monotonic()
        self._look_at = 0.0

    async def _wait(self, handle: Handle) -> None:
        """Look for all four when it is time, however often this poller is woken meanwhile."""
        woken = False
        while not woken and not handle.stop.is_set():
            woken = await self._wait_for_wakeup(handle, self._look_at - time.monotonic())
            if time.monotonic() >= self._look_at:
                await self.look()
                self._look_at = time.monotonic() + self._poll_s()
                handle.beat()

    async def look(self) -> None:
        """Wake each poller that would find something to do."""
        work = await look_for_work(self._database)
        for name in Work.__struct_fields__:
            if getattr(work, name):
                getattr(self._wakeups, name).set()
        if time.monotonic() - self._swept_at > SWEEP_S:
            self._swept_at = time.monotonic()
            await free_claims_of(self._database, ())

    async def run_once(self) -> bool:
        done = await announce(self._database, most=PAGE)
        if done.announced:
            self._wakeups.scheduler.set()
        if done.announced or done.returned:
            self._wakeups.changed.set()
        return done.announced == PAGE or done.returned > 0


class Scheduler(Poller):
    claims: ClaimKeeper

    def __init__(self, database: Database, config: Callable[[], Config], wakeups: Wakeups, owners: OwnerNames) -> None:
        super().__init__("scheduler", database, config, wakeups, wakeups.scheduler)
        self.claims = ClaimKeeper(database, "EVENT", owners.of(self.name), config)

    async def run_once(self) -> bool:
        found = await find_ready_events(self._database, most=PAGE)
        if found:
            claimed = await self.claims.acquire(found)
            if claimed:
                await self._apart(claimed, self._schedule)
                self._wakeups.runner.set()
                self._wakeups.changed.set()
        return len(found) == PAGE

    async def _schedule(self, claims: Sequence[Claim]) -> None:
        held = [claim.record for claim in claims if not claim.is_lost]
        ended = await schedule(self._database, held)
        self.claims.let_go(*claims)
        # An event that another node ended before it was claimed here has a claim that no write gives up.
        await self.claims.release([claim for claim in claims if claim.resource_id not in ended])
