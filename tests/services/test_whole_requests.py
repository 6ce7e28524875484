"""A request that arrives whole is answered as one that arrives in pieces, which h11 reads."""

from __future__ import annotations

import contextlib
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jobd.http.gateway import Gateway
from jobd.http.hang_up import while_wanted
from jobd.http.http1 import HttpSettings
from jobd.http.listen import bind_listener
from jobd.supervise.service import Handle
from tests.support.raw_http import answers_in

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import SocketStream
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from tests.support.raw_http import RawAnswer

DEADLINE_S = 10.0
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}


async def echo(request: Request) -> Response:
    body = await request.body()
    words = f"{request.method} {request.url.path} {request.url.query} {body!r} {sorted(request.headers.items())}"
    return Response(words, headers={"X-Own": "a, b"})


async def refuse(request: Request) -> Response:
    return Response(b"no", status_code=413, headers={"Connection": "close"})


async def empty(request: Request) -> Response:
    return Response(status_code=204)


async def not_modified(request: Request) -> Response:
    return Response(status_code=304)


async def stream(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    return StreamingResponse(parts())


async def file(request: Request) -> Response:
    """A stream whose length is known."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    return StreamingResponse(parts(), headers={"Content-Length": "7"})


async def fail(request: Request) -> Response:
    raise ValueError("boom")


async def wait(request: Request) -> Response:
    async with while_wanted(request.app.state.in_flight, request.receive):
        request.app.state.waiting.set()
        await anyio.sleep_forever()
    request.app.state.left.set()
    return Response(b"nobody reads this")


class Bare:
    """An application that sends these messages and nothing else."""

    def __init__(self, *messages: object) -> None:
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for message in self._messages:
            await send(message)  # type: ignore[arg-type]


def body(data: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def with_header(name: bytes, value: bytes) -> dict[str, object]:
    return {**START, "headers": [(b"content-length", b"2"), (name, value)]}


BARE = {
    "no-answer": Bare(),
    "no-body": Bare(START),
    "half-a-body": Bare(START, body(b"o", more=True)),
    "a-body-too-short": Bare(START, body(b"o")),
    "a-body-too-long": Bare(START, body(b"okay")),
    "two-answers": Bare(START, body(b"ok"), START, body(b"ok")),
    "a-line-end-in-a-header": Bare(with_header(b"x", b"a\r\nset-cookie: b"), body(b"ok")),
    "noise-in-a-header": Bare(with_header(b"x", b"a\x01"), body(b"ok")),
    "a-transfer-encoding": Bare(with_header(b"transfer-encoding", b"chunked"), body(b"ok")),
    "a-connection-kept": Bare(with_header(b"connection", b"keep-alive"), body(b"ok")),
}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_listener("127.0.0.1", 0) as listener:
        yield listener


@asynccontextmanager
async def serving(listener: socket.socket) -> AsyncIterator[Starlette]:
    routes = [
        Route("/echo", echo, methods=["GET", "POST", "PUT"]),
        *(Route(f"/{made.__name__}", made) for made in (refuse, empty, not_modified, stream, file, fail, wait)),
        *(Route(f"/{name}", made) for name, made in BARE.items()),
    ]
    app = Starlette(routes=routes)
    app.state.waiting, app.state.left = anyio.Event(), anyio.Event()
    ready = anyio.Event()
    handle = Handle(ready.set)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Gateway(app, listener).run, handle)
        with anyio.fail_after(DEADLINE_S):
            await ready.wait()
            yield app
        handle.hurry = True
        handle.stop.set()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-More: 1\r\n\r\n".encode()


async def rest_of(stream: SocketStream) -> bytes:
    received = b""
    try:
        while True:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


async def answers_to(listener: socket.socket, *pieces: bytes) -> list[RawAnswer] | bytes:
    """What comes until the connection ends, at the latest with the answer to one more request."""
    async with await anyio.connect_tcp(*listener.getsockname()) as stream:
        with contextlib.suppress(anyio.BrokenResourceError):
            for piece in (*pieces, get("/echo").replace(b"X-More: 1", b"Connection: close")):
                await stream.send(piece)
                await anyio.sleep(0.02)  # so that each is read by itself; if it is not, the test is weaker, not red
        return in_answers(await rest_of(stream))


def in_answers(received: bytes) -> list[RawAnswer] | bytes:
    try:
        answers = answers_in(received, True)
    except Exception:  # cut off, or no HTTP
        return re.sub(rb"date: [^\r]*", b"", received)
    for answer in answers:
        answer.headers.pop("date", None)
    return answers


SENT = {
    "a get": get("/echo?a=b&c"),
    "a path in disguise": get("/%65cho"),
    "a post": b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nX-Two: a\r\nX-Two: b\r\n\r\nbody",
    "a put without a body": b"PUT /echo HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n",
    "a path that is not there": get("/nowhere"),
    "a method that is not there": get("/echo").replace(b"GET", b"PATCH"),
    **{path: get(f"/{path}") for path in ("refuse", "empty", "not_modified", "stream", "file", "fail", *BARE)},
}


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
async def test_request_sent_whole_is_answered_as_one_sent_in_pieces(listener: socket.socket, sent: bytes) -> None:
    async with serving(listener):
        whole = await answers_to(listener, sent)
        pieces = await answers_to(listener, sent[:10], sent[10:])

    assert whole == pieces


async def test_whole_requests_and_others_may_follow_each_other(listener: socket.socket) -> None:
    first, second, third = get("/echo?1"), get("/stream"), get("/echo?3")

    async with serving(listener):
        answers = await answers_to(listener, first, second[:9], second[9:] + third, second, third)

    assert isinstance(answers, list)
    assert [answer.status for answer in answers] == [200] * 6
    assert [answer.body.split(b" b'")[0] for answer in answers[:5]] == [
        *(b"GET /echo 1", b"one two", b"GET /echo 3", b"one two", b"GET /echo 3"),
    ]


async def test_waiting_request_ends_when_its_client_leaves(listener: socket.socket) -> None:
    async with serving(listener) as app:
        async with await anyio.connect_tcp(*listener.getsockname()) as stream:
            await stream.send(get("/wait"))
            await app.state.waiting.wait()

        await app.state.left.wait()


async def test_waiting_request_ends_when_its_client_leaves_behind_other_bytes(listener: socket.socket) -> None:
    async with serving(listener) as app:
        async with await anyio.connect_tcp(*listener.getsockname()) as stream:
            await stream.send(get("/wait"))
            await app.state.waiting.wait()
            await stream.send(get("/echo"))

        await app.state.left.wait()


async def test_client_that_has_closed_its_side_is_answered(listener: socket.socket) -> None:
    async with serving(listener), await anyio.connect_tcp(*listener.getsockname()) as stream:
        await stream.send(get("/echo"))
        await stream.send_eof()

        (answer,) = answers_in(await rest_of(stream), True)

    assert answer.status == 200


async def test_nothing_is_served_behind_the_last_answer(listener: socket.socket) -> None:
    async with serving(listener) as app, await anyio.connect_tcp(*listener.getsockname()) as stream:
        await stream.send(get("/refuse"))
        await stream.send(get("/wait"))

        answers = answers_in(await rest_of(stream), True)

        assert [(answer.status, answer.headers["connection"]) for answer in answers] == [(413, "close")]
        assert not app.state.waiting.is_set()


async def test_connection_ends_after_as_many_requests_as_hypercorn_allows(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpSettings, "keep_alive_max_requests", 3)
    async with serving(listener), await anyio.connect_tcp(*listener.getsockname()) as stream:
        received = b""
        for _ in range(3):
            await stream.send(get("/echo"))
            received += await stream.receive()
        received += await rest_of(stream)

    assert [answer.headers.get("connection") for answer in answers_in(received, True)] == [None, None, "close"]
