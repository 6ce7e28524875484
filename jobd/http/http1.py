"""HTTP/1.1 as Hypercorn serves it, with what it leaves open closed.

- HTTP/2 is not spoken: its preface is refused, and a wish to upgrade is passed over, as the standard allows (some
  clients send one with every first request). WebSockets likewise.
- Folded headers are refused; an error that h11 finds is answered as a problem document.
- A body must keep coming: `BODY_STALL_S` without a byte, or too slow in all, is a 408. Only time spent waiting for the
  client counts, and a request whose body came in one piece is not timed at all.
- A body is invited (100 Continue) when the application first asks for it, so one that is refused is never sent.
- Bytes may follow a whole request (a line end, further requests). They are kept, up to `AHEAD_BYTES`, while it is under
  way, so that the end behind them is seen: the client has left.
- Whoever takes nothing of an answer for `WRITE_S` is cut off.
- The application may answer without having read the body. What still comes is then read and dropped for `LINGER_S`, for
  closing at once would make the client's system throw the answer away.
- A connection in a place that is kept for /livez and /readyz (`jobd.http.accept`) has `scope["state"]["reserved"]`.
- Over a unix socket the peer's user id is in `scope["state"]["uid"]`.
- `scope["state"]["write_at_once"]` writes a chunk past everything in between, for thousands of small ones a second.

Of Hypercorn only its protocol is used (h11 to ASGI); connections are accepted in `jobd.http.accept`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import struct
import sys
import termios
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel
import h11
from h11._receivebuffer import ReceiveBuffer
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import MAX_RECV
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.utils import parse_socket_addr
from starlette.requests import ClientDisconnect

from jobd.http.problems import problem
from jobd.wire.problems import CATALOGUE, MEDIA_TYPE, ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.asyncio.worker_context import WorkerContext

    from jobd.http.accept import Place

    Part = dict[str, Any]

log = logging.getLogger(__name__)

#: An incomplete head may grow to this; `jobd.http.request_checks` has limits for complete ones.
MAX_HEAD_BYTES = 32 * 1024
#: Without a byte of the body for so long, or slower in all than this, the client is given up.
BODY_STALL_S = 10.0
BODY_S = 60.0
BODY_BYTES_PER_S = 100 * 1024
#: How long the rest of a body that nobody wants is still taken.
LINGER_S = 2.0
#: How long a connection in a place that is kept for /livez and /readyz may be idle: the others may be a flood.
RESERVED_IDLE_S = 0.5
#: Parts of a body that are read ahead of the application.
AHEAD = 10
#: Bytes behind a whole request that are read while it is under way: a client that leaves is seen behind them.
AHEAD_BYTES = 64 * 1024
#: How long a client may take nothing of what was written to it, in seconds. It is looked at once in this time, so it is
#: cut off after twice this at the latest.
WRITE_S = 30.0

_OF_STATUS = {431: "headers_too_large", 501: "transfer_encoding"}
_PEER = struct.Struct("3i")


class Settings(HypercornConfig):
    """Hypercorn's settings, as far as they are about one connection."""


