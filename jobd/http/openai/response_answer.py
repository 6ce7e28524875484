"""The answers of `/v1/responses` that take as long as a job does: as a stream of its events, or whole at its end.

A stream has the events after a number that the reader knows, and ends after the last event of the response. Where it
has to end sooner (jobd stops, Postgres is away, a result is lost), an event `error` says so. That is no event of the
response and repeats the number before it: the stream goes on from there. Like all streams here it has neither `id:` nor
`retry:`, and its keep-alive is a comment with a single newline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.http.events import write_at_once_of
from jobd.http.hang_up import while_wanted
from jobd.http.openai.calls import JOB_ID_HEADER, make_call
from jobd.http.openai.ended import result_of
from jobd.http.openai.response_reading import FoundResponse, read_response
from jobd.http.openai.streamed_call import HEADERS, PING, WRITE_S
from jobd.http.openai.whole_call import WholeCall
from jobd.http.problems import refusal_of
from jobd.job.history import START
from jobd.lifecycle.prune import LEADER_KEY, delete_jobs
from jobd.openai.errors import ErrorAnswer, OpenAIError
from jobd.openai.responses_stream import NumberedEvent, ResponseReader
from jobd.store.leader import leading_once

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any
    from uuid import UUID

    from starlette.types import Receive, Scope, Send

    from jobd.follow.followers import EventFollower
    from jobd.http.endpoint import Call
    from jobd.job.history import Cursor
    from jobd.lifecycle.enqueue import NewJob
    from jobd.openai.responses_request import Remembered

#: Seconds that the end of a stream may take to be written.
LAST_S = 1.0

_decode_error = msgspec.json.Decoder(ErrorAnswer).decode


class ResponseStream:
    """Streams a response; `job`: which is to be made first, else it is there."""

    def __init__(self, call: Call, found: FoundResponse, job: NewJob | None = None, after: int = -1) -> None:
        self._call = call
        self._found = found
        self._job = job
        #: The number of the last event that was sent, or that the reader knows.
        self._last = after
        self._has_begun = False
        self._write_at_once = write_at_once_of(call.request)
        self._response = ResponseReader(*found)
        #: Why there will be no more events, though the response has not ended.
        self._fault: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(send)
        except Exception as error:
            if self._has_begun:
                raise
            await refusal_of(error, scope["path"], scope["path"])(scope, receive, send)

    async def _answer(self, send: Send) -> None:
        tailer, job = self._call.services.tailer, self._job
        if job is not None:
            with tailer.reading(job.id, START) as follower:
                made = await make_call(self._call, job)
                if not made.is_existing:
                    tailer.made_before(follower)  # what it begins with is sent at once, though it may wait long
                    await self._follow(follower, send)
                    return
            self._found = self._found._replace(job_id=made.job_id)
        with tailer.reading(self._found.job_id, START) as follower:
            tailer.made_before(follower)
            await self._follow(follower, send)

    async def _follow(self, follower: EventFollower[Cursor], send: Send) -> None:
        request, services, about = self._call.request, self._call.services, self._found.about
        in_flight = request.app.state.in_flight
        in_flight.event_streams += 1
        try:
            with services.call_readers.reading(self._found.job_id) as reader:
                # Who asks by the id comes back for the answer; who sent the call and left may never.
                reader.may_leave = about.background or self._job is None
                async with while_wanted(in_flight, request.receive):
                    reader.may_leave |= await self._write_all(follower, send)
                reader.has_begun = not about.store
                if in_flight.closing.is_set() and not self._response.is_over:
                    self._fault = _stops()
                if self._fault is not None:
                    await self._write_fault(self._fault, send)
        finally:
            in_flight.event_streams -= 1
        with anyio.move_on_after(LAST_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        if not about.store and self._response.is_over:
            await forget(self._call, self._found.job_id)

    async def _write_all(self, follower: EventFollower[Cursor], send: Send) -> bool:
        """Write what comes; whether that was all, False: the reader does not take it."""
        keep_alive_s = self._call.services.config().openai.keep_alive_s
        self._response = ResponseReader(*self._found)
        try:
            async for events in self._events(follower, keep_alive_s):
                new = [event for event in events if event.number > self._last]
                if not await self._write(b"".join(map(_written, new)) or PING, send):
                    return False
                self._last = new[-1].number if new else self._last
        except Exception as error:  # whatever keeps it from going on; what is unexpected is logged
            self._fault = error
        return True

    async def _write_fault(self, error: Exception, send: Send) -> None:
        """Raises the error if it can still be the answer itself."""
        if not self._has_begun:
            raise error
        detail = _decode_error(refusal_of(error, "a response's stream", self._call.request.url.path).body).error
        fault = {"code": detail.code, "message": detail.message, "param": detail.param}
        with anyio.move_on_after(LAST_S):
            await self._write(_written(NumberedEvent(max(0, self._last), "error", fault)), send)

    async def _events(self, follower: EventFollower[Cursor], keep_alive_s: float) -> AsyncIterator[list[NumberedEvent]]:
        """What has come, or nothing after `keep_alive_s`, to the end of the response; raises if that does not come."""
        while not self._response.is_over:
            events = await follower.next_events(keep_alive_s)
            if follower.was_passed_over:
                self._call.services.tailer.has_room_again(follower)
            if not events and follower.is_over:
                raise _stops()
            numbered: list[NumberedEvent] = []
            for event in events:
                result = await result_of(self._call, self._found.job_id) if event.type == "done" else None
                numbered += self._response.read(event, result)
            yield numbered

    async def _write(self, text: bytes, send: Send) -> bool:
        """False: the reader did not take it in time."""
        if not self._has_begun:
            self._has_begun = True
            headers = [*HEADERS, (JOB_ID_HEADER.encode(), str(self._found.job_id).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        elif self._write_at_once is not None and self._write_at_once(text):
            return True
        with anyio.move_on_after(WRITE_S) as writing:
            await send({"type": "http.response.body", "body": text, "more_body": True})
        return not writing.cancelled_caught


class WholeResponse(WholeCall):
    """Makes the job of a response, waits for its end, and answers with the object, however the job ended."""

    def __init__(self, call: Call, job: NewJob, payload: dict[str, Any], about: Remembered) -> None:
        super().__init__(call, job, lambda _, shown: shown)
        self._payload = payload
        self._about = about

    async def _ended(self, job_id: UUID) -> object:
        response = await read_response(self._call, FoundResponse(job_id, self._payload, self._about))
        return response.as_json()

    async def _send(self, job_id: UUID, send: Send) -> None:
        await super()._send(job_id, send)
        if not self._about.store:
            await forget(self._call, job_id)


async def forget(call: Call, job_id: UUID) -> bool:
    """Delete the job of a response that has ended, with all that belongs to it; whether it was there."""
    deleted = await delete_jobs(call.services.database, [job_id])
    if deleted.result_refs:
        async with leading_once(call.services.database, LEADER_KEY) as session:
            if session is not None:  # else a backup or the janitor is at work, and the file is swept later
                await call.services.results.remove(deleted.result_refs)
    return deleted.jobs > 0


def _stops() -> OpenAIError:
    message = "jobd stops, or the response was deleted; ask for the rest with starting_after"
    return OpenAIError(503, message, code="unavailable", retry_after_s=1)


def _written(event: NumberedEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event.as_json()))
