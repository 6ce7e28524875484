"""What a program writes, taken in as it comes and kept within bounds.

stdout is where the result stands, as its last JSON document; before it may come anything. A line of it that is a JSON
object and begins with the key `event` or `progress` is an event for those who follow the job, and never a result:

    {"progress": 0.5, "note": "halfway"}
    {"event": "token", "text": "Hel"}        any name of 1 to 64 of a-z 0-9 _ . -, `step` if wanted, and its data

stderr is the log: each line is a `log` event. Both are read to the end whatever their size; what is kept is bounded.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd.job.history import RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.tasks.runner import Context

#: Bytes read from a pipe at once.
READ_BYTES = 65_536
#: Bytes that are kept of a log line; the rest of it is cut.
LINE_BYTES = 4096
#: Longest event line in bytes.
EVENT_BYTES = 16_384
#: Log lines emitted a second at most: more than anybody reads, and a flood would only fill the event table.
LOG_LINES_PER_S = 100
#: Events emitted a second at most: more than the tokens that a fast model produces.
EVENTS_PER_S = 1000
#: Bytes of the end of the log that a failure carries as its stack.
TAIL_BYTES = 4096

_EVENT_LINE = re.compile(rb'^[ \t]*\{[ \t]*"(?:event|progress)"[ \t]*:[^\n]*\n', re.MULTILINE)
_EVENT_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(9), *range(10, 32), *range(127, 160))}
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class EventEmitter:
    """Emits events and log lines up to a rate limit for each kind; one log line says how many were dropped."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        #: True once the lease is lost: output is still read, and nothing is emitted.
        self.muted = False
        self._context = context
        self._clock = clock
        self._second = int(clock())
        self._emitted: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def has_room(self, kind: str) -> bool:
        now = int(self._clock())
        if now != self._second:
            self.log_dropped()
            self._second = now
            self._emitted.clear()
        return self._emitted[kind] < (LOG_LINES_PER_S if kind == "lines" else EVENTS_PER_S)

    def drop(self, kind: str, count: int = 1) -> None:
        self._dropped[kind] += count

    def log(self, raw: bytes, level: str = "info") -> None:
        if self.has_room("lines"):
            self._emitted["lines"] += 1
            self._log(printable(raw), level)
        else:
            self.drop("lines")

    def event(self, line: bytes) -> None:
        if not self.has_room("events"):
            self.drop("events")
        elif (event := read_event(line)) is None:
            self.log(b"not an event: " + line[:200], "warning")
        elif not self.muted:
            self._emitted["events"] += 1
            self._context.event(*event)

    def log_dropped(self) -> None:
        for kind, count in self._dropped.items():
            self._log(f"{count} {kind} not shown: too many a second", "warning")
        self._dropped.clear()

    def _log(self, text: str, level: str) -> None:
        if not self.muted:
            self._context.log(text, level)


def read_event(line: bytes) -> tuple[str, dict[str, Any], str] | None:
    """Type, data and step of the event; None if the line is no valid event."""
    if len(line) > EVENT_BYTES:
        return None
    try:
        data = _decode_object(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if "event" not in data:
        data = {"event": "progress", "step": data.pop("note", ""), **data}
    name, step = data.pop("event"), data.pop("step", "")
    if not (isinstance(name, str) and _EVENT_NAME.fullmatch(name) and name not in RESERVED and isinstance(step, str)):
        return None
    if name == "progress" and not _is_share(data.get("progress")):
        return None
    return name, data, step[:200]


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


class ResultOutput:
    """stdout: event lines are emitted at once, and the end of the other text is kept for the result."""

    def __init__(self, emitter: EventEmitter, limit: int) -> None:
        self.limit = limit
        self.events = 0
        #: Whether text was dropped that might have been the beginning of the result.
        self.overflowed = False
        self._emitter = emitter
        self._kept = bytearray()
        self._line_at = 0  # where the line begins that has no end yet

    def feed(self, data: bytes) -> None:
        self._kept += data
        if b"\n" in data:
            self._take_events()
        surplus = len(self._kept) - self.limit
        if surplus > self.limit:  # in large steps, since each moves what is kept
            del self._kept[:surplus]
            self._line_at = max(0, self._line_at - surplus)
            self.overflowed = True

    def close(self) -> None:
        if self._kept:
            self.feed(b"\n")

    def text(self) -> bytes:
        """The end of the text, at most as long as a result may be."""
        whole = bytes(self._kept).strip()
        self.overflowed = self.overflowed or len(whole) > self.limit
        return whole[-self.limit :]

    def _take_events(self) -> None:
        end = self._kept.rindex(b"\n") + 1
        lines = self._kept[self._line_at : end]
        if b'"event"' in lines or b'"progress"' in lines:
            rest = _EVENT_LINE.sub(self._take_event, lines)
            self._kept[self._line_at : end] = rest
            end = self._line_at + len(rest)
        self._line_at = end

    def _take_event(self, match: re.Match[bytes]) -> bytes:
        self.events += 1
        self._emitter.event(bytes(match[0]))
        return b""


class LogLines:
    """stderr: each line is emitted as a log event, and the end is kept to explain a failure."""

    def __init__(self, emitter: EventEmitter) -> None:
        self._emitter = emitter
        self._line = b""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if not self._emitter.has_room("lines"):  # lines beyond the rate limit are only counted
                self._emitter.drop("lines", data.count(b"\n", start))
                self._line, start = b"", data.rindex(b"\n") + 1
                break
            self._emit(self._line + data[start : min(end, start + LINE_BYTES + 1)])
            self._line, start = b"", end + 1
        self._line = (self._line + data[start : start + LINE_BYTES + 1])[: LINE_BYTES + 1]

    def close(self) -> None:
        if self._line:
            self._emit(self._line)
            self._line = b""

    def tail(self) -> str:
        return "\n".join(printable(line) for line in self._tail.strip().splitlines())

    def _emit(self, line: bytes) -> None:
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]  # as a terminal would after a progress bar
        if shown.strip():
            self._emitter.log(shown)


def printable(raw: bytes) -> str:
    """At most `LINE_BYTES` of the text, safe for terminal and log: control characters and invalid bytes are escaped."""
    cut = "…" if len(raw) > LINE_BYTES else ""
    return raw[:LINE_BYTES].decode("utf-8", "replace").translate(_CONTROLS) + cut


def last_document(text: bytes) -> Any:
    """The JSON document that the text ends with: its last line, or the last lines of one that was printed prettily.

    Raises `msgspec.DecodeError` if it ends with anything else: half a document must not give way to an earlier one.
    """
    start = text.rfind(b"\n") + 1
    try:
        return msgspec.json.decode(text[start:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = error
    while start > 0 and text[-1:] in (b"}", b"]"):
        start = text.rfind(b"\n", 0, start - 1) + 1
        if text[start : start + 1] in (b"{", b"["):  # what is indented belongs to a document that began before
            return msgspec.json.decode(text[start:])
    raise msgspec.DecodeError(str(problem))


class Pipe:
    """One output of the program, read as fast as it writes."""

    def __init__(self, fd: int, feed: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._feed = feed
        #: Set when every process that could write to the pipe has closed it.
        self.closed = anyio.Event()

    async def drain(self) -> None:
        while not self.closed.is_set():
            await anyio.wait_readable(self._fd)
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                continue
            if data:
                self._feed(data)
            else:
                self.closed.set()
