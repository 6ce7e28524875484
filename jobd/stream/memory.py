"""How full Redis is, and what follows: the fuller, the sooner it forgets finished jobs. Waiting ones are few anyway.

Finished jobs are kept in Redis for those who read only Redis; everyone else asks jobd, which asks Postgres. At
thousands of jobs a second no memory holds a day of them.

That does not help against what is there already. When Redis is nearly full, or refuses to write, room is made: first
event streams are cut down to their last entry, the largest first, then finished jobs are deleted.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from jobd.stream.keys import EVENTS_SUFFIX, JOB_PREFIX
from jobd.stream.project import TRIM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis.asyncio

log = logging.getLogger(__name__)

#: Seconds between two checks of the memory that Redis uses.
LOOK_S = 0.5
#: (share of `maxmemory`, most seconds that finished jobs are kept in Redis from there on)
STEPS = ((0.85, 1), (0.7, 10), (0.5, 60))
#: Share of `maxmemory` from which on room is made by deleting finished jobs and cutting event streams.
NEARLY_FULL = 0.9
#: Share of `maxmemory` down to which room is made.
ROOMY = 0.6
#: Shortest time in seconds between two rounds of making room: each scans every key.
ROUND_S = 5.0
#: Keys of one SCAN call.
PAGE = 500
#: Event streams smaller than this are left alone, in bytes: cutting them down would free next to nothing.
SMALL = 4096


class Memory:
    def __init__(self) -> None:
        self._next_look = 0.0
        self._next_round = 0.0
        #: How long finished jobs may be kept; None: as long as they ask for.
        self.most_s: int | None = None

    async def look(self, client: redis.asyncio.Redis) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        used, limit = await _used(client)
        self.most_s = most_kept_s(used, limit)
        if limit and used >= limit * NEARLY_FULL and time.monotonic() >= self._next_round:
            await self.make_room(client)

    async def make_room(self, client: redis.asyncio.Redis) -> None:
        """Free memory until Redis is roomy again, or nothing is left that may go."""
        self._next_round = time.monotonic() + ROUND_S
        used, limit = await _used(client)
        cut = await self._cut_event_streams(client, int(limit * ROOMY))
        forgotten = await self._forget_finished_jobs(client, int(limit * ROOMY))
        log.warning(
            "Redis is full (%d of %d MB): cut %d event streams and deleted %d finished jobs there, which Postgres has;"
            " raise redis.maxmemory_mb, or maxmemory of an external one, if that happens often",
            *(used >> 20, limit >> 20, cut, forgotten),
        )

    async def _cut_event_streams(self, client: redis.asyncio.Redis, target: int) -> int:
        sizes = [
            pair
            async for page in _pages(client, f"{JOB_PREFIX}*{EVENTS_SUFFIX}")
            for pair in await _sizes(client, page)
        ]
        script, count = client.register_script(TRIM), 0
        for size, key in sorted(sizes, reverse=True):
            if size < SMALL or (await _used(client))[0] <= target:
                break
            try:
                await script(keys=[key], args=[0, "+"])
            except ResponseError as error:  # of another type, or the server is an old one
                log.debug("%r stays: %s", key, error)
            else:
                count += 1
        return count

    async def _forget_finished_jobs(self, client: redis.asyncio.Redis, target: int) -> int:
        count = 0
        async for page in _pages(client, f"{JOB_PREFIX}*"):
            if (await _used(client))[0] <= target:
                break
            keys = [key for key in page if not key.endswith(EVENTS_SUFFIX.encode())]
            pipeline: Any = client.pipeline(transaction=False)
            for key in keys:
                pipeline.hget(key, "status")
            statuses = zip(keys, await pipeline.execute(raise_on_error=False), strict=True)
            finished = [key for key, status in statuses if status in (b"done", b"error", b"canceled")]
            if finished:
                await client.unlink(*finished, *(key + EVENTS_SUFFIX.encode() for key in finished))
            count += len(finished)
        return count


async def _used(client: redis.asyncio.Redis) -> tuple[int, int]:
    """Bytes in use, and the limit (0: none)."""
    info: dict[str, Any] = await client.info("memory")
    return int(info["used_memory"]), int(info.get("maxmemory", 0))


async def _pages(client: redis.asyncio.Redis, pattern: str) -> AsyncIterator[list[bytes]]:
    cursor: Any = 0
    while True:
        page: Any = await client.scan(cursor, match=pattern, count=PAGE)
        cursor, keys = page
        if keys:
            yield keys
        if not cursor:
            return


async def _sizes(client: redis.asyncio.Redis, keys: list[bytes]) -> list[tuple[int, bytes]]:
    pipeline: Any = client.pipeline(transaction=False)
    for key in keys:
        pipeline.memory_usage(key)
    sizes = zip(await pipeline.execute(raise_on_error=False), keys, strict=True)
    return [(size, key) for size, key in sizes if isinstance(size, int)]


def is_full(error: ResponseError) -> bool:
    """Whether a refusal is for want of memory; also one that a script passes on."""
    return "OOM command not allowed" in str(error)


def most_kept_s(used: int, limit: int) -> int | None:
    """Without a limit (0) everything is kept."""
    share = used / limit if limit else 0.0
    return next((seconds for step, seconds in STEPS if share >= step), None)
