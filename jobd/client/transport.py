"""What both clients share of a connection: where it goes, what every request carries, and how long it may stay idle."""

from __future__ import annotations

import base64
import select
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from jobd import __version__
from jobd.client.http1 import RequestWriter
from jobd.client.sansio import ApiRequest, CallSettings
from jobd.client.target import Target, target_of, token_of

if TYPE_CHECKING:
    import socket

#: For each answer, in seconds.
TIMEOUT_S = 10.0
#: How long a call is tried again while jobd is away or busy, in seconds.
PATIENCE_S = 10.0
#: An idle connection is dropped before jobd drops it (after 5 s), which could cross with a request.
IDLE_S = 3.0
#: Idle connections that a client keeps.
IDLE_CONNECTIONS = 20
#: Read from a connection at a time, in bytes.
READ_BYTES = 65_536


class ConnectFailed(Exception):
    """No connection came about, so nothing of the request was sent."""


class Route(NamedTuple):
    """How to get to jobd: to a unix socket, or to a host, perhaps through a proxy."""

    socket: str | None
    host: str
    port: int
    tls: ssl.SSLContext | None
    #: For which host TLS is spoken.
    server_name: str
    #: What to send to a proxy before TLS begins.
    tunnel: bytes | None


class BaseClient:
    """What both clients are made of; what they do is in `jobd.client.calls`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT_S,
        *,
        patience_s: float = PATIENCE_S,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        target, token = target_of(url), token_of(token)
        shown = f"unix://{target.socket}" if target.socket else target.base_url
        self._settings = CallSettings(url=shown, patience_s=patience_s)
        self._timeout_s = timeout
        self._prefix = target.prefix
        self._headers = {"Host": target.authority, "User-Agent": f"jobd/{__version__}"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._route = self._find_route(target, verify)
        self._writer = RequestWriter(self._prefix, self._headers)
        #: Connections that carry nothing just now, the last used at the end.
        self._idle: deque[Any] = deque()

    def __repr__(self) -> str:
        return f"<jobd.{type(self).__name__} {self._settings.url}>"

    @property
    def url(self) -> str:
        """The address of the jobd, without secrets."""
        return self._settings.url

    def _find_route(self, target: Target, verify: ssl.SSLContext | bool) -> Route:
        tls = _tls(verify) if target.is_tls else None
        route = Route(target.socket, target.host, target.port, tls, target.host, None)
        scheme = "https" if target.is_tls else "http"
        proxies = {} if target.is_local or proxy_bypass(target.host) else getproxies()
        url = proxies.get(scheme) or proxies.get("all")
        if not url:
            return route
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        credentials = _credentials(proxy.username, proxy.password)
        host, port = proxy.hostname or "", proxy.port or 80
        if target.is_tls:
            to = f"{target.host}:{target.port}"
            head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": to, **credentials}.items())
            return route._replace(host=host, port=port, tunnel=f"CONNECT {to} HTTP/1.1\r\n{head}\r\n".encode())
        self._prefix = f"http://{target.authority}{target.prefix}"
        self._headers |= credentials
        return route._replace(host=host, port=port)

    def _bytes_of(self, request: ApiRequest) -> bytes:
        return self._writer.write(request)

    def _answer_s(self, request: ApiRequest) -> float:
        """How long the connection may be silent while the answer comes, in seconds."""
        return self._timeout_s + request.hold_s


def may_be_reused(connection: socket.socket, idle_since: float) -> bool:
    """An idle connection becomes readable when jobd closes it."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0) and time.monotonic() - idle_since < IDLE_S


def _tls(verify: ssl.SSLContext | bool) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}
