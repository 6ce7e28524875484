"""Requests that arrive whole in one read, without h11: what nearly every call of an API is.

h11 takes a request to pieces in Python and costs more than the submit of a job. So the plain form of a request is
recognised by one regular expression, and everything else is left to h11: a head or body that is still incomplete,
bytes behind the request, chunked bodies, `Expect`, `Connection: close`, upgrades, HEAD, HTTP/1.0, and all that is not
well-formed. `read_whole_request` accepts only what h11 accepts, and reads it as h11 does (a property test compares
them); no refusal is worded here.

The application runs in the task of the connection. Its answer is written at once if it comes in one piece with its
length. Any other answer (a stream, 204, ...) is written by h11 and Hypercorn, which then get the request as well.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote
from wsgiref.handlers import format_date_time

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jobd.http.http1 import Http1
    from jobd.http.hypercorn_names import HTTPStream

    Part = dict[str, Any]

#: Digits of a Content-Length; a longer one is no body that arrives in one read.
_LENGTH_DIGITS = 6
_HEAD = re.compile(
    rb"(DELETE|GET|PATCH|POST|PUT) (/[!-~]*) HTTP/1\.1\r\n"
    rb"((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+: ?[!-~]+(?: +[!-~]+)*\r\n)+)\r\n"
)
_HEADERS = re.compile(rb"([^:]+): ?([^\r]+)\r\n")
#: Headers that change how a request is framed or answered.
_LEFT_TO_H11 = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"http2-settings"})
#: Statuses of answers without a body.
_EMPTY = frozenset({204, 304})
_PRINTABLE = bytes(range(0x20, 0x7F))
_ASGI = {"spec_version": "2.1", "version": "3.0"}


class WholeRequest(NamedTuple):
    method: str
    target: bytes
    #: With names in lower case.
    headers: list[tuple[bytes, bytes]]
    body: bytes
    #: All of it, as it came.
    received: bytes


def read_whole_request(received: bytes) -> WholeRequest | None:
    """The one plain request that `received` consists of; None: h11 has to read it."""
    head = _HEAD.match(received)
    if head is None:
        return None
    method, target, lines = head.groups()
    headers = [(name.lower(), value) for name, value in _HEADERS.findall(lines)]
    hosts, length = 0, None
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None or not value.isdigit() or len(value) > _LENGTH_DIGITS:
                return None
            length = int(value)
        elif name in _LEFT_TO_H11 or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
    body = received[head.end() :]
    if hosts != 1 or len(body) != (length or 0):
        return None
    return WholeRequest(method.decode(), target, headers, body, received)


def scope_of(request: WholeRequest, state: Part, *, is_tls: bool, client: object, server: object) -> Part:
    """The ASGI scope, as Hypercorn makes it."""
    raw_path, _, query = request.target.partition(b"?")
    path = raw_path.decode()
    return {
        "type": "http",
        "http_version": "1.1",
        "asgi": _ASGI,
        "method": request.method,
        "scheme": "https" if is_tls else "http",
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": request.headers,
        "client": client,
        "server": server,
        "state": state.copy(),
        "extensions": {},
    }


class WholeExchange:
    """One whole request and its answer."""

    def __init__(
        self, request: WholeRequest, scope: Part, protocol: Http1, write: Callable[[bytes, bool], Awaitable[None]]
    ) -> None:
        self._request = request
        self._scope = scope
        self._protocol = protocol
        #: Writes bytes to the client; the flag closes the connection behind them.
        self._write = write
        self._body_is_taken = False
        self._has_left = False
        self._left: anyio.Event | None = None
        #: The first message of an answer whose second message has not come yet.
        self._start: Part | None = None
        self._is_answered = False
        #: Writes the answer if it does not come in one piece.
        self._stream: HTTPStream | None = None

    # -- what the application calls ----------------------------------------------------------------------------

    async def receive(self) -> Part:
        if not self._body_is_taken:
            self._body_is_taken = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        if not self._has_left:
            if self._left is None:
                self._left = anyio.Event()
            await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Take a message of the answer; None: the application has ended."""
        if self._stream is None:
            if message is None:
                if self._is_answered:
                    return
            elif self._start is None and self._is_whole_so_far(message):
                self._start = message
                return
            elif self._start is not None and (answer := self._whole_answer(message)):
                self._is_answered, self._start = True, None
                await self._write(*answer)
                self.leave()  # as Hypercorn: who goes on receiving behind the answer hears of a disconnect
                return
            await self._use_h11()
        assert self._stream is not None
        await self._stream.app_send(message)

    # -- what the connection calls -----------------------------------------------------------------------------

    def leave(self) -> None:
        """The client has disconnected."""
        self._has_left = True
        if self._left is not None:
            self._left.set()

    async def put(self, part: Part) -> None:
        """As the inbox of Hypercorn's stream: only a disconnect is left to be put there."""
        self.leave()

    # ----------------------------------------------------------------------------------------------------------

    def _is_whole_so_far(self, message: Part) -> bool:
        if self._is_answered or message["type"] != "http.response.start":
            return False
        names = [name for name, _ in message["headers"]]
        return b"content-length" in names and b"transfer-encoding" not in names

    def _whole_answer(self, message: Part) -> tuple[bytes, bool] | None:
        assert self._start is not None
        return _answer_bytes(self._start, message, closes=self._protocol.is_last_request())

    async def _use_h11(self) -> None:
        if self._is_answered:
            raise RuntimeError("the application has answered, and sends more")
        self._stream = self._protocol.take_over(self._request, self._scope, self.put)
        if self._start is not None:
            start, self._start = self._start, None
            await self._stream.app_send(cast("Any", start))


def _answer_bytes(start: Part, body: Part, *, closes: bool) -> tuple[bytes, bool] | None:
    """A whole answer and whether the connection ends with it; None: h11 has to write it, or to refuse it."""
    status, content = start["status"], body.get("body", b"")
    if body["type"] != "http.response.body" or body.get("more_body") or status < 200 or status in _EMPTY:
        return None
    lines = [b"HTTP/1.1 %d " % status]
    for name, value in start["headers"]:
        if name == b"content-length":
            if value != b"%d" % len(content):
                return None
        elif name == b"connection":
            if value != b"close":
                return None
            closes = True
            continue
        lines.append(b"%b: %b" % (name, value))
    lines.append(_date_line(int(time.time())))
    if closes:
        lines.append(b"connection: close")
    head = b"\r\n".join(lines)
    if head.translate(None, _PRINTABLE) != b"\r\n" * (len(lines) - 1):
        return None  # a header with a line end or the like in it, which h11 refuses
    return b"%b\r\n\r\n%b" % (head, content), closes


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return b"date: " + format_date_time(second).encode()
