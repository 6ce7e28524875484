"""Following the events of a job: every one once, in order, to the last, through cut lines and restarts of jobd.

The id of the last event that was handed out is the only state; each new connection begins behind it.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from jobd.client.answers import Event, is_final
from jobd.client.errors import BadAnswer
from jobd.client.retrying import Patience, decoded, pause_or_raise
from jobd.client.sansio import ApiRequest, CallSettings, Lost, Open, Read, Reply, Step
from jobd.job.history import read_cursor
from jobd.wire.milliseconds import ms
from jobd.wire.sse import SseMessage, SseParser

if TYPE_CHECKING:
    from collections.abc import Iterator

MEDIA_TYPE = "text/event-stream"
#: The cursor behind the newest event: only what comes after it is sent.
NOW = "now"
#: Read timeout of a stream in seconds, added to the usual one; jobd sends a comment every 15 s, and two may be late.
SILENCE_S = 35.0
#: An ended job is over after this many streams without an event; a single one may have been cut by a stop of jobd.
ENOUGH_EMPTY = 2

EventFlow: TypeAlias = Generator[Step | Event, Any, None]


class _JobEvent(msgspec.Struct, frozen=True):
    type: str
    ts: int
    step: str = ""
    data: Any = None


class _Hello(msgspec.Struct, frozen=True):
    status: str
    #: The event that the stream begins behind.
    after: str = ""


class _TicketEvent(msgspec.Struct, frozen=True):
    type: str
    at: datetime
    data: Any = None


class StreamFollower:
    def __init__(self, settings: CallSettings, path: str, what: str, after: str | None, give_up_s: float) -> None:
        self._settings = settings
        self._path = path
        self._what = what
        self._last = after
        self._patience = Patience(give_up_s)
        self._is_over = False
        self._empty_streams = 0

    def run(self) -> EventFlow:
        while True:
            request = self._request()
            reply: Reply | Lost = yield Open(request)
            if isinstance(reply, Reply) and reply.status == 200:
                self._check_type(reply)
                reply = yield from self._read(request)
            if self._is_over:
                return
            yield from pause_or_raise(self._settings, request, reply, self._patience)

    def _request(self) -> ApiRequest:
        since = {} if self._last is None else {"Last-Event-ID": self._last}
        # Compressed, events could come late: a compressor buffers until it has enough.
        headers = {"Accept": MEDIA_TYPE, "Accept-Encoding": "identity", **since}
        return ApiRequest(what=self._what, path=self._path, headers=headers, hold_s=SILENCE_S)

    def _check_type(self, reply: Reply) -> None:
        if not reply.headers.get("content-type", "").startswith(MEDIA_TYPE):
            raise BadAnswer(f"{self._what}: {self._settings.url} answered with no event stream; check the URL")

    def _read(self, request: ApiRequest) -> Generator[Step | Event, Any, Lost]:
        """Yield the events of one stream; returns how it ended."""
        parser, status, count = SseParser(), "", 0
        while True:
            part: bytes | Lost = yield Read()
            if isinstance(part, Lost):
                return part
            if not part:
                self._note_end(status, count)
                return Lost("the event stream ended before the job did")
            self._patience.saw_life()
            for message in parser.feed(part):
                if message.type == "hello":
                    status = self._greeted(decoded(self._settings, request, message.data, _Hello))
                for event in self._new_events(request, message):
                    count += 1
                    self._last = event.id
                    self._patience.saw_progress()
                    yield event
                    if self._is_end(event):
                        self._is_over = True
                        return Lost("")

    def _greeted(self, hello: _Hello) -> str:
        """The job's status; and from here on, `now` is the moment of the first greeting."""
        if self._last == NOW:
            self._last = hello.after or NOW
        return hello.status

    def _new_events(self, request: ApiRequest, message: SseMessage) -> Iterator[Event]:
        """The message as an event of the job, unless it is none or was handed out before."""
        if message.id and self._is_new(message.id):
            event = decoded(self._settings, request, message.data, _JobEvent)
            yield Event(id=message.id, type=event.type, ts=event.ts, step=event.step, data=event.data)

    def _is_new(self, event_id: str) -> bool:
        here, last = read_cursor(event_id), read_cursor(self._last or "")
        return event_id != self._last if here is None or last is None else here > last

    def _is_end(self, event: Event) -> bool:
        return event.is_last

    def _note_end(self, status: str, count: int) -> None:
        """A caller who knew the last event already would otherwise ask for more for ever."""
        self._empty_streams = self._empty_streams + 1 if is_final(status) and not count else 0
        self._is_over = self._empty_streams >= ENOUGH_EMPTY


class TicketFollower(StreamFollower):
    """The same for a ticket, whose events have numbers for ids and of which none is the last."""

    def _new_events(self, request: ApiRequest, message: SseMessage) -> Iterator[Event]:
        if message.id and self._is_new(message.id):
            event = decoded(self._settings, request, message.data, _TicketEvent)
            yield Event(id=message.id, type=event.type, ts=ms(event.at), step="", data=event.data)

    def _is_new(self, event_id: str) -> bool:
        last = self._last or ""
        return int(event_id) > int(last) if event_id.isdecimal() and last.isdecimal() else event_id != last
