"""What the transport refuses: bytes sent, status and code answered, and whether the connection ends."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from jobd.auth.doorkeeper import Doorkeeper
from jobd.auth.token import new_token
from jobd.config.model import Auth, Config, Limits, Token
from jobd.http import connection as connection_module
from jobd.http.accept import RESERVED
from jobd.http.connection import Slowness
from jobd.http.endpoint import JSON
from jobd.http.gateway import Gateway
from jobd.http.http1 import HttpSettings
from jobd.http.listen import bind_listener
from jobd.http.problems import problem_of
from jobd.http.request_checks import Guard, Hosts
from jobd.supervise.service import Handle
from tests.support.raw_http import answers_in, ask, exchange

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import SocketStream
    from starlette.requests import Request

    from jobd.auth.token import NewToken
    from tests.support.daemon import Jobd
    from tests.support.raw_http import RawAnswer

HOST = b"Host: localhost\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
GET = b"GET /livez HTTP/1.1\r\n" + HOST
END = b"\r\n"


def get(path: bytes, *headers: bytes) -> bytes:
    return b"GET %s HTTP/1.1\r\n" % path + HOST + b"".join(header + b"\r\n" for header in headers) + END


#: What is sent, the status and code of the answer, and whether the connection ends with it. No status: it just ends.
CATALOGUE: dict[str, tuple[bytes, int, str | None, bool]] = {
    "a body longer than any call takes": (POST + b"Content-Length: 67108865\r\n\r\n", 413, "body_too_large", True),
    "a length of a hundred digits": (POST + b"Content-Length: " + b"9" * 100 + END + END, 400, "bad_request", True),
    "a body longer than this call takes": (POST + b"Content-Length: 60000000\r\n\r\n", 413, "body_too_large", True),
    "a too long body that waits to be invited": (
        POST + b"Content-Length: 60000000\r\nExpect: 100-continue\r\n\r\n",
        413,
        "body_too_large",
        True,
    ),
    "a header of 20 KB": (GET + b"X: " + b"x" * 20_000 + b"\r\n\r\n", 431, "headers_too_large", True),
    "headers of 60 KB": (GET + (b"X: " + b"x" * 6_000 + b"\r\n") * 10 + END, 431, "headers_too_large", True),
    "a header without end": (GET + b"X: " + b"x" * 100_000, 431, "headers_too_large", True),
    "101 headers": (GET + b"X: 1\r\n" * 100 + END, 431, "headers_too_large", True),
    "a length beside a transfer encoding": (
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "bad_request",
        True,
    ),
    "two lengths": (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n", 400, "bad_request", True),
    "a negative length": (POST + b"Content-Length: -4\r\n\r\n", 400, "bad_request", True),
    "a length with a sign": (POST + b"Content-Length: +4\r\n\r\n{}{}", 400, "bad_request", True),
    "a bad chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "bad_request", True),
    "an unknown transfer encoding": (POST + b"Transfer-Encoding: gzip\r\n\r\n", 501, "transfer_encoding", True),
    "no host": (b"GET /livez HTTP/1.1\r\n\r\n", 400, "bad_request", True),
    "two hosts": (GET + HOST + END, 400, "bad_request", True),
    "NUL in the target": (b"GET /\0 HTTP/1.1\r\n" + HOST + END, 400, "bad_request", True),
    "NUL in a header": (GET + b"X: a\0b\r\n\r\n", 400, "bad_request", True),
    "a space before a colon": (GET + b"X : a\r\n\r\n", 400, "bad_request", True),
    "a folded header": (GET + b"X: a\r\n b\r\n\r\n", 400, "bad_request", True),
    "a folded header with a tab": (GET + b"X: a\r\n\tb\r\n\r\n", 400, "bad_request", True),
    "noise": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "bad_request", True),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version", True),
    "HTTP/3 by name": (b"GET /livez HTTP/3.0\r\n" + HOST + END, 505, "http_version", True),
    "a wish for HTTP/2, passed over": (
        GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAA\r\n\r\n",
        200,
        None,
        False,
    ),
    "a wish for a WebSocket, passed over": (
        GET
        + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n",
        200,
        None,
        False,
    ),
    "a way up": (get(b"/v1/../livez"), 400, "bad_request", False),
    "a way up in disguise": (get(b"/v1/%2e%2E/livez"), 400, "bad_request", False),
    "a way up with another slash": (get(b"/v1%2f..%2flivez"), 400, "bad_request", False),
    "NUL in disguise": (get(b"/v1/jobs/%00"), 400, "bad_request", False),
    "a line end in disguise": (get(b"/v1/jobs/%0d%0a"), 400, "bad_request", False),
    "two slashes": (get(b"//livez"), 404, "not_found", False),
    "a target of 8 KB and more": (get(b"/" + b"x" * 8192), 414, "uri_too_long", True),
    "a query of 8 KB and more": (get(b"/livez?" + b"x" * 8192), 414, "uri_too_long", True),
    "a whole URL": (get(b"http://localhost/livez"), 400, "bad_request", True),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\n" + HOST + END, 400, "bad_request", True),
    "CONNECT": (b"CONNECT localhost:22 HTTP/1.1\r\n" + HOST + END, 400, "bad_request", True),
    "TRACE": (b"TRACE /livez HTTP/1.1\r\n" + HOST + END, 405, "method_not_allowed", False),
    "HTTP/1.0 without a host": (b"GET /livez HTTP/1.0\r\n\r\n", 200, None, True),
    "GET with a body": (GET + b"Content-Length: 4\r\n\r\nbody", 200, None, False),
    "a foreign host": (b"GET /livez HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, "wrong_host", False),
    "a foreign host with our port": (
        b"GET /livez HTTP/1.1\r\nHost: evil.example:7433\r\n\r\n",
        421,
        "wrong_host",
        False,
    ),
    "a host that begins like ours": (b"GET /livez HTTP/1.1\r\nHost: localhost.evil\r\n\r\n", 421, "wrong_host", False),
    "an empty host": (b"GET /livez HTTP/1.1\r\nHost:\r\n\r\n", 421, "wrong_host", False),
    "a forged forwarded host": (GET + b"X-Forwarded-Host: evil.example\r\n\r\n", 200, None, False),
    "a foreign page that writes": (
        POST + b"Origin: https://evil.example\r\nContent-Length: 2\r\n\r\n{}",
        403,
        "foreign_origin",
        False,
    ),
    "a page of nowhere that writes": (
        POST + b"Origin: null\r\nContent-Length: 2\r\n\r\n{}",
        403,
        "foreign_origin",
        False,
    ),
    "our own page that writes": (
        POST + b"Origin: http://localhost\r\nContent-Length: 2\r\n\r\n{}",
        422,
        "invalid",
        False,
    ),
    "a foreign page that reads, and is told nothing of sharing": (
        GET + b"Origin: https://evil.example\r\n\r\n",
        200,
        None,
        False,
    ),
    "a token in the URL": (get(b"/v1/jobs?token=x"), 400, "token_in_url", False),
    "an access token in the URL": (get(b"/v1/jobs?a=1&Access_Token=x"), 400, "token_in_url", False),
    "a token in the URL in disguise": (get(b"/v1/jobs?%74oken=x"), 400, "token_in_url", False),
    "two tokens": (
        get(b"/v1/jobs", b"Authorization: Bearer a", b"Authorization: Bearer b"),
        400,
        "bad_request",
        True,
    ),
    "a form": (
        b"POST /v1/jobs HTTP/1.1\r\n"
        + HOST
        + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1\r\n\r\na",
        415,
        "unsupported_media_type",
        False,
    ),
}


@pytest.mark.parametrize("name", CATALOGUE)
def test_transport_answers_as_the_catalogue_says(daemon: Jobd, name: str) -> None:
    sent, status, code, closes = CATALOGUE[name]

    answer = ask(daemon.address, sent)

    assert (answer.status, answer.code, answer.closed) == (status, code, closes)
    assert "access-control-allow-origin" not in answer.headers
    assert ask(daemon.address, GET + END).status == 200


def test_every_answer_has_an_id_of_its_own_and_is_not_to_be_guessed_at(daemon: Jobd) -> None:
    good, bad = ask(daemon.address, get(b"/livez")), ask(daemon.address, get(b"/v1/jobs/x"))

    assert good.headers["x-content-type-options"] == bad.headers["x-content-type-options"] == "nosniff"
    assert len(good.headers["x-request-id"]) == 16
    assert good.headers["x-request-id"] != bad.headers["x-request-id"]
    assert f'"request_id":"{bad.headers["x-request-id"]}"'.encode() in bad.body


def test_pipelined_requests_are_answered_in_their_order(daemon: Jobd) -> None:
    first, second = POST + b"Content-Length: 2\r\n\r\n{}", get(b"/v1/jobs/x")

    data, closed = exchange(daemon.address, first + second + GET + END)

    assert [answer.status for answer in answers_in(data, closed)] == [422, 404, 200]
    assert not closed


def test_body_that_is_refused_is_never_invited(daemon: Jobd) -> None:
    data, _ = exchange(daemon.address, POST + b"Content-Length: 60000000\r\nExpect: 100-continue\r\n\r\n")

    assert b"100" not in data.splitlines()[0]
    assert data.count(b"HTTP/1.1 ") == 1


def test_body_that_is_taken_is_invited_first(daemon: Jobd) -> None:
    data, _ = exchange(daemon.address, POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")

    assert data.startswith(b"HTTP/1.1 100 ")


@pytest.mark.parametrize("framing", [b"Content-Length: 20000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_client_that_sends_a_refused_body_all_the_same_reads_the_answer(daemon: Jobd, framing: bytes) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    body = chunk * 300 if b"chunked" in framing else b" " * 20_000_000

    answer = ask(daemon.address, POST + framing + body)

    assert (answer.status, answer.code, answer.closed) == (413, "body_too_large", True)


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        (b"localhost", True),
        (b"LocalHost:7433", True),
        (b"127.0.0.1", True),
        (b"192.168.1.20:7433", True),
        (b"[::1]:7433", True),
        (b"[::1]", True),
        (b"jobs.example.com", True),
        (b"jobs.example.com:443", True),
        (b"board.lan", True),
        (b"example.com", False),
        (b"jobs.example.com.", False),
        (b"evil.example:80@localhost", False),
        (b"127.0.0.1.evil.example", False),
        (b"localhost:", False),
        (b"", False),
        (b"\xff", False),
    ],
)
def test_host_is_ours_by_address_or_by_a_listed_name(host: bytes, is_ours: bool) -> None:
    assert Hosts("board.lan", "jobs.Example.com").know(host) is is_ours


def test_body_may_be_slow_but_not_too_slow() -> None:
    slowness = Slowness()
    assert slowness.patience() == connection_module.BODY_STALL_S

    slowness.waited_s = 59.0
    assert slowness.patience() == pytest.approx(1.0)

    slowness.received = 50 * 1024 * 1024
    assert slowness.patience() == connection_module.BODY_STALL_S

    slowness.waited_s = 60.0 + 512 + 1
    assert slowness.patience() < 0


# -- a gateway in this process, where time can be made short ----------------------------------------------------------

DEADLINE_S = 10.0
SHORT_S = 0.3


async def upload(request: Request) -> Response:
    try:
        return Response(str(len(await request.body())))
    except ClientDisconnect:
        request.app.state.left.set()
        raise
    except Exception as error:
        return problem_of(error, "upload")


async def answer_early(request: Request) -> Response:
    return Response(b"no", status_code=413)


async def hold(request: Request) -> Response:
    await request.app.state.let_go.wait()
    return Response(b"{}")


async def alive(request: Request) -> Response:
    return Response(b"{}", media_type=JSON)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "BODY_STALL_S", SHORT_S)
    monkeypatch.setattr(connection_module, "LINGER_S", SHORT_S)
    monkeypatch.setattr(HttpSettings, "keep_alive_timeout", SHORT_S)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_listener("127.0.0.1", 0) as listener:
        yield listener


@asynccontextmanager
async def serving(
    listener: socket.socket, max_connections: int = 100, config: Config | None = None
) -> AsyncIterator[Starlette]:
    config = config or Config()
    doorkeeper = Doorkeeper(lambda: config, is_loopback=True)
    doorkeeper.learn([])
    app = Starlette(
        routes=[
            Route("/livez", alive),
            Route("/other", alive),
            Route("/upload", upload, methods=["POST"]),
            Route("/hold", hold),
            Route("/early", answer_early, methods=["POST"]),
        ]
    )
    app.state.left, app.state.let_go = anyio.Event(), anyio.Event()
    ready = anyio.Event()
    handle = Handle(ready.set)
    gateway = Gateway(
        app,
        listener,
        guard=lambda app: Guard(app, doorkeeper, lambda: config, ["/livez"]),
        max_connections=max_connections,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gateway.run, handle)
        with anyio.fail_after(DEADLINE_S):
            await ready.wait()
            yield app
        handle.hurry = True
        handle.stop.set()


async def until_closed(stream: SocketStream) -> bytes:
    received = b""
    try:
        while True:
            received += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return received


async def status_of(listener: socket.socket, path: bytes) -> int:
    """0: no answer."""
    async with await anyio.connect_tcp(*listener.getsockname()) as stream:
        try:
            await stream.send(get(path))
            return answers_in(await stream.receive(), False)[0].status
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return 0


@pytest.mark.usefixtures("short")
async def test_body_that_stops_coming_is_a_408(listener: socket.socket) -> None:
    async with serving(listener), await anyio.connect_tcp(*listener.getsockname()) as stream:
        await stream.send(b"POST /upload HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nhalf")

        (answer,) = answers_in(await until_closed(stream), True)

    assert (answer.status, answer.code, answer.headers["connection"]) == (408, "body_timeout", "close")


async def test_body_that_dribbles_is_a_408_at_its_deadline(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "BODY_S", SHORT_S)
    async with serving(listener), await anyio.connect_tcp(*listener.getsockname()) as stream:
        await stream.send(b"POST /upload HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n")

        async def dribble() -> None:
            while True:
                await stream.send(b"x")
                await anyio.sleep(0.02)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dribble)
            first = await stream.receive()
            tasks.cancel_scope.cancel()

    assert first.startswith(b"HTTP/1.1 408")


@pytest.mark.usefixtures("short")
async def test_slow_handler_is_not_taken_for_a_slow_client(listener: socket.socket) -> None:
    """The body is larger than what is read ahead, so the client cannot go on either."""
    async with serving(listener), await anyio.connect_tcp(*listener.getsockname()) as stream:
        body = b"x" * 3_000_000
        await stream.send(b"POST /upload HTTP/1.1\r\n" + HOST + b"Content-Length: 3000000\r\n\r\n" + body)

        assert (await stream.receive()).endswith(b"3000000")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("sent", [b"", b"GET /livez HT", GET, GET + b"X: "])
async def test_connection_without_a_whole_head_is_closed(listener: socket.socket, sent: bytes) -> None:
    async with serving(listener), await anyio.connect_tcp(*listener.getsockname()) as stream:
        if sent:
            await stream.send(sent)

        assert await until_closed(stream) == b""


@pytest.mark.usefixtures("short")
async def test_client_that_never_stops_sending_is_left(listener: socket.socket) -> None:
    """More than the application's inbox holds, and it was answered long ago."""
    async with serving(listener), await anyio.connect_tcp(*listener.getsockname()) as stream:
        await stream.send(b"POST /early HTTP/1.1\r\n" + HOST + b"Content-Length: 60000000\r\n\r\n")
        (answer,) = answers_in(await stream.receive(), False)

        with pytest.raises(anyio.BrokenResourceError):
            while True:
                await stream.send(b"x" * 65536)
                await anyio.sleep(0.001)

    assert answer.status == 413


