"""How full Redis is, and what follows: the fuller, the sooner it forgets finished jobs. Waiting ones are few anyway.

Finished jobs are kept in Redis for those who read only Redis; everyone else asks jobd, which asks Postgres. At
thousands of jobs a second no memory holds a day of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis.asyncio

LOOK_S = 0.5
#: From this share of its memory on, finished jobs are kept for so many seconds at most.
STEPS = ((0.85, 1), (0.7, 10), (0.5, 60))


class Memory:
    def __init__(self) -> None:
        self._next_look = 0.0
        #: How long finished jobs may be kept; None: as long as they ask for.
        self.most_s: int | None = None

    async def look(self, client: redis.asyncio.Redis) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        info: dict[str, Any] = await client.info("memory")
        self.most_s = most_kept_s(int(info["used_memory"]), int(info.get("maxmemory", 0)))


def most_kept_s(used: int, limit: int) -> int | None:
    """Without a limit (0) everything is kept."""
    share = used / limit if limit else 0.0
    return next((seconds for step, seconds in STEPS if share >= step), None)
