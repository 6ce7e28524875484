"""Ids. A job's is a UUID of version 7: ids sort by time of creation, and new rows go to the end of the index."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from asyncpg.pgproto.pgproto import UUID as FastUUID  # asyncpg's own: a uuid.UUID made 5 times as fast, in C

if TYPE_CHECKING:
    import uuid
    from datetime import datetime

_VERSION_4 = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))
#: Ids whose random halves are made at once: the system call for random bytes takes longer than the rest of an id.
_TAILS_AHEAD = 128

_lock = threading.Lock()
_last = 0
#: Random halves of ids to come.
_tails: list[bytes] = []
os.register_at_fork(after_in_child=_tails.clear)  # a child must not use those of its parent


def new_id() -> uuid.UUID:
    """A fresh id, greater than all that this process made before, even if the clock went back."""
    global _last
    with _lock:
        _last = number = max(_last + 1, time.time_ns() // 1_000_000 << 12)
        if not _tails:
            _tails.extend(_new_tails(_TAILS_AHEAD))
        tail = _tails.pop()
    return FastUUID(_head(number) + tail)


def new_ids(count: int) -> list[uuid.UUID]:
    """As many ids as `new_id` would make, one after the other."""
    global _last
    with _lock:
        first = max(_last + 1, time.time_ns() // 1_000_000 << 12)
        _last = first + count - 1
    return [FastUUID(_head(first + n) + tail) for n, tail in enumerate(_new_tails(count))]


def make_ids_after(seconds: float) -> None:
    """From now on this process makes no id of an earlier time than this, in seconds since 1970.

    For the start, with the latest time that is known for certain: a board without a battery clock starts in 1970, and
    its new jobs would stand behind all others in lists, which are sorted by id.
    """
    global _last
    with _lock:
        _last = max(_last, int(seconds * 1000) << 12)


def first_id_at(moment: datetime) -> uuid.UUID:
    """Smaller than every id made at this time or later, and greater than those made before."""
    milliseconds = min(max(0, int(moment.timestamp() * 1000)), (1 << 48) - 1)
    return FastUUID(_head(milliseconds << 12) + bytes(8))


def _head(number: int) -> bytes:
    """48 bits of milliseconds, the version 7, and 12 bits of a counter within the millisecond."""
    return (number >> 12 << 16 | 0x7000 | number & 0xFFF).to_bytes(8, "big")


def _new_tails(count: int) -> list[bytes]:
    """The variant and 62 random bits, for each id."""
    noise = bytearray(os.urandom(8 * count))
    noise[::8] = noise[::8].translate(_VARIANT)
    made = bytes(noise)
    return [made[at : at + 8] for at in range(0, len(made), 8)]


def random_ids(count: int) -> bytes:
    """`count` UUIDs of version 4 in one bytes object, for attempts and lease tokens, which must not be guessable."""
    noise = bytearray(os.urandom(16 * count))
    noise[6::16] = noise[6::16].translate(_VERSION_4)
    noise[8::16] = noise[8::16].translate(_VARIANT)
    return bytes(noise)
