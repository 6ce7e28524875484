"""One client's connection: its bytes, its timeouts and its end.

- A body must keep coming: `BODY_STALL_S` without a byte, or a whole body slower than `BODY_S` and `BODY_BYTES_PER_S`
  allow, is answered with 408. Only time spent waiting for the client counts; a body in one piece is not timed.
- Bytes may follow a whole request (a line end, pipelined requests). Up to `AHEAD_BYTES` of them are read while the
  request is running, because end of file, the sign that the client has left, can only be seen behind them.
- A client that takes no byte of an answer for `WRITE_S` is disconnected.
- The application may answer without having read the body. The rest of the body is then read and dropped for `LINGER_S`:
  closing at once would send a TCP reset, and the client's system would throw the answer away.
- `scope["state"]["reserved"]` is set on a connection admitted for /livez and /readyz only (`jobd.http.accept`).
- `scope["state"]["uid"]` is the peer's user id on a unix socket.
- `scope["state"]["write_at_once"]` writes a chunk straight to the transport, past Hypercorn and h11: the event streams
  send thousands of small chunks a second.
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
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from jobd.http.http1 import Http1, run_app
from jobd.http.hypercorn_names import MAX_RECV, Closed, Event, RawData, TaskGroup, Updated, parse_socket_addr
from jobd.http.whole_request import WholeExchange, read_whole_request, scope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.http.accept import Admission
    from jobd.http.http1 import HttpSettings
    from jobd.http.hypercorn_names import WorkerContext
    from jobd.http.whole_request import WholeRequest

log = logging.getLogger(__name__)

#: Seconds without a byte of the body after which the request is answered with 408.
BODY_STALL_S = 10.0
#: Seconds that a body may take in all, plus one second for every `BODY_BYTES_PER_S` received: against slow-body attacks
#: that send a byte now and then, while a large upload over a slow line still gets through.
BODY_S = 60.0
#: Bytes of a body that earn it one more second: the slowest upload that is let through, in bytes per second.
BODY_BYTES_PER_S = 100 * 1024
#: Seconds for which the rest of a body is read and dropped after the request was answered.
LINGER_S = 2.0
#: Idle timeout in seconds of a connection admitted for /livez and /readyz; short, as a flood may have taken all others.
RESERVED_IDLE_S = 0.5
#: Bytes that are read behind a whole request while it is running, to see whether the client leaves.
AHEAD_BYTES = 64 * 1024
#: Seconds in which a client must take at least one byte of what was written. Checked once in this time, so a client is
#: disconnected after twice this at the latest.
WRITE_S = 30.0

#: `struct ucred` of SO_PEERCRED: pid, uid, gid.
_PEER = struct.Struct("3i")


class ClientReader(asyncio.StreamReader):
    """Reads from a client, and reports at once that the client has left, also while nobody reads.

    It stops receiving at `AHEAD_BYTES` that nobody has read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=AHEAD_BYTES // 2, loop=loop)  # asyncio pauses the transport at twice the limit
        self.has_ended = False
        #: Called when the client has left.
        self.on_end: Callable[[], None] | None = None

    def feed_eof(self) -> None:
        super().feed_eof()
        self._end()

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)  # type: ignore[arg-type]  # typeshed is narrower than asyncio
        self._end()

    def _end(self) -> None:
        self.has_ended = True
        if self.on_end is not None:
            self.on_end()


class ReadAhead:
    """Replaces the event that Hypercorn waits for when bytes follow a request that is not answered yet."""

    def __init__(self, connection: ClientConnection) -> None:
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


