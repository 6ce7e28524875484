"""Stands before every route: what must not get in is refused here, in one pass over the headers.

Hypercorn leaves these open: the size and number of headers, the length of the target, a length beside a transfer
encoding (which two servers in a row may read differently), and who the Host header says we are. Whoever passes has a
principal in `scope["state"]["principal"]` and a request id; every answer carries that id, and `nosniff`.

The pace of a body and what h11 lets through are checked where the bytes are seen: `jobd.http.connection` and
`jobd.http.http1`.
"""

from __future__ import annotations

import ipaddress
from random import getrandbits
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from jobd.auth.doorkeeper import PASSER_BY
from jobd.http.problems import REQUEST_ID, problem_of
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from jobd.auth.doorkeeper import Doorkeeper, Principal
    from jobd.config.model import Config

#: Most headers of a request, and their bytes in all: enough for any proxy, and bounded.
MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024
#: Bytes of path and query.
MAX_TARGET_BYTES = 8 * 1024
#: Largest Content-Length in bytes; each route has a limit of its own that is no larger.
MAX_BODY_BYTES = 64 * 1024 * 1024
#: Size of the cache of Host headers that were found to be right.
MAX_KNOWN_HOSTS = 1000

#: Paths that are answered on reserved connections too.
HEALTH = frozenset({"/livez", "/readyz"})
#: Methods that change nothing: allowed for pages of other origins, and cancelled when their token is revoked.
READS = frozenset({"GET", "HEAD", "OPTIONS"})
CLOSE = {"Connection": "close"}

#: Headers that the checks read.
_READ = frozenset({b"host", b"origin", b"authorization", b"content-length", b"transfer-encoding"})
#: Those of them that may be sent once only and whose number h11 does not check.
_SINGLE = frozenset({b"origin", b"authorization"})
_NOSNIFF = (b"x-content-type-options", b"nosniff")


class Guard:
    """ASGI middleware around the application."""

    def __init__(
        self, app: ASGIApp, doorkeeper: Doorkeeper, config: Callable[[], Config], public: Collection[str]
    ) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._config = config
        self._public = frozenset(public)
        self._hosts = Hosts(config().server.host, *config().server.allowed_hosts)
        #: Number of running requests by the name of their token.
        self._running: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"{getrandbits(64):016x}"
        REQUEST_ID.set(request_id)
        stamp = (b"x-request-id", request_id.encode())

        def stamped(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), _NOSNIFF, stamp]
            return send(message)

        try:
            principal = self._principal_of(scope)
        except ApiError as error:
            await problem_of(error, "")(scope, receive, stamped)
            return
        scope["state"]["principal"] = principal
        if not principal.has_token:
            await self._app(scope, receive, stamped)
            return
        running, name = self._running, principal.name
        running[name] = running.get(name, 0) + 1
        try:
            await self._app(scope, receive, stamped)
        finally:
            running[name] -= 1
            if not running[name]:
                del running[name]

    def _principal_of(self, scope: Scope) -> Principal:
        """The caller; raises ApiError for a request that is refused before its route."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        found: dict[bytes, bytes] = {}
        size = 4 * len(headers)
        for name, value in headers:
            size += len(name) + len(value)
            if name in _READ:
                if name in found and name in _SINGLE:
                    raise ApiError("bad_request", f"there are two {name.decode()} headers; send one", headers=CLOSE)
                found[name] = value
        if size > MAX_HEADER_BYTES or len(headers) > MAX_HEADERS:
            raise _too_many_headers(size, len(headers))
        _check_target(scope)
        _check_length(found)
        if (host := found.get(b"host")) is not None and not self._hosts.know(host):
            raise ApiError("wrong_host", f"this server is not called {_shown(host)}; see server.allowed_hosts")
        if (origin := found.get(b"origin")) is not None and scope["method"] not in READS:
            _check_origin(origin, host)
        state: dict[str, Any] = scope["state"]
        path = scope["path"]
        if state.get("reserved") and path not in HEALTH:
            raise _no_connection_left()
        if path in self._public:
            return PASSER_BY
        client = scope["client"]
        principal = self._doorkeeper.admit(
            found.get(b"authorization"), client[0] if client else "unix", state.get("uid")
        )
        if (running := self._running.get(principal.name)) is not None:
            if running >= self._config().limits.requests_per_token:
                raise _too_many_requests(principal, running)
        return principal


class Hosts:
    """The host names of this server. Another one may be a web page whose name resolves to us (DNS rebinding)."""

    def __init__(self, *names: str) -> None:
        self._names = {"localhost", *(name.lower() for name in names)}
        self._known: set[bytes] = set()

    def know(self, host: bytes) -> bool:
        if host in self._known:
            return True
        if not self._is_ours(host.decode("latin-1").lower()):
            return False
        if len(self._known) < MAX_KNOWN_HOSTS:
            self._known.add(host)
        return True

    def _is_ours(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit():
            name = host
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


def _check_target(scope: Scope) -> None:
    path, query = scope["raw_path"], scope["query_string"]
    if len(path) + len(query) > MAX_TARGET_BYTES:
        raise ApiError("uri_too_long", f"path and query have more than {MAX_TARGET_BYTES} bytes", headers=CLOSE)
    if path[:1] != b"/":
        raise ApiError("bad_request", "the target of a request begins with /", headers=CLOSE)
    if b"%" in path or b".." in path:
        decoded = scope["path"]
        if not decoded.isprintable() or ".." in decoded.split("/"):
            raise ApiError("bad_request", "the path has .. or unprintable characters in it")
    if query and (b"%" in query or b"token" in query.lower()):
        for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name.lower() in ("token", "access_token"):
                raise ApiError("token_in_url", "a token in a URL ends up in logs: send `Authorization: Bearer ...`")


def _check_length(found: dict[bytes, bytes]) -> None:
    length = found.get(b"content-length")
    if length is None:
        return
    if b"transfer-encoding" in found:
        raise ApiError("bad_request", "Content-Length and Transfer-Encoding exclude each other", headers=CLOSE)
    if len(length) > 8 or int(length) > MAX_BODY_BYTES:
        raise ApiError("body_too_large", f"no call takes more than {MAX_BODY_BYTES} bytes", headers=CLOSE)


def _check_origin(origin: bytes, host: bytes | None) -> None:
    scheme, _, authority = origin.partition(b"://")
    if host is None or scheme not in (b"http", b"https") or authority.lower() != host.lower():
        raise ApiError("foreign_origin", f"a page of {_shown(origin)} may not write here")


def _shown(value: bytes) -> str:
    return ascii(value[:100].decode("latin-1"))[1:-1]


def _too_many_headers(size: int, count: int) -> ApiError:
    return ApiError(
        "headers_too_large",
        f"{count} headers of {size} bytes; at most {MAX_HEADERS} of {MAX_HEADER_BYTES} are read",
        headers=CLOSE,
    )


def _no_connection_left() -> ApiError:
    return ApiError(
        "too_many_connections",
        "all connections are taken; this one is kept for /livez and /readyz",
        headers={**CLOSE, "Retry-After": "1"},
    )


def _too_many_requests(principal: Principal, limit: int) -> ApiError:
    return ApiError(
        "too_many_requests",
        f"{principal.name} has {limit} requests under way; let some end, or raise limits.requests_per_token",
        headers={"Retry-After": "1"},
    )
