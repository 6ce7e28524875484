"""Idempotency keys copied to Redis, where programs look that read only Redis. Postgres decides; this is a copy.

It is made when the answer is already out, for a limited time and for a limited number of keys at once: a Redis that is
away or slow costs a copy and nothing else.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
from redis.exceptions import RedisError

from jobd.errors import ServerDown
from jobd.stream.keys import idempotency_key

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

#: Seconds that the copy of one key to Redis may take; without it Postgres still knows the key.
COPY_S = 1.0
#: Copies under way at the same time; more are left out.
MOST_AT_ONCE = 64


class KeyMirror:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._copying = 0

    async def copy(self, key: str, job_id: UUID, ttl_s: int) -> None:
        if self._copying >= MOST_AT_ONCE:
            return
        self._copying += 1
        try:
            with anyio.move_on_after(COPY_S):
                await self._transport.client.set(idempotency_key(key), str(job_id), ex=ttl_s)
        except (ServerDown, RedisError, OSError) as error:
            log.debug("an idempotency key was not copied to Redis: %s", error)
        finally:
            self._copying -= 1
