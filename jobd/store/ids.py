"""Ids. A job's is a UUID of version 7: ids sort by time of creation, and new rows go to the end of the index."""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid

_VERSION_4 = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))
_lock = threading.Lock()
_last = 0


def new_id() -> uuid.UUID:
    """A fresh id, greater than all that this process made before, even if the clock went back."""
    return new_ids(1)[0]


def new_ids(count: int) -> list[uuid.UUID]:
    """48 bits of milliseconds, 12 bits of a counter within the millisecond, 62 random bits."""
    global _last
    with _lock:
        first = max(_last + 1, (time.time_ns() // 1_000_000) << 12)
        _last = first + count - 1
    return [
        uuid.UUID(int=(number >> 12) << 80 | 0x7 << 76 | (number & 0xFFF) << 64 | 0x2 << 62 | noise >> 2)
        for number, noise in zip(
            range(first, first + count), struct.unpack(f"{count}Q", os.urandom(8 * count)), strict=True
        )
    ]


def random_ids(count: int) -> bytes:
    """`count` UUIDs of version 4 in one bytes object, for attempts and lease tokens, which must not be guessable."""
    noise = bytearray(os.urandom(16 * count))
    noise[6::16] = noise[6::16].translate(_VERSION_4)
    noise[8::16] = noise[8::16].translate(_VARIANT)
    return bytes(noise)
