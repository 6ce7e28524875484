"""Work across nodes: publishes which queues in mode `direct` have jobs, so that every node takes some. The relay does
so, and the dispatcher for delayed jobs that it found to be due before the relay did.

A note may be lost on the way: a dispatcher also polls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from jobd.stream import channel
from jobd.stream.keys import WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from jobd.stream.connection import Transport

log = logging.getLogger(__name__)


class WorkNote(msgspec.Struct, array_like=True, frozen=True):
    #: The node that publishes it, and ignores it when it comes back: its own dispatcher knows.
    sender: str
    queues: Sequence[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WorkNote).decode


def work_note(sender: str, queues: Collection[str]) -> bytes:
    """The message to publish; empty if there are no queues."""
    return _encode(WorkNote(sender, sorted(queues))) if queues else b""


async def say_work(transport: Transport, sender: str, queues: Collection[str]) -> None:
    await transport.client.publish(WORK, work_note(sender, queues))


async def hear(on_work: Callable[[Collection[str]], None], transport: Transport, own: str = "") -> None:
    """Call `on_work` with the queues that have jobs, whenever another node than `own` publishes a note."""

    def heard(data: bytes) -> None:
        try:
            note = _decode(data)
        except msgspec.DecodeError as error:
            log.debug("something else was said on %s: %s", WORK, error)
            return
        if note.sender != own:
            on_work(note.queues)

    await channel.hear(transport, WORK, heard)
