from __future__ import annotations

import asyncio
import os
import stat
from contextlib import asynccontextmanager
from glob import glob
from typing import TYPE_CHECKING

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jobd.errors import root_cause
from jobd.http import connection as connection_module
from jobd.http import gateway as gateway_module
from jobd.http.gateway import CLOSE_S, Gateway, bind_listener
from jobd.supervise.service import Handle
from tests.support.raw_http import answers_in

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import SocketStream
    from starlette.requests import Request

FINISH_S = 0.2
#: A stop may take its two waits and, on a busy machine, a little.
STOP_S = FINISH_S + CLOSE_S + 2.0
DEADLINE_S = 10.0
STREAMS = 20
WRITE_S = 0.2
LARGE = 8_000_000


async def livez(request: Request) -> Response:
    return Response(b"alive")


async def renewed(request: Request) -> Response:
    return Response(b"renewed")


async def polite_stream(request: Request) -> Response:
    """Goes on until it is told that the gateway closes."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        await request.app.state.in_flight.closing.wait()
        yield b"last"

    return StreamingResponse(parts())


async def endless_stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first "
        await anyio.sleep_forever()

    return StreamingResponse(parts())


async def flood(request: Request) -> Response:
    """Sends more than anyone can buffer."""

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    return StreamingResponse(parts())


async def large_answer(request: Request) -> Response:
    return Response(b"x" * LARGE)


async def slow_answer(request: Request) -> Response:
    request.app.state.asked.set()
    await request.app.state.may_answer.wait()
    return Response(b"at last")


async def upload(request: Request) -> Response:
    return Response(str(len(await request.body())))


async def broken(request: Request) -> Response:
    raise ValueError("boom")


class RunningGateway:
    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        self.app = app
        self.listener = listener
        self.ready = anyio.Event()
        self.handle = Handle(self.ready.set)
        self.stopped = anyio.Event()
        self.scope = anyio.CancelScope()
        self.clients: list[SocketStream] = []

    async def run(self) -> None:
        with self.scope:
            await Gateway(self.app, self.listener).run(self.handle)
        self.stopped.set()

    async def stop(self) -> None:
        """Ask it to stop and see that it does within its time."""
        self.handle.stop.set()
        with anyio.fail_after(STOP_S):
            await self.stopped.wait()

    async def connect(self) -> SocketStream:
        self.clients.append(await anyio.connect_tcp(*self.listener.getsockname()))
        return self.clients[-1]

    async def ask(self, path: str) -> tuple[SocketStream, bytes]:
        """Send a request and wait for the first part of the answer."""
        stream = await self.connect()
        await stream.send(request_for(path))
        return stream, await stream.receive()


def request_for(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode()


async def rest_of(stream: SocketStream) -> bytes:
    """All that comes until the other side closes, one way or another."""
    received = b""
    try:
        while True:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


def make_app() -> Starlette:
    app = Starlette(
        routes=[
            Route("/livez", livez),
            Route("/polite", polite_stream),
            Route("/endless", endless_stream),
            Route("/flood", flood),
            Route("/large", large_answer),
            Route("/slow", slow_answer, methods=["GET", "POST"]),
            Route("/upload", upload, methods=["POST"]),
            Route("/broken", broken),
        ]
    )
    app.state.asked, app.state.may_answer = anyio.Event(), anyio.Event()
    return app


@pytest.fixture(scope="module", params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Besides uvloop also Python's own loop, whose servers wait for their connections from Python 3.12 on."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "FINISH_S", FINISH_S)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    listener = bind_listener("127.0.0.1", 0)
    yield listener
    listener.close()


@asynccontextmanager
async def serving(
    listener: socket.socket, app: Starlette | None = None, *, see_leaks: bool = True
) -> AsyncIterator[RunningGateway]:
    """A gateway that runs; stopped at the end, and seen to leave no task and no descriptor behind."""
    tasks_before, sockets_before = asyncio.all_tasks(), open_sockets()
    gateway = RunningGateway(app or make_app(), listener)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.run)
            with anyio.fail_after(DEADLINE_S):
                await gateway.ready.wait()
            yield gateway
            if not gateway.stopped.is_set():
                await gateway.stop()
    finally:
        for client in gateway.clients:
            await client.aclose()
    with anyio.fail_after(DEADLINE_S):
        while see_leaks and (asyncio.all_tasks() - tasks_before or open_sockets() > sockets_before):
            await anyio.sleep(0.01)


def open_sockets() -> int:
    """How many sockets this process has open; libuv keeps other files, once and for all."""
    return sum(os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) for path in glob("/proc/self/fd/*"))


async def test_request_is_answered_without_saying_what_serves(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        _, answer = await gateway.ask("/livez")

        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"alive")
        assert b"hypercorn" not in answer.lower()


async def test_streams_that_heed_the_closing_end_by_themselves(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        streams = [(await gateway.ask("/polite"))[0] for _ in range(STREAMS)]

        await gateway.stop()

        for stream in streams:
            assert (await rest_of(stream)).endswith(b"4\r\nlast\r\n0\r\n\r\n")


async def test_streams_that_never_end_are_cut_off(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        streams = [(await gateway.ask("/endless"))[0] for _ in range(STREAMS)]

        await gateway.stop()

        for stream in streams:
            assert not (await rest_of(stream)).endswith(b"0\r\n\r\n")


async def test_client_that_does_not_read_does_not_hold_up_the_stop(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        await gateway.ask("/flood")

        await gateway.stop()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /flood HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n" * 1000,
    ],
    ids=["a stream", "a large answer", "a large last answer", "many answers"],
)
async def test_client_that_takes_nothing_of_its_answers_is_cut_off(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_S", WRITE_S)
    async with serving(listener) as gateway:
        client = await gateway.connect()
        before = open_sockets()

        await client.send(sent)
        with anyio.fail_after(DEADLINE_S):
            while open_sockets() >= before + 1:
                await anyio.sleep(0.01)


async def test_client_that_reads_slowly_gets_all_of_its_answer(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_S", WRITE_S)
    async with serving(listener) as gateway:
        client, first = await gateway.ask("/large")
        received, body_at = len(first), first.index(b"\r\n\r\n") + 4

        while received < body_at + LARGE:
            received += len(await client.receive())
            await anyio.sleep(0.01)

        assert received == body_at + LARGE


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_request_that_a_stop_cuts_off_is_told_to_come_again(listener: socket.socket, method: str) -> None:
    async with serving(listener) as gateway:
        stream = await gateway.connect()
        await stream.send(request_for("/slow").replace(b"GET", method.encode()))
        await gateway.app.state.asked.wait()

        await gateway.stop()

        (answer,) = answers_in(await rest_of(stream), True)
        assert (answer.status, answer.code) == (503, "unavailable")
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")


async def test_idle_connection_is_closed(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        unused = await gateway.connect()
        used, _ = await gateway.ask("/livez")

        await gateway.stop()

        assert await rest_of(unused) == await rest_of(used) == b""


@pytest.mark.parametrize(
    "half",
    [
        b"GET /livez HT",
        b"GET /livez HTTP/1.1\r\nHost: ",
        b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
    ],
    ids=["in the first line", "in the headers", "in the body"],
)
async def test_half_sent_request_does_not_hold_up_the_stop(listener: socket.socket, half: bytes) -> None:
    async with serving(listener) as gateway:
        stream = await gateway.connect()
        await stream.send(half)
        await gateway.ask("/livez")

        await gateway.stop()


async def test_request_under_way_is_answered_before_the_stop(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        stream = await gateway.connect()
        await stream.send(request_for("/slow"))
        await gateway.app.state.asked.wait()
        gateway.handle.stop.set()
        gateway.app.state.may_answer.set()

        assert (await rest_of(stream)).endswith(b"at last")


async def test_hurried_stop_waits_for_no_request(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        await gateway.ask("/polite")
        gateway.handle.hurry = True

        await gateway.stop()


async def test_stop_that_comes_with_the_start_ends_it(listener: socket.socket) -> None:
    gateway = RunningGateway(make_app(), listener)
    gateway.handle.stop.set()
    gateway.handle.hurry = True

    with anyio.fail_after(STOP_S):
        await gateway.run()


async def test_error_in_a_handler_is_a_500_and_the_gateway_goes_on(listener: socket.socket) -> None:
    async with serving(listener) as gateway:
        _, broken_answer = await gateway.ask("/broken")
        _, answer = await gateway.ask("/livez")

        assert broken_answer.startswith(b"HTTP/1.1 500")
        assert b"boom" not in broken_answer
        assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/livez", "/polite", "/endless"])
async def test_gateway_that_was_cut_off_serves_no_more_and_the_next_one_does(
    listener: socket.socket, path: str
) -> None:
    async with serving(listener) as gateway:
        old, _ = await gateway.ask(path)
        gateway.scope.cancel()
        with anyio.fail_after(DEADLINE_S):
            await gateway.stopped.wait()
            await rest_of(old)

    async with serving(listener, Starlette(routes=[Route("/livez", renewed)])) as gateway:
        answers = [(await gateway.ask("/livez"))[1] for _ in range(STREAMS)]

    assert all(answer.endswith(b"renewed") for answer in answers)


async def test_gateway_that_failed_serves_again_on_the_same_listener(listener: socket.socket) -> None:
    @asynccontextmanager
    async def failing(app: Starlette) -> AsyncIterator[None]:
        if not app.debug:
            raise RuntimeError("cannot begin")
        yield

    with pytest.raises(Exception, match="unhandled errors") as raised:
        await RunningGateway(Starlette(lifespan=failing), listener).run()
    async with serving(listener) as gateway:
        _, answer = await gateway.ask("/livez")

    assert "cannot begin" in str(root_cause(raised.value))
    assert answer.endswith(b"alive")
