"""A wakeup: set by the code that has made work, waited for by the one task that does the work. Setting never blocks."""

from __future__ import annotations

import anyio


class Wakeup:
    """An event that resets itself: a wakeup set while nobody waits is kept for the next wait, several count as one."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Forget a wakeup that was set: what it was about is going to be seen in any case."""
        if self._event.is_set():
            self._event = anyio.Event()

    async def set_when(self, event: anyio.Event) -> None:
        """Set this wakeup when the event happens, which is usually the stop of a service."""
        await event.wait()
        self.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the wakeup, at most `timeout_s`, and reset it; whether it was set."""
        with anyio.move_on_after(max(0.0, timeout_s)):
            await self._event.wait()
        was_set = self._event.is_set()
        if was_set:
            self._event = anyio.Event()
        return was_set
