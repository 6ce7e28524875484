"""A bell: rung by whoever has made work, waited for by whoever does it. Ringing costs nothing and never blocks."""

from __future__ import annotations

import anyio


class Bell:
    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def ring_at(self, event: anyio.Event) -> None:
        """Ring once this happens; a stop, most likely."""
        await event.wait()
        self.ring()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until it rings, at most so long; whether it did. A ring while nobody waited is not lost."""
        with anyio.move_on_after(max(0.0, timeout_s)):
            await self._rung.wait()
        rung, self._rung = self._rung.is_set(), anyio.Event() if self._rung.is_set() else self._rung
        return rung
