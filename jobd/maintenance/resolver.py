"""The resolver: lets jobs go whose dependencies have ended, and moves the counters of groups.

Every node runs one. They pass over rows that another has locked (SKIP LOCKED), so several do no harm: see
`lifecycle/settle`. A commit of this node that ends jobs wakes it, but only while something is waited for at all; what
other nodes leave undone, because they were killed, is found by a poll.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import asyncpg

from jobd.lifecycle.depend import is_linked
from jobd.lifecycle.inputs import fill_payloads
from jobd.lifecycle.notices import CANCELED, CLAIMED, ENDED, ENQUEUED, REAPED, SEALED
from jobd.lifecycle.settle import PAGE, SettledPage, look_for_links, settle
from jobd.supervise.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Config
    from jobd.engine.engine import Engine
    from jobd.lifecycle.notices import Changes
    from jobd.lifecycle.settle import LinksAhead
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

log = logging.getLogger(__name__)

#: Seconds between two looks without a wakeup: a job may be that late if the node that ended its last dependency was
#: killed just then.
POLL_S = 1.0
#: Commits that may end jobs.
ENDS = frozenset({ENDED, CANCELED, REAPED, CLAIMED})


class Resolver:
    def __init__(self, database: Database, engine: Engine, config: Callable[[], Config]) -> None:
        self._database = database
        self._engine = engine
        self._config = config
        self._wakeup = Wakeup()
        #: Something is waited for, so that ends of jobs matter.
        self._has_open = True
        #: How often commits of this node have brought something that is waited for.
        self._brought = 0

    def committed(self, changes: Changes) -> None:
        """A commit of this node has changed jobs."""
        if changes.kind is ENQUEUED:
            if any(map(is_linked, changes.items)):
                self.wake()
        elif changes.kind is SEALED:
            self.wake()
        elif self._has_open and changes.kind in ENDS:
            self._wakeup.set()

    def wake(self) -> None:
        """A commit of this node has brought something that is waited for, or has sealed a group."""
        self._brought += 1
        self._has_open = True
        self._wakeup.set()

    async def run(self, handle: Handle) -> None:
        handle.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wakeup.set_when, handle.stop)
            while not handle.stop.is_set():
                await self._wakeup.wait(POLL_S)
                if not handle.stop.is_set():
                    await self.run_once()
                handle.beat()

    async def run_once(self) -> int:
        """Work off all that there is; how many ends."""
        ends = 0
        while (await self._look()).has_settled:
            settled = await self._settle()
            ends += settled.ends
            while settled.ends == PAGE:
                settled = await self._settle()
                ends += settled.ends
            if not settled.ends:  # others work on what is left
                break
        return ends

    async def _look(self) -> LinksAhead:
        brought = self._brought
        ahead = await look_for_links(self._database)
        if brought == self._brought:  # else something came after the look
            self._has_open = ahead.has_open or ahead.has_settled
        return ahead

    async def _settle(self) -> SettledPage:
        limit = self._config().limits.payload_bytes
        try:
            async with self._database.connection() as connection:
                settled = await settle(connection, fill=lambda session, ids: fill_payloads(session, ids, limit=limit))
        except asyncpg.DeadlockDetectedError:
            log.debug("a deadlock undid a page of ends; it is tried again")
            return SettledPage(0, [])
        self._engine.let_go(settled)
        return settled
