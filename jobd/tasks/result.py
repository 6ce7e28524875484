"""A result as it is stored: JSON within the limits, or the failure of an attempt whose result cannot be."""

from __future__ import annotations

import msgspec

from jobd.tasks.runner import TaskFailed
from jobd.wire.json_check import BadPayload, TooLarge, check_json
from jobd.wire.json_pieces import is_large, json_pieces

#: What encoding and checking a result may raise.
RESULT_FAULTS = (BadPayload, TypeError, ValueError, OverflowError, RecursionError)


def encoded_result(result: object, *, result_bytes: int, inline_bytes: int) -> bytes:
    """The JSON of a result, all of it in memory; raises TaskFailed for one that no slot would store."""
    try:
        if is_large(result, inline_bytes):
            return b"".join(json_pieces(result, result_bytes))
        text = msgspec.json.encode(result)
        check_json(text, result_bytes)
        return text
    except RESULT_FAULTS as error:
        raise result_failure(error, result_bytes) from None


def result_failure(error: Exception, result_bytes: int) -> TaskFailed:
    """What one of `RESULT_FAULTS` means for the attempt."""
    if isinstance(error, TooLarge):
        return TaskFailed(
            "result_too_large",
            f"the result has {error.size} bytes, more than limits.result_bytes = {result_bytes}; keep it elsewhere and"
            " return where",
            retryable=False,
        )
    if isinstance(error, BadPayload):
        return TaskFailed("bad_result", f"the result cannot be stored: {error}", retryable=False)
    return TaskFailed("bad_result", f"the result is not JSON: {error}", retryable=False)
