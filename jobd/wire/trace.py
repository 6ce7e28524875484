"""W3C Trace Context: the headers that say which trace a request belongs to, and what is handed on of them.

As that recommendation wants it, a header that cannot be read is ignored, never refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Longest `tracestate` in characters that is handed on; the recommendation asks for at least these.
MAX_TRACESTATE = 512

#: A version after 00 may have more fields behind these four.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VISIBLE = re.compile(rb"[\x20-\x7e]+")


class TraceContext(NamedTuple):
    traceparent: str | None = None
    #: Only with a traceparent.
    tracestate: str | None = None


NO_TRACE = TraceContext()


def trace_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext:
    """The trace that a request names in its headers, whose names are in small letters."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    traceparent = read_traceparent(parents[0]) if len(parents) == 1 else None
    return NO_TRACE if traceparent is None else TraceContext(traceparent, read_tracestate(b",".join(states)))


def read_traceparent(value: bytes) -> str | None:
    """As version 00 writes it; None if it is malformed."""
    match = _TRACEPARENT.fullmatch(value.strip())
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not (trace_id.strip(b"0") and parent_id.strip(b"0")):
        return None
    return str(b"-".join((b"00", trace_id, parent_id, flags)), "ascii")


def read_tracestate(value: bytes) -> str | None:
    """None if there is none, or it is longer than is handed on."""
    value = value.strip()
    return str(value, "ascii") if len(value) <= MAX_TRACESTATE and _VISIBLE.fullmatch(value) else None