class Strict(h11.Connection):
    """h11 that takes no folded headers, and leaves the invitation of a body to us."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._receive_buffer = Unfolded()

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        return False

    @property
    def unread_bytes(self) -> int:
        return len(self._receive_buffer)


class Unfolded(ReceiveBuffer):
    def maybe_extract_lines(self) -> list[bytearray] | None:
        lines = super().maybe_extract_lines()
        for line in lines or ():
            if line.startswith((b" ", b"\t")):
                raise h11.LocalProtocolError("a header goes on in the next line", error_status_hint=400)
        return lines


class Inbox:
    """What the application receives of one request. Whoever fills it waits while it is full, unless it was closed."""

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
        while len(self._parts) >= AHEAD and not self._is_closed:
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
        self.connection: Strict = Strict()
        self.can_read = can_read

    def is_within_body(self) -> bool:
        return self.connection.their_state is h11.SEND_BODY

    def awaits_invitation(self) -> bool:
        return self.connection.client_is_waiting_for_100_continue

    async def invite(self) -> None:
        await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def tell_too_slow(self) -> None:
        if self.stream is not None:
            await cast("HTTPStream", self.stream).app_put(cast("Any", {"type": "jobd.too_slow"}))

    async def _check_protocol(self, event: h11.Request) -> None:
        """There is no other protocol to go to."""

    async def _create_stream(self, request: h11.Request) -> None:
        if request.http_version not in (b"1.1", b"1.0"):
            await self._send_error_response(505)
            await self.send(Closed())
            return
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            cast("Any", self),  # all that it asks of a task group is `spawn_app`
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
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

    async def spawn_app(self, app: Any, config: object, scope: Any, send: Any) -> Callable[[Part], Awaitable[None]]:
        inbox = Inbox(self)
        self.task_group.spawn(_run, app, scope, inbox.get, send)
        return inbox.put

    async def _send_error_response(self, status_code: int) -> None:
        """The answer to what h11 cannot read."""
        code = "http_version" if status_code == 505 else _OF_STATUS.get(status_code, "bad_request")
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


async def _run(app: Any, scope: Any, receive: Any, send: Any) -> None:
    try:
        await app(scope, receive, send)
    except ClientDisconnect:  # while its body was read
        log.debug("a client left within its request")
    except Exception as error:  # it was answered and logged where it is known what was asked
        log.error("a request ended with %s", type(error).__name__)
    finally:
        await send(None)


class ReadAhead:
    """In the place of the event that Hypercorn waits for when bytes follow a request that is not answered yet."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_set = False
        self._waiting: anyio.CancelScope | None = None

    def is_set(self) -> bool:
        return self._is_set

    async def clear(self) -> None:
        self._is_set = False

    async def set(self) -> None:
        self._is_set = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def wait(self) -> None:
        while not self._is_set:
            with anyio.CancelScope() as self._waiting:
                await self._connection.read_ahead()
        self._waiting = None


