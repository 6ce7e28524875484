"""Who has a connection: counted from its first moment to its last, and what clients that leave or say nothing cost."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import stat
import struct
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jobd.auth.doorkeeper import Doorkeeper
from jobd.config.model import Config
from jobd.http.accept import ACCEPT_BATCH, RESERVED, ConnectionLimit
from jobd.http.gateway import Gateway
from jobd.http.hang_up import while_wanted
from jobd.http.listen import TlsFiles, bind_listener
from jobd.http.request_checks import Guard
from jobd.supervise.service import Handle
from tests.support.certificates import make_certificate
from tests.support.raw_http import answers_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from anyio.abc import ByteStream
    from starlette.requests import Request

    from tests.support.daemon import Jobd

DEADLINE_S = 15.0
LIMIT = 20
HOST = b"Host: localhost\r\n"
GET = b"GET /other HTTP/1.1\r\n" + HOST + b"\r\n"


async def alive(request: Request) -> Response:
    return Response(b"{}")


async def hold(request: Request) -> Response:
    async with while_wanted(request.app.state.in_flight, request.receive):
        await request.app.state.let_go.wait()
    return Response(b"{}")


async def upload(request: Request) -> Response:
    return Response(str(len(await request.body())))


async def refuse_body(request: Request) -> Response:
    return Response(b"no", status_code=413)


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000
            await anyio.sleep(0.001)

    return StreamingResponse(parts())


class ServedApp:
    def __init__(self, app: Starlette, address: tuple[str, int], trust: ssl.SSLContext | None) -> None:
        self.app = app
        self.address = address
        self._trust = trust

    def dial(self) -> socket.socket:
        """A client that has connected and says nothing; with TLS not even its hello."""
        return socket.create_connection(self.address, DEADLINE_S)

    async def connect(self) -> ByteStream:
        if self._trust is None:
            return await anyio.connect_tcp(*self.address)
        return await anyio.connect_tcp(*self.address, ssl_context=self._trust, tls_standard_compatible=False)

    async def status_of(self, path: str) -> int:
        """The status of one request on a connection of its own; 0: no answer."""
        received = b""
        with contextlib.suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            async with await self.connect() as client:
                await client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                while True:
                    received += await client.receive()
        return answers_in(received, True)[0].status if received else 0

    def descriptors(self) -> int:
        """Sockets of this process at the serving end of a connection."""
        return sum(_is_served_at(int(fd), self.address) for fd in os.listdir("/proc/self/fd"))

    async def until_nobody_is_there(self) -> None:
        while self.descriptors():
            await anyio.sleep(0.01)


def _is_served_at(fd: int, address: object) -> bool:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        with socket.socket(fileno=os.dup(fd)) as peer:
            return peer.getsockname() == address and not peer.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:  # closed meanwhile
        return False


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_listener("127.0.0.1", 0) as listener:
        yield listener


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, folder: Path) -> TlsFiles | None:
    return None if request.param == "plain" else TlsFiles(*map(str, make_certificate(folder)))


@asynccontextmanager
async def serving(listener: socket.socket, tls: TlsFiles | None = None) -> AsyncIterator[ServedApp]:
    config = Config()
    doorkeeper = Doorkeeper(lambda: config, is_loopback=True)
    doorkeeper.learn([])
    app = Starlette(
        routes=[
            Route("/livez", alive),
            Route("/other", alive),
            Route("/hold", hold),
            Route("/stream", stream),
            Route("/upload", upload, methods=["POST"]),
            Route("/early", refuse_body, methods=["POST"]),
        ]
    )
    app.state.let_go = anyio.Event()
    ready = anyio.Event()
    handle = Handle(ready.set)
    gateway = Gateway(
        app,
        listener,
        guard=lambda app: Guard(app, doorkeeper, lambda: config, ["/livez"]),
        tls=tls,
        max_connections=LIMIT,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gateway.run, handle)
        with anyio.fail_after(DEADLINE_S):
            await ready.wait()
            yield ServedApp(app, listener.getsockname(), tls and ssl.create_default_context(cafile=tls.cert))
        handle.hurry = True
        handle.stop.set()


async def test_connection_that_its_client_has_closed_is_free_at_once(listener: socket.socket) -> None:
    """Never more than one client at a time, and more of them within the idle time than there are places."""
    async with serving(listener) as server:
        for _ in range(5 * (LIMIT + RESERVED)):
            async with await anyio.connect_tcp(*server.address) as client:
                await client.send(GET)
                assert (await client.receive()).startswith(b"HTTP/1.1 200")

        await server.until_nobody_is_there()


# -- clients that leave ----------------------------------------------------------------------------------------------

#: What a client has sent when it leaves.
LEAVING = {
    "nothing": b"",
    "half a head": GET[:20],
    "noise": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n" + bytes(range(256)),
    "a request": GET,
    "three requests": GET * 3,
    "a request and a line end": b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n\r\n",
    "a request and half the next": b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n" + GET[:20],
    "a request and many more": b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n" + GET * 500,
    "the request of a stream": b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n",
    "a part of a body": b"POST /upload HTTP/1.1\r\n" + HOST + b"Content-Length: 900000\r\n\r\n" + b"x" * 300_000,
    "a part of a refused body": b"POST /early HTTP/1.1\r\n" + HOST + b"Content-Length: 900000\r\n\r\n" + b"x" * 300_000,
    "noise for a chunk": b"POST /upload HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
}


@pytest.mark.parametrize("sent", LEAVING.values(), ids=LEAVING)
async def test_client_that_leaves_is_no_error(
    listener: socket.socket, tls: TlsFiles | None, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """By a close or a reset, at once or a moment later; with TLS before, during and after the handshake."""
    caplog.set_level(logging.WARNING)
    async with serving(listener, tls) as server:
        for wait_s in (None, 0.0, 0.02):
            for is_reset in (False, True):
                if len(sent) < 1000:
                    leave(server, sent, None, wait_s, is_reset)  # gone before it is accepted
                for is_encrypted in {False, tls is not None}:
                    await anyio.to_thread.run_sync(leave, server, sent, tls if is_encrypted else None, wait_s, is_reset)

        await server.until_nobody_is_there()

    assert [record.getMessage() for record in caplog.records] == []


def leave(server: ServedApp, sent: bytes, tls: TlsFiles | None, wait_s: float | None, is_reset: bool) -> None:
    client = server.dial()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10**6)
    if is_reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if tls is not None:
        client = ssl.create_default_context(cafile=tls.cert).wrap_socket(client, server_hostname="localhost")
    with contextlib.suppress(OSError):
        client.sendall(sent)
    if wait_s is not None:
        time.sleep(wait_s)
    client.close()


def test_clients_that_leave_while_jobd_works_for_them_are_no_error(daemon: Jobd) -> None:
    host, _, port = daemon.address.rpartition(":")
    server = ServedApp(Starlette(), (host, int(port)), None)
    body = b'{"task":"chat","payload":{}}'
    submit = b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    before = len(daemon.log_file.read_text())

    for sent in (submit % (len(body), body), submit % (10**6, body), submit % (10**8, body), *LEAVING.values()):
        for is_reset in (False, True):
            for wait_s in (None, 0.0, 0.02):
                leave(server, sent, None, wait_s, is_reset)
    assert daemon.readiness()[0] == 200

    log = daemon.log_file.read_text()[before:]
    assert "Traceback" not in log
    assert "error" not in log.lower()


# -- floods ----------------------------------------------------------------------------------------------------------


async def test_flood_of_silent_connections_takes_nothing_from_others(
    listener: socket.socket, tls: TlsFiles | None
) -> None:
    async with serving(listener, tls) as server:
        with contextlib.ExitStack() as flood:
            most = 0
            for _ in range(10):
                for _ in range(2 * LIMIT):
                    flood.enter_context(server.dial())
                assert await server.status_of("/livez") == 200
                assert await server.status_of("/other") == 200
                most = max(most, server.descriptors())

        assert most <= LIMIT + RESERVED + ACCEPT_BATCH


async def test_health_is_told_though_all_are_busy_and_a_flood_comes(listener: socket.socket) -> None:
    async with serving(listener) as server, AsyncExitStack() as busy:
        for _ in range(LIMIT):
            client = await busy.enter_async_context(await anyio.connect_tcp(*server.address))
            await client.send(b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n")
        while await server.status_of("/other") != 503:  # until all have arrived
            await anyio.sleep(0.01)
        with contextlib.ExitStack() as flood:
            for _ in range(10):
                for _ in range(2 * RESERVED):
                    flood.enter_context(server.dial())
                assert await server.status_of("/livez") == 200
                assert await server.status_of("/other") == 503

        server.app.state.let_go.set()


def test_newcomer_takes_the_place_of_who_was_silent_longest_and_of_nobody_else() -> None:
    limit = ConnectionLimit(2)
    pairs = [socket.socketpair() for _ in range(RESERVED + 5)]
    ends = [ours for ours, _ in pairs]
    try:
        first, second, third = (limit.admit(end) for end in ends[:3])
        assert first is not None
        assert second is not None
        assert third is not None
        assert pairs[0][1].recv(1) == b""
        second.use()
        third.use()
        kept = [limit.admit(end) for end in ends[3 : 3 + RESERVED]]
        for admission in kept:
            assert admission is not None
            assert admission.is_reserved
            admission.use()

        assert limit.admit(ends[-2]) is None
        third.leave()
        last = limit.admit(ends[-1])
        assert last is not None
        assert not last.is_reserved
    finally:
        for pair in pairs:
            for end in pair:
                end.close()
