"""Who reads a stream beside jobd: consumers of its group that are not jobd's own are raw workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from jobd.stream.keys import CONSUMER_PREFIX, GROUP

if TYPE_CHECKING:
    import redis.asyncio


async def has_raw_workers(client: redis.asyncio.Redis, stream: str) -> bool:
    """Whether one has read from the stream since its group was made; none has if there is no stream."""
    try:
        consumers: Any = await client.xinfo_consumers(stream, GROUP)
    except ResponseError:
        return False
    return any(not consumer["name"].startswith(CONSUMER_PREFIX.encode()) for consumer in consumers)