class Connection:
    """One client, from the first byte to the last.

    Everything ends the same way: the transport is closed, by the client or by `hang_up`, its reader sees the end, and
    `run` returns when the application has heard of it.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        context: WorkerContext,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: tuple[str, int] | None,
        place: Place,
    ) -> None:
        self._settings = settings
        self._context = context
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._loop = asyncio.get_running_loop()
        self._place = place
        self._send_lock = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._slowness = Slowness()
        self._reading: anyio.CancelScope | None = None
        self._left_at: float | None = None
        #: Bytes written in all, and how many of them the client had taken at the last look, if there was one.
        self._written = 0
        self._taken: int | None = None
        self._look: asyncio.TimerHandle | None = None
        self._tasks = TaskGroup(self._loop)
        peer = writer.get_extra_info("socket")
        state: dict[str, Any] = {"write_at_once": self._write_at_once}
        if place.is_reserved:
            state["reserved"] = True
        if peer.family == socket.AF_UNIX:
            state["uid"] = peer_uid(peer.fileno())
        self._protocol = Http1(
            app,
            settings,
            context,
            self._tasks,
            state,
            writer.get_extra_info("ssl_object") is not None,
            client,
            parse_socket_addr(peer.family, peer.getsockname()),
            self._send,
            can_read=ReadAhead(self),
        )

    async def run(self) -> None:
        try:
            async with self._tasks:
                self._be_idle()
                await self._read_data()
            self.hang_up()
            await self._writer.wait_closed()
        finally:
            self._be_busy()
            if self._look is not None:
                self._look.cancel()
            self._transport.abort()  # which does nothing if it is closed

    def end_if_idle(self) -> None:
        if self._idle is not None:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection when what was written is sent."""
        if not self._transport.is_closing():
            self._transport.close()
            self._look_later()
            if not self._transport.get_write_buffer_size():
                self._place.rest()  # it may wait for the end of TLS

    def _be_idle(self) -> None:
        self._be_busy()
        idle_s = self._settings.keep_alive_timeout
        if self._place.is_reserved:
            self._place.rest()
            idle_s = min(idle_s, RESERVED_IDLE_S)
        if self._context.terminated.is_set():
            self.hang_up()
        else:
            self._idle = self._loop.call_later(idle_s, self.hang_up)

    def _be_busy(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _write_at_once(self, data: bytes) -> bool:
        """Write one more chunk of an answer that has begun and whose application waits; False: there was no room."""
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        transport.write(chunk)
        self._written += len(chunk)
        self._look_later()
        return True

    async def _send(self, event: Event) -> None:
        """What the protocol wants done."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            if self._protocol.is_within_body() and self._left_at is None:
                self._leave()
            else:
                self.hang_up()
        elif isinstance(event, Updated):
            if event.idle:
                self._be_idle()
            else:
                self._place.use()
                self._be_busy()

    async def _write(self, data: bytes) -> None:
        async with self._send_lock:
            if not self._transport.is_closing():
                with contextlib.suppress(OSError, RuntimeError):  # the client has left
                    self._writer.write(data)
                    self._written += len(data)
                    self._look_later()
                    await self._writer.drain()
                    return
            await self._protocol.handle(Closed())
            await anyio.lowlevel.checkpoint()  # one who goes on writing must not keep the loop from all else

    def _look_later(self) -> None:
        """See to it that somebody looks whether the client takes what is written, or lets the connection be closed."""
        if self._look is None:
            self._look = self._loop.call_later(WRITE_S, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        unsent, taken = self._transport.get_write_buffer_size(), None
        if unsent or self._transport.is_closing():
            taken = self._written - unsent - unacknowledged(self._writer.get_extra_info("socket").fileno())
            if taken == self._taken:
                log.info("a client takes nothing of what was written to it: its connection is cut off")
                self._transport.abort()
            else:
                self._look_later()
        self._taken = taken

    def _leave(self) -> None:
        """The answer is sent and the client still sends: say that nothing more comes, drop what does for a while."""
        self._left_at = time.monotonic()
        with contextlib.suppress(OSError, RuntimeError):  # the client has left
            if self._writer.can_write_eof():
                self._writer.write_eof()
        if self._reading is not None:
            self._reading.deadline = min(self._reading.deadline, anyio.current_time() + LINGER_S)
        self._be_idle()  # which a stop of the server ends at once

    async def _read_data(self) -> None:
        try:
            while not self._reader.at_eof():
                if not self._protocol.is_within_body():
                    self._slowness = Slowness()
                    data = await self._reader.read(MAX_RECV)
                elif (part := await self._read_of_body()) is not None:
                    data = part
                else:
                    break
                if self._left_at is None:
                    await self._protocol.handle(RawData(data))
        except OSError:
            pass
        self._be_busy()
        await self._protocol.handle(Closed())

    async def read_ahead(self) -> None:
        """Keep what follows the request that is under way; without end when that is too much already."""
        room = AHEAD_BYTES - self._protocol.connection.unread_bytes
        if room <= 0:
            await anyio.sleep_forever()
        data = await self._reader.read(room)
        if not data:
            raise ConnectionResetError("the client has left")
        self._protocol.connection.receive_data(data)

    async def _read_of_body(self) -> bytes | None:
        """The next bytes of a body that is not complete; None when they are not waited for any more."""
        while True:
            wait_s, asked_at = self._patience(), anyio.current_time()
            with anyio.CancelScope(deadline=asked_at + wait_s) as self._reading:
                data = await self._reader.read(MAX_RECV)
                self._slowness.waited_s += anyio.current_time() - asked_at
                self._slowness.received += len(data)
                return data
            if self._left_at is not None or self._slowness.is_told:
                return None
            self._slowness.is_told = True
            await self._protocol.tell_too_slow()

    def _patience(self) -> float:
        if self._left_at is not None:
            return self._left_at + LINGER_S - time.monotonic()
        if self._protocol.awaits_invitation():
            return float("inf")
        return BODY_STALL_S if self._slowness.is_told else self._slowness.patience()


class Slowness:
    """How long a body has been waited for."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.received = 0
        #: Whether the application was told that it is too slow; it then has as long again to answer.
        self.is_told = False

    def patience(self) -> float:
        return min(BODY_STALL_S, BODY_S + self.received / BODY_BYTES_PER_S - self.waited_s)


def unacknowledged(fd: int) -> int:
    """Bytes that the system has not sent yet or whose arrival is not confirmed; 0 for a socket that is closed."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def peer_uid(fd: int) -> int:
    """The user at the other end of a unix socket."""
    with socket.socket(fileno=os.dup(fd)) as peer:
        _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)
