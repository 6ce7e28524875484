"""How an attempt that went wrong is written down: a code for programs, a message and a stack for people."""

from __future__ import annotations

import sys
import traceback

import msgspec

from jobd.host.masking import masked_text
from jobd.tasks.event_check import printable
from jobd.tasks.runner import TaskFailed

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

#: Longest error code in characters.
CODE_CHARS = 128
#: Bytes of an error message that are stored; the rest is cut.
MESSAGE_BYTES = 4 * 1024
#: Last bytes of a stack trace that are stored; what comes before is cut.
STACK_BYTES = 16 * 1024


def failure_of(error: BaseException) -> TaskFailed:
    """What an exception of a runner or a handler means for the attempt."""
    if isinstance(error, BaseExceptionGroup):
        error = _task_failed_in(error)
    if isinstance(error, TaskFailed):
        return error
    message = f"{type(error).__name__}: {_text(error)}".removesuffix(": ")
    return TaskFailed("exception", message, stack="".join(traceback.format_exception(error)))


def error_text(failed: TaskFailed) -> str:
    """The JSON object that is kept: of bounded size, and without the passwords of URLs."""
    error: dict[str, object] = {
        "code": printable(failed.code)[:CODE_CHARS] or "failed",
        "message": masked_text(_first(printable(failed.message), MESSAGE_BYTES)),
        "retryable": failed.retryable,
    }
    if failed.stack:
        error["stack"] = masked_text(_last(printable(failed.stack), STACK_BYTES))
    return msgspec.json.encode(error, order="deterministic").decode()


def _task_failed_in(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first TaskFailed in an exception group, else the group itself."""
    leaves: list[BaseException] = [group]
    while leaves:
        leaf = leaves.pop(0)
        if isinstance(leaf, TaskFailed):
            return leaf
        if isinstance(leaf, BaseExceptionGroup):
            leaves += leaf.exceptions
    return group


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the handler's own class may do anything
        return "(its message cannot be read)"


def _first(text: str, most: int) -> str:
    """The text cut to at most that number of bytes of UTF-8, without splitting a character."""
    return text if len(text) * 4 <= most else text[:most].encode()[:most].decode(errors="ignore")


def _last(text: str, most: int) -> str:
    """Likewise from the end, where a stack says what happened."""
    return text if len(text) * 4 <= most else text[-most:].encode()[-most:].decode(errors="ignore")
