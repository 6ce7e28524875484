"""What a raw Redis worker wrote, read with the checks and limits that reports over HTTP have.

Any byte string can stand in a hash or an event. What Postgres cannot store ends as a failure of that one job
(`bad_result`, `result_too_large`) or as an event with its data replaced, never as a failure of the service.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import msgspec

from jobd.host.masking import masked_text
from jobd.job.history import RESERVED, HandlerEvent
from jobd.stream.keys import RAW_OWNER_PREFIX
from jobd.tasks.event_check import CUT_CHARS, DATA_BYTES, STEP_CHARS, printable
from jobd.tasks.failure import MESSAGE_BYTES, error_text
from jobd.tasks.runner import TaskFailed
from jobd.wire.json_check import BadPayload, NotJson, check_json

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Largest error in bytes: message and stack of an HTTP report together, with room for the rest.
ERROR_BYTES = 32 * 1024
#: Characters of a consumer's name, as of the `worker_id` of an HTTP worker.
CONSUMER_CHARS = 128
#: Bytes of an event's ts, type or step that are read; the rest is cut off before it is decoded.
FIELD_BYTES = 1024

_encode = msgspec.json.Encoder().encode
_TYPE = re.compile(r"[a-z0-9_.-]{1,64}")


def owner_of(consumer: bytes) -> str:
    """The owner of a lease that a consumer of the group holds."""
    return f"{RAW_OWNER_PREFIX}{_text(consumer)[:CONSUMER_CHARS] or 'acknowledged'}"


def result_in(field: bytes) -> bytes | None:
    """The result as it is stored, None if there is none; raises TaskFailed. Text that is not JSON is kept as `_raw`."""
    if not field:
        return None
    try:
        check_json(field, len(field))
    except NotJson:
        if (text := _storable(field)) is not None:
            return _encode({"_raw": text})
        raise TaskFailed("bad_result", "the worker wrote a result that is not JSON", retryable=False) from None
    except BadPayload as error:
        raise TaskFailed("bad_result", f"the result cannot be stored: {error}", retryable=False) from None
    return field


def error_in(field: bytes) -> str:
    """The error as it is stored: JSON of bounded size, without the passwords of URLs."""
    why = "the worker wrote no error"
    if field:
        try:
            value = check_json(field, ERROR_BYTES)
        except NotJson:
            if (text := _storable(field[:MESSAGE_BYTES])) is not None:
                return _encode({"_raw": masked_text(text)}).decode()
            why = "the worker wrote an error that is not JSON"
        except BadPayload as error:
            why = f"the worker wrote an error that cannot be stored: {error}"
        else:
            return _encode(_masked(value)).decode()
    return error_text(TaskFailed("bad_error", why, retryable=False))


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: masked_text(inner) if isinstance(inner, str) else inner for key, inner in value.items()}
    return masked_text(value) if isinstance(value, str) else value


def event_in(fields: Mapping[bytes, bytes]) -> HandlerEvent | None:
    """An event as its worker wrote it; None for those that only jobd emits."""
    kind = _text(fields.get(b"type", b"")[:FIELD_BYTES])
    if kind in RESERVED:
        return None
    ts = _text(fields.get(b"ts", b"")[:FIELD_BYTES])
    return HandlerEvent(
        kind if _TYPE.fullmatch(kind) else "event",
        int(ts) if ts.isascii() and ts.isdigit() and len(ts) < 16 else int(time.time() * 1000),
        _text(fields.get(b"step", b"")[:FIELD_BYTES])[:STEP_CHARS],
        msgspec.Raw(_data_in(fields.get(b"data", b""))),
    )


def _data_in(field: bytes) -> bytes:
    if not field:
        return b"{}"
    try:
        check_json(field, DATA_BYTES)
    except BadPayload:
        if len(field) <= DATA_BYTES:
            return _encode({"_raw": _text(field)[:CUT_CHARS]})
        return _encode({"text": _text(field[: 4 * CUT_CHARS])[:CUT_CHARS], "cut": len(field)})
    return field


def _text(field: bytes) -> str:
    """Whatever the bytes are, as text that Postgres can store."""
    return printable(field.decode("utf-8", "replace"))


def _storable(field: bytes) -> str | None:
    """The bytes as text, None if Postgres cannot store them as they are."""
    try:
        text = field.decode()
    except UnicodeDecodeError:
        return None
    return text if "\0" not in text else None
