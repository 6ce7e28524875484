"""What jobd and a handler's process say to each other: JSON messages over two pipes, each with its length before it.

    to it      Run, Stop
    from it    Ready or HandlerRefused, once; then EmittedEvent and, for each Run, Done or Failed

The bytes of a result follow their `Done` as a frame of their own, so that jobd hands them on and never reads them.
Every message of a job carries its number: what an earlier job's thread still has to say is told from the present one's.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Largest result in bytes: the upper bound of `limits.result_bytes`.
RESULT_BYTES = 64_000_000
#: Largest frame in bytes, for payloads and results: JSON that is encoded again takes up to six bytes for one.
MOST_BYTES = 100_000_000

_LENGTH = struct.Struct("!I")


class BadFrame(Exception):
    """What came is not of this protocol."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    n: int
    job_id: UUID
    task: str
    attempt: int
    max_attempts: int
    #: Seconds until the attempt is stopped.
    left_s: float
    payload: dict[str, Any]


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    n: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The handler is imported."""

    payload_schema: dict[str, Any] | None


class HandlerRefused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """There is no such handler, and why."""

    message: str


class EmittedEvent(msgspec.Struct, frozen=True, kw_only=True, tag="event"):
    n: int
    kind: str
    step: str
    data: Any


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    n: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    n: int
    code: str
    message: str
    retryable: bool
    stack: str


Asked: TypeAlias = Run | Stop
Said: TypeAlias = Ready | HandlerRefused | EmittedEvent | Done | Failed

_asked: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)
_said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


def frame(message: Asked | Said) -> bytes:
    return framed(msgspec.json.encode(message))


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def read_asked(body: bytes) -> Asked:
    return _asked.decode(body)


def read_said(body: bytes) -> Said:
    try:
        return _said.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(str(error)) from None


class Frames:
    """Bytes as they come, handed on as the bodies of whole frames."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._kept += data
        while len(self._kept) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._kept)
            if length > MOST_BYTES:
                raise BadFrame(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._kept) < end:
                return
            body = bytes(memoryview(self._kept)[_LENGTH.size : end])
            del self._kept[:end]
            yield body