async def test_client_that_leaves_within_its_body_ends_the_request(listener: socket.socket) -> None:
    async with serving(listener) as app:
        async with await anyio.connect_tcp(*listener.getsockname()) as stream:
            await stream.send(b"POST /upload HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nhalf")

        await app.state.left.wait()


async def test_connections_are_bounded_and_some_are_kept_for_health(listener: socket.socket) -> None:
    async with serving(listener, max_connections=10):
        crowd = [await anyio.connect_tcp(*listener.getsockname()) for _ in range(10)]
        for stream in crowd:
            await stream.send(get(b"/other"))
            assert (await stream.receive()).startswith(b"HTTP/1.1 200")
        kept = [await anyio.connect_tcp(*listener.getsockname()) for _ in range(RESERVED)]

        await kept[0].send(get(b"/other"))
        (refused,) = answers_in(await until_closed(kept[0]), True)
        await kept[1].send(get(b"/livez"))
        (health,) = answers_in(await kept[1].receive(), False)
        one_more = await anyio.connect_tcp(*listener.getsockname())
        await one_more.send(get(b"/livez"))
        beyond = await anyio.connect_tcp(*listener.getsockname())
        nothing = await until_closed(beyond)

        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "too_many_connections", "1")
        assert health.status == 200
        assert nothing == b""
        for stream in (*crowd, *kept, one_more, beyond):
            await stream.aclose()
        while (await status_of(listener, b"/other")) != 200:
            await anyio.sleep(0.01)


