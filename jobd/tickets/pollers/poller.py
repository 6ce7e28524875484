"""What the four ticket pollers have in common: when they work, and how they hold and give up claims.

Each works when its wakeup is set. Code that makes work on this node sets it. Work made or given up by other nodes, or
whose wakeup was lost, is found by one statement for all four, which readiness runs every `tickets.poll_s`.
Any number of nodes may run them: a poller that works on an event or a work order holds its claim, and every write
proves the claim. An event or work order that fails is logged and left until its claim expires, so that it blocks no
other.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

import anyio

from jobd.errors import ServerDown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from jobd.config.model import Config
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle
    from jobd.supervise.wakeup import Wakeup
    from jobd.tickets.pollers.claims import Claim, ClaimKeeper
    from jobd.tickets.wakeups import Wakeups

log = logging.getLogger(__name__)

#: Most events, tickets or work orders that a poller takes in one statement.
PAGE = 100
#: Longest time in seconds between two signs of life for the supervisor, however rarely the poller checks.
LONGEST_WAIT_S = 5.0
#: Longest time in seconds between two checks without a wakeup (or `tickets.poll_s`, if that is longer): readiness wakes
#: the others, so this only helps when that poller does not run.
UNASKED_S = 30.0
#: Time in seconds to release claims when a poller stops; after that they expire.
RELEASE_S = 2.0


class Poller:
    """One step of a ticket from TODO to DONE; `run_once` does whatever there is to do."""

    #: The claims that it holds; None: it needs none.
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
                await self._work_until_stopped(handle)
            finally:
                await self._let_go()
            tasks.cancel_scope.cancel()

    async def run_once(self) -> bool:
        """Do what there is to do, up to one page; True: there may be more to do at once."""
        raise NotImplementedError

    async def _begin(self) -> None:
        """Free at once what a killed jobd of this data directory had claimed, instead of when those claims expire."""
        if self.claims is not None:
            await self.claims.free_dead()

    async def _work_until_stopped(self, handle: Handle) -> None:
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
        """Wait at most `left_s`; whether the wakeup was set."""
        while left_s > 0 and not await self._wakeup.wait(min(left_s, LONGEST_WAIT_S)):
            left_s -= LONGEST_WAIT_S
            handle.beat()
        return left_s > 0

    async def _keep_claims(self, claims: ClaimKeeper) -> None:
        await claims.keep_renewing()

    async def _let_go(self) -> None:
        """Release all claims, so that other nodes need not wait for their expiry."""
        if self.claims is None:
            return
        with anyio.move_on_after(RELEASE_S, shield=True):
            try:
                await self.claims.release_all()
            except Exception as error:
                log.debug("claims of the %s end by themselves: %s", self.name, error)

    async def _apart(self, claims: Sequence[Claim], work: Callable[[Sequence[Claim]], Awaitable[None]]) -> None:
        """Work on all claims in one batch; if that fails, on each alone, so that a bad one does not fail the others."""
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
