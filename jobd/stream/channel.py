"""Subscribes to a channel of Redis (pub/sub), again after each loss. What is published meanwhile is lost."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import anyio
import redis.exceptions

from jobd.errors import ServerDown

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)

#: Seconds before a lost subscription is tried again.
RETRY_S = 0.5
#: Seconds that one read of the channel waits for a message.
LOOK_S = 2.0


async def hear(
    transport: Transport,
    channel: str,
    heard: Callable[[bytes], None],
    *,
    opened: Callable[[], None] = lambda: None,
    closed: Callable[[], None] = lambda: None,
) -> None:
    """Calls `heard` with each message, `opened` when it begins to hear and `closed` when it no longer does."""
    while True:
        try:
            await _hear_until_it_breaks(transport, channel, heard, opened)
        except (ServerDown, redis.exceptions.RedisError, OSError) as error:
            log.debug("%s is not heard: %s", channel, error)
        finally:
            closed()
        await anyio.sleep(RETRY_S)


async def _hear_until_it_breaks(
    transport: Transport, channel: str, heard: Callable[[bytes], None], opened: Callable[[], None]
) -> None:
    subscription: Any = transport.client.pubsub(ignore_subscribe_messages=True)
    try:
        await subscription.subscribe(channel)
        opened()
        while True:
            message = await subscription.get_message(timeout=LOOK_S)
            if message is not None:
                heard(message["data"])
    finally:
        with anyio.CancelScope(shield=True), contextlib.suppress(redis.exceptions.RedisError, OSError):
            await subscription.aclose()
