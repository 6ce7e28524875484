"""Who reads a stream: jobd's own consumers, one for each start of a node, and raw workers, which are all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from jobd.stream.keys import CONSUMER_PREFIX, GROUP
from jobd.stream.scripts import script

if TYPE_CHECKING:
    import redis.asyncio

FORGET = script("forget_consumers")


async def has_raw_workers(client: redis.asyncio.Redis, stream: str) -> bool:
    """Whether a raw worker has read from the stream since its group was made; False without a stream."""
    return any(not is_own(consumer["name"]) for consumer in await _consumers(client, stream))


async def own_consumers(client: redis.asyncio.Redis, stream: str) -> list[bytes]:
    """Those of jobd, of this and of other nodes, alive or dead, that have messages in hand."""
    consumers = await _consumers(client, stream)
    return [consumer["name"] for consumer in consumers if is_own(consumer["name"]) and consumer["pending"]]


async def forget_consumers(client: redis.asyncio.Redis, stream: str, silent_s: float) -> int:
    """Remove those of jobd that have nothing in hand and were silent for at least that time; how many there were."""
    silent_ms = int(silent_s * 1000)
    count: Any = await client.register_script(FORGET)(keys=[stream], args=[silent_ms])
    return int(count)


def is_own(consumer: bytes) -> bool:
    return consumer.startswith(CONSUMER_PREFIX.encode())


async def _consumers(client: redis.asyncio.Redis, stream: str) -> list[Any]:
    try:
        consumers: Any = await client.xinfo_consumers(stream, GROUP)
    except ResponseError:
        return []
    return list(consumers)
