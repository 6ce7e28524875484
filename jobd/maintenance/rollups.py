"""Adds to the minute rollups what commits have left for them. Every node does it; no two take the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from jobd.lifecycle.rollups import roll_up

if TYPE_CHECKING:
    from jobd.store.postgres import Database
    from jobd.supervise.service import Handle

#: Seconds between two rounds: by so much the rollups are behind.
EVERY_S = 5.0
#: Rows of parts that are added in one commit; a commit that ends jobs leaves about one.
PAGE = 1_000


class RollUp:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self, handle: Handle) -> None:
        handle.ready()
        while not handle.stop.is_set():
            parts = await self.run_once()
            handle.beat()
            if parts < PAGE:
                with anyio.move_on_after(EVERY_S):
                    await handle.stop.wait()
        await self.run_once()

    async def run_once(self) -> int:
        """Add one page; how many rows it had."""
        return await roll_up(self._database, most=PAGE)
