"""Stands before every route: what must not get in is refused here, in one pass over the headers.

Hypercorn leaves these open: the size and number of headers, the length of the target, a length beside a transfer
encoding (which two servers in a row may read differently), and who the Host header says we are. Whoever passes has a
principal in `scope["state"]["principal"]` and a request id, the caller's own if it sent a plain one; every answer and
log line carries that id.

The pace of a body and what h11 lets through are checked where the bytes are seen: `jobd.http.connection` and
`jobd.http.http1`.
"""

from __future__ import annotations

import ipaddress
import re
import time
from random import getrandbits
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

from starlette.responses import Response

from jobd.auth.doorkeeper import PASSER_BY
from jobd.auth.sessions import session_in
from jobd.errors import ServerDown
from jobd.host.logs import SUBJECT, trace_id_in
from jobd.http.problems import REQUEST_ID, refusal_of
from jobd.http.request_counts import NO_ROUTE, RequestCounts
from jobd.wire.problems import ApiError
from jobd.wire.trace import trace_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from jobd.auth.doorkeeper import Doorkeeper, Principal
    from jobd.config.model import Config

#: Most headers of a request: enough for any proxy, and bounded.
MAX_HEADERS = 100
#: Most bytes of all headers of a request together, names and values.
MAX_HEADER_BYTES = 16 * 1024
#: Bytes of path and query.
MAX_TARGET_BYTES = 8 * 1024
#: Largest Content-Length in bytes; each route has a limit of its own that is no larger.
MAX_BODY_BYTES = 64 * 1024 * 1024
#: Calls whose routes limit their bodies themselves, by a setting, and read them in pieces.
STREAMED = frozenset({("POST", "/v1/files")})
#: Digits of a Content-Length that is read at all; no body has a terabyte.
LENGTH_DIGITS = 12
#: Size of the cache of Host headers that were found to be right.
MAX_KNOWN_HOSTS = 1000

#: Seconds for which a browser remembers what a page of another server may send.
PREFLIGHT_S = 600

#: Paths that are answered on reserved connections too.
HEALTH = frozenset({"/livez", "/readyz"})
#: Methods that change nothing: allowed for pages of other origins, and cancelled when their token is revoked.
READS = frozenset({"GET", "HEAD", "OPTIONS"})
CLOSE = {"Connection": "close"}

#: Headers that the checks read.
_READ = frozenset(
    {b"host", b"origin", b"authorization", b"content-length", b"transfer-encoding", b"cookie", b"sec-fetch-site"}
)
#: Those of them that may be sent once only and whose number h11 does not check.
_SINGLE = frozenset({b"origin", b"authorization", b"cookie"})
#: Headers of an answer that scripts of other servers' pages may read.
_EXPOSED = (b"access-control-expose-headers", b"x-jobd-job-id, x-request-id, retry-after, x-should-retry, location")
#: Names of headers, as a browser lists them.
_PLAIN_NAMES = re.compile(rb"[A-Za-z0-9_, -]{0,2000}")
_NOSNIFF = (b"x-content-type-options", b"nosniff")
#: A request id that is taken over: it stands in log lines and problem documents.
_PLAIN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Guard:
    """ASGI middleware around the application."""

    def __init__(
        self,
        app: ASGIApp,
        doorkeeper: Doorkeeper,
        config: Callable[[], Config],
        public: Collection[str],
        counts: RequestCounts | None = None,
    ) -> None:
        self._app = app
        self._doorkeeper = doorkeeper
        self._config = config
        self._public = frozenset(public)
        self._hosts = Hosts(config().server.host, *config().server.allowed_hosts)
        self._cors = Cors(config().server.cors_origins)
        #: Number of running requests by the name of their token.
        self._running: dict[str, int] = {}
        self._counts = counts or RequestCounts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id_of(scope["headers"])
        REQUEST_ID.set(request_id)
        SUBJECT.set(RequestSubject(request_id, scope["headers"]))
        stamps = [_NOSNIFF, (b"x-request-id", request_id.encode())]
        began_at = time.monotonic()
        if self._cors.origins:
            stamps += self._cors.headers_for(scope["headers"])

        def stamped(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *stamps]
                route = scope["state"].get("route", NO_ROUTE)
                self._counts.add(route, message["status"], time.monotonic() - began_at)
            return send(message)

        if self._cors.origins and scope["method"] == "OPTIONS" and (answer := self._cors.preflight(scope["headers"])):
            await answer(scope, receive, stamped)
            return
        try:
            principal = await self._principal_of(scope)
        except (ApiError, ServerDown, TimeoutError) as error:
            await refusal_of(error, scope["path"], scope["path"])(scope, receive, stamped)
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

    async def _principal_of(self, scope: Scope) -> Principal:
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
        _check_length(found, is_streamed=(scope["method"], scope["path"]) in STREAMED)
        if (host := found.get(b"host")) is not None and not self._hosts.know(host):
            raise _wrong_host(host)
        if scope["method"] not in READS:
            has_cookie_only = b"cookie" in found and b"authorization" not in found
            if (origin := found.get(b"origin")) is not None and (has_cookie_only or not self._cors.allows(origin)):
                _check_origin(origin, host)
            if has_cookie_only:
                _check_page(found)
        state: dict[str, Any] = scope["state"]
        path = scope["path"]
        if state.get("reserved") and path not in HEALTH:
            raise _no_connection_left()
        if path in self._public:
            return PASSER_BY
        if b"cookie" in found:
            principal = await caller_of(scope, self._doorkeeper)
        else:
            principal = self._doorkeeper.admit(found.get(b"authorization"), peer_of(scope), state.get("uid"))
        if (running := self._running.get(principal.name)) is not None:
            if running >= self._config().limits.requests_per_token:
                raise _too_many_requests(principal, running)
        return principal


