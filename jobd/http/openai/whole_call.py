"""A call whose answer is sent in one piece, however long its job waits and runs.

A job that ends within `openai.keep_alive_s` is answered with its own status. Later the status has to be 200, since
blank bytes are sent meanwhile, which JSON allows in front of a value and which keep clients and proxies from giving up;
a job that then fails is answered with the error object all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from jobd.http.endpoint import JSON
from jobd.http.openai.calls import JOB_ID_HEADER, check_token, make_call, while_read
from jobd.http.openai.ended import result_of
from jobd.http.problems import refusal_of
from jobd.openai.errors import OpenAIError
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from starlette.types import Receive, Scope, Send

    from jobd.follow.followers import Follower
    from jobd.http.endpoint import Call
    from jobd.job.history import Cursor
    from jobd.lifecycle.enqueue import NewJob

#: Sent while a job has not ended.
BLANK = b"\n"
#: Seconds in which a client must take a blank byte before it is cut off.
WRITE_S = 30.0


class WholeCall:
    """The answer to a call: makes its job, waits for its end, and sends what `shaped` makes of the result."""

    def __init__(self, call: Call, job: NewJob, shaped: Callable[[UUID, Any], object]) -> None:
        self._call = call
        self._job = job
        self._shaped = shaped
        self._has_begun = False
        self._headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._call.services
        try:
            with services.tailer.waiting(self._job.id, is_made=False) as waiter:
                made = await make_call(self._call, self._job)
                if not made.is_existing:
                    services.tailer.made(waiter)
                    await self._answer(made.job_id, waiter, send)
                    return
            with services.tailer.waiting(made.job_id) as waiter:
                services.tailer.made_before(waiter)
                await self._answer(made.job_id, waiter, send)
        except Exception as error:
            if self._has_begun:
                raise
            await refusal_of(error, scope["path"], scope["path"])(scope, receive, send)

    async def _answer(self, job_id: UUID, waiter: Follower[Cursor], send: Send) -> None:
        services = self._call.services
        self._headers = [
            (b"content-type", JSON.encode()),
            (b"cache-control", b"no-store"),
            (JOB_ID_HEADER.encode(), str(job_id).encode()),
        ]
        with services.call_readers.reading(job_id) as reader:
            has_ended = False
            async with while_read(self._call):
                await self._until_over(waiter, send)
                has_ended = True
            if has_ended:
                reader.may_leave = True
                await self._send(job_id, send)
            elif not self._has_begun:
                check_token(self._call)

    async def _until_over(self, waiter: Follower[Cursor], send: Send) -> None:
        keep_alive_s = self._call.services.config().openai.keep_alive_s
        while not waiter.is_over:
            await waiter.next(keep_alive_s)
            if not waiter.is_over:
                with anyio.fail_after(WRITE_S):
                    await self._begin(200, send)
                    await send({"type": "http.response.body", "body": BLANK, "more_body": True})

    async def _begin(self, status: int, send: Send) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": status, "headers": self._headers})

    async def _ended(self, job_id: UUID) -> object:
        """What is answered for a job that has ended; raises OpenAIError or ApiError."""
        return self._shaped(job_id, await result_of(self._call, job_id))

    async def _send(self, job_id: UUID, send: Send) -> None:
        try:
            body = msgspec.json.encode(await self._ended(job_id))
        except (OpenAIError, ApiError) as error:
            if not self._has_begun:
                answer = refusal_of(error, "", self._call.request.url.path)
                answer.headers[JOB_ID_HEADER] = str(job_id)
                await answer(self._call.request.scope, self._call.request.receive, send)
                return
            body = bytes(refusal_of(error, "", self._call.request.url.path).body)
        if not self._has_begun:
            self._headers.append((b"content-length", str(len(body)).encode()))
        await self._begin(200, send)
        await send({"type": "http.response.body", "body": body, "more_body": False})
