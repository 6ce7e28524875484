"""Logs: short lines with colour for a person at a terminal, one JSON object a line for everything else.

Fields (`FIELDS`) travel as `extra`. Those of the request or job that a task works on are on each of its lines, also on
those of a handler that logs by itself: see `SUBJECT`. Payloads, tokens and passwords are never passed to a logger; as a
second net, every URL in a line is masked. A line is always one line: control characters are escaped.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TextIO

from jobd.host.masking import masked_text

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = ("service", "request_id", "job_id", "attempt", "trace_id", "node")
COLOURS = {"DEBUG": "2", "INFO": "36", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}
#: Control characters, the two line separators of Unicode, and what stands for bytes that were no text.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class LogSubject(Protocol):
    """What log lines are about. Its fields are asked for only when there is a line."""

    @property
    def log_fields(self) -> Mapping[str, str]: ...


#: The request or job that the running task, or a thread that it started, works on.
SUBJECT: ContextVar[LogSubject | None] = ContextVar("subject", default=None)


def job_fields(job_id: object, attempt: int | None = None, traceparent: str | None = None) -> dict[str, str]:
    """The fields of a line about a job, for `extra`."""
    fields = {"job_id": str(job_id)}
    if attempt is not None:
        fields["attempt"] = str(attempt)
    if traceparent is not None:
        fields["trace_id"] = trace_id_in(traceparent)
    return fields


def trace_id_in(traceparent: str) -> str:
    """The trace in a header of W3C Trace Context that was checked."""
    return traceparent.split("-")[1]


def set_up(level: str, form: str, *, stream: TextIO | None = None, environ: Mapping[str, str]) -> None:
    """Send all logs to `stream` (standard error). `form` is text, json, or auto: text on a terminal."""
    stream = stream or sys.stderr
    terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    if form == "json" or (form == "auto" and not terminal):
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter(colour=terminal and not environ.get("NO_COLOR")))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    set_level(level)


def set_level(level: str) -> None:
    logging.getLogger("jobd").setLevel(level.upper())


class TextFormatter(logging.Formatter):
    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        if self._colour:
            level = f"\x1b[{COLOURS.get(record.levelname, '0')}m{level:7}\x1b[0m"
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items() if name != "service")
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{at} {level:7} {_message(record)}{fields}{masked_text(trace)}"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = masked_text(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def _message(record: logging.LogRecord) -> str:
    return _one_line(record.getMessage())


def _fields(record: logging.LogRecord) -> dict[str, str]:
    subject = SUBJECT.get()
    found: dict[str, object] = {} if subject is None else dict(subject.log_fields)
    found |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    return {name: _one_line(str(found[name])) for name in FIELDS if name in found}


def _one_line(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), masked_text(text))