class RequestSubject(NamedTuple):
    """What log lines of a request say of it."""

    request_id: str
    headers: Sequence[tuple[bytes, bytes]]

    @property
    def log_fields(self) -> dict[str, str]:
        traceparent = trace_in(self.headers).traceparent
        trace = {} if traceparent is None else {"trace_id": trace_id_in(traceparent)}
        return {"request_id": self.request_id, **trace}


def _request_id_of(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The id that the caller gave, if it is short and plain; else a new one. A bad id is no reason to refuse a call."""
    given = [value for name, value in headers if name == b"x-request-id"]
    if len(given) == 1 and _PLAIN_ID.fullmatch(given[0]):
        return given[0].decode()
    return f"{getrandbits(64):016x}"


async def caller_of(scope: Scope, doorkeeper: Doorkeeper) -> Principal:
    """The caller by its headers; a token is taken before a cookie. Raises ApiError as `Doorkeeper.admit` does."""
    headers = dict(scope["headers"])
    authorization, cookies = headers.get(b"authorization"), headers.get(b"cookie")
    peer, uid = peer_of(scope), scope["state"].get("uid")
    session = session_in(cookies) if cookies is not None and authorization is None else None
    if session is not None:
        await doorkeeper.look_up(session, peer, uid)
    return doorkeeper.admit(authorization, peer, uid, session)


def peer_of(scope: Scope) -> str:
    """The address of the caller, by which bad tries are counted."""
    client = scope["client"]
    return client[0] if client else "unix"


class Cors:
    """Which pages of other servers may call this one, and what their browsers get (CORS)."""

    def __init__(self, origins: Collection[str]) -> None:
        self.origins = frozenset(origin.encode() for origin in origins)

    def allows(self, origin: bytes) -> bool:
        return origin.lower() in self.origins

    def headers_for(self, headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Headers of the answer to a page. Never allow-credentials: a cookie is for jobd's own page."""
        vary = (b"vary", b"Origin")
        for name, value in headers:
            if name == b"origin" and self.allows(value):
                return [vary, (b"access-control-allow-origin", value), _EXPOSED]
        return [vary]

    def preflight(self, headers: Sequence[tuple[bytes, bytes]]) -> Response | None:
        """The answer to a browser that asks whether a page may send its request; None: it is no such question."""
        found = dict(headers)
        if b"access-control-request-method" not in found or not self.allows(found.get(b"origin", b"")):
            return None
        asked = found.get(b"access-control-request-headers", b"")
        return Response(
            status_code=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE",
                "Access-Control-Allow-Headers": asked.decode("latin-1") if _PLAIN_NAMES.fullmatch(asked) else "",
                "Access-Control-Max-Age": str(PREFLIGHT_S),
            },
        )


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


def _wrong_host(host: bytes) -> ApiError:
    name = _shown(host)
    bare = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and ":" in name else name
    return ApiError(
        "wrong_host",
        f'this server is not called {name}; if it is, as in a container, add "{bare}" to server.allowed_hosts',
    )


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


def _check_length(found: dict[bytes, bytes], *, is_streamed: bool) -> None:
    length = found.get(b"content-length")
    if length is None:
        return
    if b"transfer-encoding" in found:
        raise ApiError("bad_request", "Content-Length and Transfer-Encoding exclude each other", headers=CLOSE)
    if len(length) > LENGTH_DIGITS or (int(length) > MAX_BODY_BYTES and not is_streamed):
        raise ApiError("body_too_large", f"no call takes more than {MAX_BODY_BYTES} bytes", headers=CLOSE)


def _check_origin(origin: bytes, host: bytes | None) -> None:
    scheme, _, authority = origin.partition(b"://")
    if host is None or scheme not in (b"http", b"https") or authority.lower() != host.lower():
        raise ApiError(
            "foreign_origin",
            f"a page of {_shown(origin)} may not write here; to let its scripts, with a token, add the origin to"
            " server.cors_origins",
        )


def _check_page(found: dict[bytes, bytes]) -> None:
    """Browsers may add the cookie to what other pages send: a write with a session needs the origin of our own page."""
    if session_in(found[b"cookie"]) is None:
        return
    if b"origin" not in found:
        raise ApiError("no_origin", "a write with the cookie of a session needs an Origin header; or send a token")
    if found.get(b"sec-fetch-site") == b"cross-site":
        raise ApiError("foreign_origin", "a page of another site may not write here")


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