async def test_requests_of_one_token_are_bounded_and_those_of_others_are_not(listener: socket.socket) -> None:
    greedy, modest = new_token(), new_token()
    tokens = [
        Token(name=name, sha256=token.sha256.hex(), scopes=("client",))
        for name, token in (("greedy", greedy), ("modest", modest))
    ]
    config = Config(auth=Auth(tokens=tuple(tokens)), limits=Limits(requests_per_token=3))

    def sent(token: NewToken, path: bytes) -> bytes:
        return get(path, b"Authorization: Bearer " + token.text.encode())

    async def ask_once(token: NewToken) -> RawAnswer:
        async with await anyio.connect_tcp(*listener.getsockname()) as stream:
            await stream.send(sent(token, b"/other"))
            return answers_in(await stream.receive(), False)[0]

    async with serving(listener, config=config) as app, AsyncExitStack() as open_streams:
        for _ in range(3):
            stream = await open_streams.enter_async_context(await anyio.connect_tcp(*listener.getsockname()))
            await stream.send(sent(greedy, b"/hold"))
        while (refused := await ask_once(greedy)).status == 200:  # until all three have arrived
            await anyio.sleep(0.01)
        other = await ask_once(modest)
        app.state.let_go.set()
        while (again := await ask_once(greedy)).status != 200:
            await anyio.sleep(0.01)

    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_requests", "1")
    assert other.status == again.status == 200
