"""Idempotency keys copied to Redis, where programs look that read only Redis. Postgres decides; this is a copy.

It is made after the answer, for many keys in one call: a call for each would cost as much as the submit itself. Time
and number are limited: a Redis that is away or slow costs copies and nothing else.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

import anyio
from redis.exceptions import RedisError

from jobd.errors import ServerDown
from jobd.stream.keys import idempotency_key
from jobd.stream.scripts import script

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

COPY = script("copy_keys")
#: Seconds that a call to Redis may take; without its copies Postgres still knows the keys.
COPY_S = 1.0
#: Seconds in which keys gather for the next call.
GATHER_S = 0.02
#: Keys of one call: a script holds up everybody else in Redis.
MOST_AT_ONCE = 500
#: Keys that wait for a call, to bound memory; more are left out.
MOST_WAITING = 10_000


class KeyMirror:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        #: By key, the job that it stands for and the seconds that the key is kept.
        self._waiting: dict[str, tuple[UUID, int]] = {}
        self._has_news = anyio.Event()

    def copy_later(self, key: str, job_id: UUID, ttl_s: int) -> None:
        if len(self._waiting) < MOST_WAITING:
            self._waiting[key] = job_id, ttl_s
            self._has_news.set()

    async def run(self) -> NoReturn:
        """Copy until cancelled."""
        while True:
            if not self._waiting:
                self._has_news = anyio.Event()
                await self._has_news.wait()
            await anyio.sleep(GATHER_S)
            await self.run_once()

    async def run_once(self) -> int:
        """Copy some of the keys that wait; how many."""
        keys = list(self._waiting)[:MOST_AT_ONCE]
        args: list[str | int] = []
        for key in keys:
            job_id, ttl_s = self._waiting.pop(key)
            args += (str(job_id), ttl_s)
        try:
            with anyio.move_on_after(COPY_S):
                await self._transport.client.register_script(COPY)(keys=list(map(idempotency_key, keys)), args=args)
                return len(keys)
        except (ServerDown, RedisError, OSError) as error:
            log.debug("%d idempotency keys were not copied to Redis: %s", len(keys), error)
        return 0
