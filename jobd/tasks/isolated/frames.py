"""The messages between jobd and a handler's process: JSON over two pipes, each message after its length in bytes.

    to it      Run, Stop
    from it    Ready or HandlerRefused, once; then EmittedEvent and, for each Run, Done or Failed

The bytes of a result follow their `Done` as a frame of their own, so that jobd hands them on and never reads them.
Every message of a job carries the job's number, so that a late message from a thread of an earlier job is recognised.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import msgspec

from jobd.job.inputs import Input

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Largest result in bytes: the upper bound of `limits.result_bytes`.
RESULT_BYTES = 64_000_000
#: Largest frame in bytes, for payloads and results: JSON that is encoded again takes up to six bytes for one.
MOST_BYTES = 100_000_000

_LENGTH = struct.Struct("!I")


class BadFrame(Exception):
    """Bytes that are no message of this protocol."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    n: int
    job_id: UUID
    task: str
    attempt: int
    max_attempts: int
    #: Seconds until the attempt is stopped.
    left_s: float
    payload: dict[str, Any]
    traceparent: str | None = None
    tracestate: str | None = None
    inputs: dict[str, Input] = {}


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
    #: The handler puts its job off for this number of seconds; None: it failed.
    snooze_s: float | None = None


ToChild: TypeAlias = Run | Stop
FromChild: TypeAlias = Ready | HandlerRefused | EmittedEvent | Done | Failed

_to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)
_from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild)


def frame(message: ToChild | FromChild) -> bytes:
    return framed(msgspec.json.encode(message))


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def decode_to_child(body: bytes) -> ToChild:
    return _to_child.decode(body)


def decode_from_child(body: bytes) -> FromChild:
    try:
        return _from_child.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(str(error)) from None


class Frames:
    """Splits a stream of bytes into the bodies of whole frames."""

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