class ClientConnection:
    """One client, from the first byte to the last.

    Every connection ends the same way: the client or `hang_up` closes the transport, the reader sees end of file, and
    `run` returns when the application has received `http.disconnect`.
    """

    def __init__(
        self,
        app: Any,
        settings: HttpSettings,
        context: WorkerContext,
        reader: ClientReader,
        writer: asyncio.StreamWriter,
        client: tuple[str, int] | None,
        admission: Admission,
    ) -> None:
        self._app = app
        self._settings = settings
        self._context = context
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._loop = asyncio.get_running_loop()
        self._admission = admission
        self._send_lock = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._slowness = Slowness()
        self._reading: anyio.CancelScope | None = None
        self._left_at: float | None = None
        #: Bytes written since the connection began.
        self._written = 0
        #: How many of them the client had taken at the last check; None: everything was taken, or no check yet.
        self._taken: int | None = None
        self._write_check: asyncio.TimerHandle | None = None
        self._tasks = TaskGroup(self._loop)
        peer = writer.get_extra_info("socket")
        state: dict[str, Any] = {"write_at_once": self._write_at_once}
        if admission.is_reserved:
            state["reserved"] = True
        if peer.family == socket.AF_UNIX:
            state["uid"] = peer_uid(peer.fileno())
        self._client = client
        self._server = parse_socket_addr(peer.family, peer.getsockname())
        self._is_tls = writer.get_extra_info("ssl_object") is not None
        self._state = state
        self._protocol = Http1(
            app,
            settings,
            context,
            self._tasks,
            state,
            self._is_tls,
            client,
            self._server,
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
            if self._write_check is not None:
                self._write_check.cancel()
            self._transport.abort()  # a no-op if the transport is closed already

    def end_if_idle(self) -> None:
        if self._idle is not None:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection after everything written was sent."""
        if not self._transport.is_closing():
            self._transport.close()
            self._check_writes_later()
            if not self._transport.get_write_buffer_size():
                self._admission.rest()  # evictable while it waits for the client's TLS close

    def _be_idle(self) -> None:
        self._be_busy()
        idle_s = self._settings.keep_alive_timeout
        if self._admission.is_reserved:
            self._admission.rest()
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
        """Write one more chunk of an answer that has begun; False: it is closing, or has unsent bytes."""
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        transport.write(chunk)
        self._written += len(chunk)
        self._check_writes_later()
        return True

    async def _send(self, event: Event) -> None:
        """Carry out what the protocol asks for: bytes to write, the end of the connection, idle or busy."""
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
                self._admission.use()
                self._be_busy()

    async def _write(self, data: bytes) -> None:
        async with self._send_lock:
            if not self._transport.is_closing():
                with contextlib.suppress(OSError, RuntimeError):  # the client has left
                    self._writer.write(data)
                    self._written += len(data)
                    self._check_writes_later()
                    await self._writer.drain()
                    return
            await self._protocol.handle(Closed())
            await anyio.lowlevel.checkpoint()  # an application that goes on writing must not starve the event loop

    def _check_writes_later(self) -> None:
        """Schedule a check whether the client takes what was written, or lets the connection be closed."""
        if self._write_check is None:
            self._write_check = self._loop.call_later(WRITE_S, self._check_writes)

    def _check_writes(self) -> None:
        self._write_check = None
        unsent, taken = self._transport.get_write_buffer_size(), None
        if unsent or self._transport.is_closing():
            taken = self._written - unsent - unacknowledged(self._writer.get_extra_info("socket").fileno())
            if taken == self._taken:
                log.info("a client takes nothing of what was written to it: its connection is cut off")
                self._transport.abort()
            else:
                self._check_writes_later()
        self._taken = taken

    def _leave(self) -> None:
        """The answer is sent and the client still sends its body: close our side, drop what comes for `LINGER_S`."""
        self._left_at = time.monotonic()
        with contextlib.suppress(OSError, RuntimeError):  # the client has left
            if self._writer.can_write_eof():
                self._writer.write_eof()
        if self._reading is not None:
            self._reading.deadline = min(self._reading.deadline, anyio.current_time() + LINGER_S)
        self._be_idle()  # an idle connection is closed at once when the server stops

    async def _read_data(self) -> None:
        try:
            while not self._reader.at_eof():
                if not self._protocol.is_within_body():
                    data = await self._reader.read(MAX_RECV)
                    if self._protocol.is_between_requests() and (request := read_whole_request(data)):
                        await self._serve_whole(request)
                        if self._transport.is_closing():
                            break
                        continue
                    self._slowness = Slowness()
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

    async def _serve_whole(self, request: WholeRequest) -> None:
        """Serve a request that has arrived whole, in this task."""
        self._protocol.keep_alive_requests += 1
        scope = scope_of(request, self._state, is_tls=self._is_tls, client=self._client, server=self._server)
        exchange = WholeExchange(request, scope, self._protocol, self._write_answer)
        self._reader.on_end = exchange.leave
        if self._reader.has_ended:
            exchange.leave()
        self._admission.use()
        self._be_busy()
        try:
            await run_app(self._app, scope, exchange.receive, exchange.send)
        finally:
            self._reader.on_end = None
        if not self._transport.is_closing():
            self._be_idle()

    async def _write_answer(self, data: bytes, closes: bool) -> None:
        """Write a whole answer; `closes`: it is the last on this connection."""
        if self._transport.is_closing():
            return
        with contextlib.suppress(OSError, RuntimeError):  # the client has left
            self._writer.write(data)
            self._written += len(data)
            self._check_writes_later()
            if closes:
                self.hang_up()
            elif self._transport.get_write_buffer_size():
                await self._writer.drain()

    async def read_ahead(self) -> None:
        """Buffer what follows the running request; wait for ever when the buffer is full."""
        room = AHEAD_BYTES - self._protocol.connection.unread_bytes
        if room <= 0:
            await anyio.sleep_forever()
        data = await self._reader.read(room)
        if not data:
            raise ConnectionResetError("the client has left")
        self._protocol.connection.receive_data(data)

    async def _read_of_body(self) -> bytes | None:
        """The next bytes of an incomplete body; None when the wait has ended: too slow, or the lingering is over."""
        while True:
            wait_s, asked_at = self._patience(), anyio.current_time()
            with anyio.CancelScope(deadline=asked_at + wait_s) as self._reading:
                data = await self._reader.read(MAX_RECV)
                self._slowness.waited_s += anyio.current_time() - asked_at
                self._slowness.received += len(data)
                return data
            if self._left_at is not None or self._slowness.is_reported:
                return None
            self._slowness.is_reported = True
            await self._protocol.report_too_slow()

    def _patience(self) -> float:
        if self._left_at is not None:
            return self._left_at + LINGER_S - time.monotonic()
        if self._protocol.awaits_invitation():
            return float("inf")
        return BODY_STALL_S if self._slowness.is_reported else self._slowness.patience()


class Slowness:
    """Time spent waiting for one body, and the limit on it."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.received = 0
        #: Whether the application got `jobd.too_slow`; it then has `BODY_STALL_S` to answer with 408.
        self.is_reported = False

    def patience(self) -> float:
        return min(BODY_STALL_S, BODY_S + self.received / BODY_BYTES_PER_S - self.waited_s)


def unacknowledged(fd: int) -> int:
    """Bytes in the socket's send queue: unsent, or sent and not acknowledged by the peer. 0 for a closed socket."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def peer_uid(fd: int) -> int:
    """The user at the other end of a unix socket."""
    with socket.socket(fileno=os.dup(fd)) as peer:
        _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(uid)
