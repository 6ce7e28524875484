"""A call whose answer is sent as server-sent events while its job runs.

- A job that ends before its first delta, within `openai.keep_alive_s`, is answered with its own status. Later errors
  are an event `{"error": {...}}`, after which the stream ends without `[DONE]`.
- Events have neither `id:` nor `retry:`: OpenAI's own clients stumble over both. A keep-alive is a comment that ends
  with one newline only, since a blank line is an event to some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

from jobd.http.events import MEDIA_TYPE, write_at_once_of
from jobd.http.openai.calls import JOB_ID_HEADER, check_token, make_call, while_read
from jobd.http.openai.delta_stream import DeltaStream
from jobd.http.problems import refusal_of
from jobd.openai.errors import OpenAIError
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from starlette.types import Receive, Scope, Send

    from jobd.follow.followers import EventFollower
    from jobd.http.endpoint import Call
    from jobd.job.history import Cursor
    from jobd.lifecycle.enqueue import NewJob
    from jobd.openai.answer import ModelAnswer
    from jobd.openai.deltas import Delta

PING = b": ping\n"
DONE = b"data: [DONE]\n\n"
#: Seconds in which a client must take what was sent before it is cut off.
WRITE_S = 30.0
#: The same for an error at the end of a stream.
LAST_WRITE_S = 1.0

#: Errors of a stream whose job has not ended.
_GOES_ON = frozenset({"stream_broken", "unavailable"})
HEADERS = [
    (b"content-type", f"{MEDIA_TYPE}; charset=utf-8".encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Chunks(Protocol):
    """The shape of a stream."""

    def first(self) -> list[bytes]: ...
    def of(self, delta: Delta) -> bytes | None: ...
    def last(self, answer: ModelAnswer) -> list[bytes]: ...


class StreamedCall:
    def __init__(self, call: Call, job: NewJob, chunks_of: Callable[[UUID], Chunks]) -> None:
        self._call = call
        self._job = job
        self._chunks_of = chunks_of
        self._has_begun = False
        self._write_at_once = write_at_once_of(call.request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tailer = self._call.services.tailer
        try:
            with tailer.reading(self._job.id) as follower:
                made = await make_call(self._call, self._job)
                if not made.is_existing:
                    tailer.made(follower)
                    await self._answer(made.job_id, follower, send)
                    return
            with tailer.reading(made.job_id) as follower:
                tailer.made_before(follower)
                await self._answer(made.job_id, follower, send)
        except Exception as error:
            if self._has_begun:
                raise
            await refusal_of(error, scope["path"], scope["path"])(scope, receive, send)

    async def _answer(self, job_id: UUID, follower: EventFollower[Cursor], send: Send) -> None:
        services, in_flight = self._call.services, self._call.request.app.state.in_flight
        stream = DeltaStream(self._call, job_id, follower)
        in_flight.event_streams += 1
        try:
            with services.call_readers.reading(job_id) as reader:
                failed: Exception | None = None
                async with while_read(self._call):
                    try:
                        await self._write_all(stream, job_id, send)
                        reader.may_leave = True
                    except Exception as error:  # once the stream has begun, any error can only be a part of it
                        failed = error
                        reader.may_leave = _is_end(error)
                reader.has_begun = self._has_begun
                if failed is not None:
                    await self._fail(failed, job_id, send)
                elif not self._has_begun:
                    check_token(self._call)
        finally:
            in_flight.event_streams -= 1
        if self._has_begun:
            with anyio.move_on_after(LAST_WRITE_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_all(self, stream: DeltaStream, job_id: UUID, send: Send) -> None:
        keep_alive_s = self._call.services.config().openai.keep_alive_s
        chunks = self._chunks_of(job_id)
        while True:
            deltas = await stream.next(keep_alive_s)
            parts: list[bytes | None] = [] if self._has_begun else [*chunks.first()]
            parts += [chunks.of(delta) for delta in deltas]
            if stream.answer is not None:
                parts += chunks.last(stream.answer)
            text = b"".join(b"data: %b\n\n" % part for part in parts if part is not None)
            if stream.answer is not None:
                await self._write(text + DONE, job_id, send)
                return
            await self._write(text if deltas else text + PING, job_id, send)

    async def _write(self, text: bytes, job_id: UUID, send: Send) -> None:
        if not self._has_begun:
            self._has_begun = True
            headers: Sequence[tuple[bytes, bytes]] = [*HEADERS, (JOB_ID_HEADER.encode(), str(job_id).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        elif self._write_at_once is not None and self._write_at_once(text):
            return
        with anyio.fail_after(WRITE_S):
            await send({"type": "http.response.body", "body": text, "more_body": True})

    async def _fail(self, error: Exception, job_id: UUID, send: Send) -> None:
        path = self._call.request.url.path
        answer = refusal_of(error, path, path)
        if self._has_begun:
            with anyio.move_on_after(LAST_WRITE_S):
                await self._write(b"data: %b\n\n" % bytes(answer.body), job_id, send)
        else:
            answer.headers[JOB_ID_HEADER] = str(job_id)
            await answer(self._call.request.scope, self._call.request.receive, send)


def _is_end(error: Exception) -> bool:
    """Whether the job has ended with this error. After a restart, for one, it goes on for nobody, and is canceled."""
    return isinstance(error, ApiError) or (isinstance(error, OpenAIError) and error.error_code not in _GOES_ON)
