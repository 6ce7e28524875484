"""HTTP/1.1 to ASGI: Hypercorn's protocol with jobd's own rules, for all that is not a plain request in one piece.

- HTTP/2 is not spoken: its preface is refused, and an upgrade header is ignored, as the standard allows (some clients
  send one with every first request). WebSockets likewise.
- Folded headers are refused; a protocol error that h11 finds is answered as a problem document.
- The body is invited (100 Continue) when the application first asks for it, so a body that is refused is never sent.

Connections are accepted in `jobd.http.accept`; their bytes are read and written in `jobd.http.connection`. Plain
requests in one piece are served by `jobd.http.whole_request`, which comes here for answers that are not.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import anyio
import h11
from starlette.requests import ClientDisconnect

from jobd.http.hypercorn_names import (
    STREAM_ID,
    Closed,
    H11Protocol,
    HTTPStream,
    HypercornConfig,
    ReceiveBuffer,
    Request,
)
from jobd.http.problems import problem
from jobd.wire.problems import CATALOGUE, MEDIA_TYPE, ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jobd.http.connection import ReadAhead
    from jobd.http.whole_request import WholeRequest

    Part = dict[str, Any]

log = logging.getLogger(__name__)

#: Bytes of an incomplete request head at which it is refused; `jobd.http.request_checks` limits complete heads.
MAX_HEAD_BYTES = 32 * 1024
#: Body parts that are read ahead of the application before reading pauses.
PARTS_AHEAD = 10

#: Problem code for each status that h11 suggests; `bad_request` for any other.
_CODE_OF_STATUS = {431: "headers_too_large", 501: "transfer_encoding"}


class HttpSettings(HypercornConfig):
    """Hypercorn's settings, of which only those about one connection are used."""


class StrictH11(h11.Connection):
    """h11 that refuses folded headers, and leaves 100 Continue to `BodyInbox`."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._receive_buffer = UnfoldedBuffer()

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        return False

    @property
    def unread_bytes(self) -> int:
        return len(self._receive_buffer)


class UnfoldedBuffer(ReceiveBuffer):
    """h11's buffer of received bytes, refusing a header line that continues the one before it."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        lines = super().maybe_extract_lines()
        for line in lines or ():
            if line.startswith((b" ", b"\t")):
                raise h11.LocalProtocolError("a header goes on in the next line", error_status_hint=400)
        return lines


class BodyInbox:
    """What the application receives of one request: body parts and `http.disconnect`. `put` waits while it is full."""

    def __init__(self, protocol: Http1) -> None:
        self._protocol = protocol
        self._parts: deque[Part] = deque()
        self._arrived: anyio.Event | None = None
        self._taken: anyio.Event | None = None
        self._is_closed = False

    async def put(self, part: Part) -> None:
        if part["type"] == "http.disconnect":
            self._is_closed = True
            if self._taken is not None:
                self._taken.set()
        while len(self._parts) >= PARTS_AHEAD and not self._is_closed:
            self._taken = anyio.Event()
            await self._taken.wait()
        if not self._is_closed:
            self._parts.append(part)
        if self._arrived is not None:
            self._arrived.set()

    async def get(self) -> Part:
        if self._protocol.awaits_invitation():
            await self._protocol.invite()
        while not self._parts:
            if self._is_closed:
                return {"type": "http.disconnect"}
            if self._arrived is None or self._arrived.is_set():
                self._arrived = anyio.Event()
            await self._arrived.wait()
        part = self._parts.popleft()
        if self._taken is not None:
            self._taken.set()
        if part["type"] == "jobd.too_slow":
            raise ApiError("body_timeout", "the body came too slowly; send it again", headers={"Connection": "close"})
        return part


class Http1(H11Protocol):
    """One connection's requests, one after the other."""

    def __init__(self, *arguments: Any, can_read: ReadAhead) -> None:
        super().__init__(*arguments)
        self.connection: StrictH11 = StrictH11()
        self.can_read = can_read

    def is_within_body(self) -> bool:
        return self.connection.their_state is h11.SEND_BODY

    def awaits_invitation(self) -> bool:
        return self.connection.client_is_waiting_for_100_continue

    def is_between_requests(self) -> bool:
        return self.connection.our_state is h11.IDLE and not self.connection.unread_bytes

    def is_last_request(self) -> bool:
        """Whether the connection ends with the present request, because it has had enough of them."""
        return self.keep_alive_requests >= self.config.keep_alive_max_requests

    def take_over(self, request: WholeRequest, scope: Part, put: Callable[[Part], Awaitable[None]]) -> HTTPStream:
        """Read a request that was read without h11 so far; the stream returned writes its answer."""
        self.connection.receive_data(request.received)
        while not isinstance(self.connection.next_event(), h11.EndOfMessage):
            pass
        self.stream = stream = self._new_stream()
        stream.scope, stream.start_time, stream.app_put = cast("Any", scope), time.time(), cast("Any", put)
        return stream

    async def invite(self) -> None:
        await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def report_too_slow(self) -> None:
        if self.stream is not None:
            await cast("HTTPStream", self.stream).app_put(cast("Any", {"type": "jobd.too_slow"}))

    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore upgrades: no other protocol is spoken."""

    async def _create_stream(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.1", b"1.0"):
            await self._send_error_response(505)
            await self.send(Closed())
            return
        self.stream = self._new_stream()
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    def _new_stream(self) -> HTTPStream:
        return HTTPStream(
            self.app,
            self.config,
            self.context,
            cast("Any", self),  # HTTPStream uses nothing of its task group but `spawn_app`
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )

    async def spawn_app(self, app: Any, config: object, scope: Any, send: Any) -> Callable[[Part], Awaitable[None]]:
        inbox = BodyInbox(self)
        self.task_group.spawn(run_app, app, scope, inbox.get, send)
        return inbox.put

    async def _send_error_response(self, status_code: int) -> None:
        """Answer a request that h11 cannot parse with a problem document."""
        code = "http_version" if status_code == 505 else _CODE_OF_STATUS.get(status_code, "bad_request")
        answer = problem(code, CATALOGUE[code].meaning)
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(answer.body)).encode()),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=answer.status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=bytes(answer.body)))
        await self._send_h11_event(h11.EndOfMessage())


async def run_app(app: Any, scope: Any, receive: Any, send: Any) -> None:
    try:
        await app(scope, receive, send)
    except ClientDisconnect:  # the client left while its body was read
        log.debug("a client left within its request")
    except Exception as error:  # `jobd.http.endpoint` has answered and logged it with its route
        log.error("a request ended with %s", type(error).__name__)
    finally:
        await send(None)
