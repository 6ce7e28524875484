"""Live events as server-sent events: one job's, with a cursor that survives anything, or everybody's, from now on.

A stream begins with `hello`, has a comment every few seconds so that dead lines are noticed, and ends by itself after
the last event of its job. A client that does not read for
`WRITE_S` is cut off and can reconnect with its cursor.
"""

from __future__ import annotations

import contextlib
import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec

from jobd.errors import ServerDown
from jobd.follow.firehose import gap_note
from jobd.http.answers import check_seen, job_id_in, missing
from jobd.http.endpoint import Call, Parameter, get
from jobd.http.hang_up import while_wanted
from jobd.http.jobs import JOB_ID
from jobd.http.query import read_query
from jobd.job.history import START, Cursor, newest, read_cursor
from jobd.lifecycle.events import HistoryPlace, read_history
from jobd.lifecycle.read import owned_among
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from uuid import UUID

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from jobd.follow.firehose import Listener, Note
    from jobd.follow.followers import Follower, WriteAtOnce
    from jobd.follow.jobs import Tailer
    from jobd.http.gateway import InFlight
    from jobd.job.history import Record

#: Seconds of silence after which a comment is sent, so that both ends notice a dead connection.
HEARTBEAT_S = 15.0
#: Seconds in which a client must take what was sent before its stream is cut.
WRITE_S = 30.0
#: Seconds that a stream of everybody's events rests after each part, for each of these streams: one hears of changes at
#: once, fifty pages on a busy node within a fifth of a second, and jobd writes 250 parts a second at most.
REST_S = 0.004
#: Longest such rest in seconds.
LONGEST_REST_S = 0.25
#: Milliseconds after which a client should reconnect (the `retry` field of SSE).
RETRY_MS = 1000

MEDIA_TYPE = "text/event-stream"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
#: Cursor that means the newest event; `hello` says which event that is, for a client that reconnects.
NOW = "now"
LIFECYCLE = ("queued", "running", "done", "error", "canceled", "cancel_requested")

JOB_PARAMETERS = (
    JOB_ID,
    Parameter("after", str, "The id of the last event that is known, or `now`; as Last-Event-ID."),
    Parameter("Last-Event-ID", str, "The id of the last event that is known; `now`: of the newest.", "header"),
)
ALL_PARAMETERS = (
    Parameter("task", str, "Only jobs of this task."),
    Parameter("queue", str, "Only jobs of this queue."),
    Parameter("type", Literal[LIFECYCLE], "Only events of this type."),
)


class EventStream:
    """An answer that writes what `parts` yields until it ends, the client goes, or the gateway closes."""

    def __init__(
        self, request: Request, parts: AsyncIterator[bytes], at_end: Callable[[], None] = lambda: None
    ) -> None:
        self._in_flight: InFlight = request.app.state.in_flight
        self._parts = parts
        #: Called when nothing more is written, even if nothing was.
        self._at_end = at_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._in_flight.event_streams += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            async with while_wanted(self._in_flight, receive):
                await self._write(send)
        finally:
            self._in_flight.event_streams -= 1
            self._at_end()
        with anyio.move_on_after(1):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send) -> None:
        with anyio.CancelScope() as writing:
            async for part in self._parts:
                writing.deadline = anyio.current_time() + WRITE_S
                await send({"type": "http.response.body", "body": part, "more_body": True})
                writing.deadline = math.inf


async def job_events(call: Call) -> Any:
    job_id = job_id_in(call.request.path_params["id"])
    after = _cursor_of(call.request)
    await check_seen(call, [job_id])
    tailer = call.services.tailer
    follower = tailer.join(job_id, write_at_once_of(call.request))  # before the job is read: nothing is missed
    try:
        record = await _record(call, job_id, after or START)
        if after is None:
            while record.is_cut and record.open_n is None:  # a final job with several pages of events: go to the last
                record = await _record(call, job_id, newest(record))
            after = newest(record)
        tailer.begin(follower, after, record)
    except BaseException:
        tailer.leave(follower)
        raise
    hello = {"job_id": str(job_id), "status": record.status, "after": str(after)}
    return EventStream(call.request, _events_of(tailer, follower, hello), partial(tailer.leave, follower))


async def _events_of(tailer: Tailer, follower: Follower[Cursor], hello: object) -> AsyncIterator[bytes]:
    yield event_part("hello", hello, retry=True)
    async for part in tailer.parts(follower, HEARTBEAT_S):
        yield part


