"""Wakes the relay across nodes: a node on standby passes wakeups on, the one that relays receives them.

A wakeup may be lost on the way: the relay also polls.
"""

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
    from jobd.supervise.wakeup import Wakeup

log = logging.getLogger(__name__)

#: Debounce in seconds: wakeups that come closer together than this are passed on as one.
PAUSE_S = 0.005
#: Longest wait for a wakeup in seconds before the loop goes round.
LOOK_S = 1.0


async def pass_on(wakeup: Wakeup, transport: Transport) -> None:
    """While another node relays: wake it whenever this one has committed something."""
    while True:
        if not await wakeup.wait(LOOK_S):
            continue
        try:
            await transport.client.publish(WAKE, b"")
        except (ServerDown, redis.exceptions.RedisError, OSError) as error:
            log.debug("a wakeup was not passed on: %s", error)
        await anyio.sleep(PAUSE_S)


async def hear(wakeup: Wakeup, transport: Transport) -> None:
    """While this node relays: set the wakeup whenever another node has committed something."""
    await channel.hear(transport, WAKE, lambda _: wakeup.set())
