"""Checks one event that a handler emits, cuts it to the size limit and removes text that Postgres cannot store.

It imports nothing of the database, because the process of an isolated handler checks its events itself, so that a wrong
one raises in the handler.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.job.history import RESERVED, HandlerEvent
from jobd.wire.json_check import MAX_DEPTH, BadPayload, check_json

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Largest JSON of an event's data in bytes.
DATA_BYTES = 16_384
#: Characters that are kept of each long text when data is larger than that.
CUT_CHARS = 3_000
#: Longest step in characters.
STEP_CHARS = 200

_TYPE = re.compile(r"[a-z0-9_.-]{1,64}")


def checked_event(kind: str, step: str, data: Mapping[str, Any]) -> HandlerEvent:
    """The event as it is stored; raises ValueError for one that cannot be stored."""
    if not _TYPE.fullmatch(kind):
        raise ValueError(f"an event's type must be 1 to 64 of a-z 0-9 _ . - (got {kind[:80]!r})")
    if kind in RESERVED:
        raise ValueError(f"events of type {kind} are emitted by jobd itself; choose another type")
    if len(step) > STEP_CHARS:
        raise ValueError(f"an event's step has at most {STEP_CHARS} characters (got {len(step)})")
    return HandlerEvent(kind, int(time.time() * 1000), printable(step), msgspec.Raw(_encoded(data)))


def _encoded(data: Mapping[str, Any]) -> bytes:
    try:
        text = msgspec.json.encode(data)
    except UnicodeEncodeError:
        data = _cleaned(data)
        text = msgspec.json.encode(data)
    if len(text) > DATA_BYTES:
        text = _cut(data, text)
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH or b"\\u0000" in text:
        try:
            check_json(text, DATA_BYTES)
        except BadPayload:
            text = msgspec.json.encode(_cleaned(msgspec.json.decode(text)))
            try:
                check_json(text, DATA_BYTES)
            except BadPayload as error:
                raise ValueError(f"an event's data cannot be kept: {error}") from None
    return text


def _cut(data: Mapping[str, Any], text: bytes) -> bytes:
    """The data with long texts cut, or else the beginning of its JSON; `cut` is the number of bytes before."""
    short = {
        key: f"{value[:CUT_CHARS]}…" if isinstance(value, str) and len(value) > CUT_CHARS else value
        for key, value in data.items()
    }
    cut = msgspec.json.encode({**short, "cut": len(text)})
    if len(cut) <= DATA_BYTES:
        return cut
    return msgspec.json.encode({"text": text[:CUT_CHARS].decode(errors="ignore"), "cut": len(text)})


def _cleaned(value: Any) -> Any:
    """The value with every text made storable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def printable(text: str) -> str:
    """The text without what Postgres cannot store: NUL and lone surrogates are replaced."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