def write_at_once_of(request: Request) -> WriteAtOnce | None:
    """As the HTTP/1.1 connection left it in the scope; an answer to HTTP/1.0 has no chunks."""
    if request.scope["http_version"] != "1.1":
        return None
    found: WriteAtOnce | None = request.scope["state"].get("write_at_once")
    return found


async def _record(call: Call, job_id: UUID, after: Cursor) -> Record:
    """The job as it stands; a cursor that no event of it ever had is refused rather than waited for."""
    (record,) = await read_history(call.services.database, [HistoryPlace(job_id, after)])
    if record is None:
        raise await missing(call, job_id)
    if after <= newest(record) or record.is_cut:
        return record
    (whole,) = await read_history(call.services.database, [HistoryPlace(job_id, START)])
    last = newest(whole or record)
    raise ApiError("cursor_ahead", f"job {job_id} has no event {after} yet, its newest is {last}; start without one")


def _cursor_of(request: Request) -> Cursor | None:
    """None: that of the newest event."""
    said = request.headers.getlist("last-event-id")
    said += read_query(request, JOB_PARAMETERS).values()
    if not said or said == [""]:
        return START
    cursor = read_cursor(said[0])
    if (cursor is None and said[0] != NOW) or len(set(said)) > 1:
        raise ApiError(
            "bad_cursor", f"Last-Event-ID (or after) must be the id of an event, like 1-0, or {NOW}; or be left out"
        )
    return cursor


# -- everybody's events -------------------------------------------------------------------------------------------


async def all_events(call: Call) -> Any:
    filters = read_query(call.request, ALL_PARAMETERS)
    listening = contextlib.ExitStack()
    listener = listening.enter_context(call.services.tailer.listening())  # who has had `hello` misses nothing
    return EventStream(call.request, _all_events(call, listener, filters), listening.close)


async def _all_events(call: Call, listener: Listener, filters: dict[str, str]) -> AsyncIterator[bytes]:
    yield event_part("hello", {"filters": filters}, retry=True)
    while not listener.is_over:
        notes = await _seen(call, await listener.next(HEARTBEAT_S))
        parts = [_note_part(note) for note in notes if not filters or _fits(note, filters)]
        yield b"".join(parts) if parts or notes else b": \n\n"
        await anyio.sleep(min(LONGEST_REST_S, REST_S * call.services.tailer.listeners))


async def _seen(call: Call, notes: list[Note]) -> list[Note]:
    """Those that the caller may see. While Postgres is away nobody knows which they are: a gap takes their place."""
    sees, job_ids = call.principal.sees, {note.job_id for note in notes if note.type != "gap"}
    if sees is None or not job_ids:
        return notes
    try:
        own = await owned_among(call.services.database, sees, job_ids)
    except ServerDown:
        return [gap_note()]
    return [note for note in notes if note.type == "gap" or note.job_id in own]


def _fits(note: Note, filters: dict[str, str]) -> bool:
    return note.type == "gap" or all(getattr(note, name) == value for name, value in filters.items())


@lru_cache(maxsize=1024)  # every stream has the same
def _note_part(note: Note) -> bytes:
    if note.type == "gap":
        return event_part("gap", {"ts": note.ts})
    return event_part(
        note.type,
        {
            "job_id": str(note.job_id),
            "type": note.type,
            "ts": note.ts,
            "task": note.task,
            "queue": note.queue,
            "attempt": note.attempt,
        },
    )


# -- writing ------------------------------------------------------------------------------------------------------


def event_part(kind: str, data: object, *, retry: bool = False) -> bytes:
    """One event without an id; `retry` adds the field that says how soon to reconnect."""
    hint = b"retry: %d\n" % RETRY_MS if retry else b""
    return hint + b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))


ENDPOINTS = (
    get(
        "/v1/jobs/{id}/events",
        "client",
        job_events,
        "Follow the events of a job, live or from any of them on",
        answers={200: None},
        problems=("bad_cursor", "cursor_ahead", "gone_job", "unknown_job", "invalid"),
        parameters=JOB_PARAMETERS,
        media_type=MEDIA_TYPE,
        own_jobs=True,
    ),
    get(
        "/v1/events",
        "client",
        all_events,
        "Follow what happens to all jobs, from now on",
        answers={200: None},
        problems=("invalid",),
        parameters=ALL_PARAMETERS,
        media_type=MEDIA_TYPE,
        own_jobs=True,
    ),
)
