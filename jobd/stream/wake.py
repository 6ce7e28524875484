"""Wakes the relay across nodes: who stands by passes its rings on, who relays hears them. A ring may be lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import redis.exceptions

from jobd.errors import ServerDown
from jobd.stream import channel
from jobd.stream.keys import WAKE

if TYPE_CHECKING:
    from jobd.stream.connection import Transport
    from jobd.supervise.wakeup import Bell

log = logging.getLogger(__name__)

#: Rings that come closer together are passed on as one.
PAUSE_S = 0.005
LOOK_S = 1.0


async def pass_on(bell: Bell, transport: Transport) -> None:
    """While another node relays: tell it whenever this one has committed something."""
    while True:
        if not await bell.wait(LOOK_S):
            continue
        try:
            await transport.client.publish(WAKE, b"")
        except (ServerDown, redis.exceptions.RedisError, OSError) as error:
            log.debug("a ring was not passed on: %s", error)
        await anyio.sleep(PAUSE_S)


async def hear(bell: Bell, transport: Transport) -> None:
    """While this node relays: ring whenever another has committed something."""
    await channel.hear(transport, WAKE, lambda _: bell.ring())
