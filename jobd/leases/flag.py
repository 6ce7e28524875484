"""A flag that can be waited for. Its `anyio.Event` is made by the first `wait`: most flags are never waited for."""

from __future__ import annotations

import anyio


class Flag:
    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: anyio.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        if not self._is_set:
            self._event = self._event or anyio.Event()
            await self._event.wait()
