"""Between our requests and httpx: all of it that does not differ between blocking and awaiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import httpx

from jobd import __version__
from jobd.client.sansio import Lost, Reply, Settings
from jobd.client.target import target_of, token_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from jobd.client.sansio import Request

#: For each answer.
TIMEOUT_S = 10.0
#: For how long a call is tried again while jobd is away or busy.
PATIENCE_S = 10.0
#: An idle connection is dropped before jobd drops it (after 5 s), which could cross with a request.
IDLE_S = 3.0
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=IDLE_S)

#: Failures before anything of a request was sent.
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Caller:
    """What both clients are made of; what they do is in `jobd.client.calls`."""

    _http_kind: ClassVar[Callable[..., Any]]
    _transport_kind: ClassVar[Callable[..., Any]]

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
        self._settings = Settings(url=shown, patience_s=patience_s)
        headers = {"User-Agent": f"jobd/{__version__}", **({"Authorization": f"Bearer {token}"} if token else {})}
        # With a transport of our own httpx does not ask the environment for a proxy.
        way = (
            {"transport": self._transport_kind(uds=target.socket, verify=verify, limits=LIMITS)}
            if target.is_local
            else {"verify": verify, "limits": LIMITS}
        )
        self._http = self._http_kind(base_url=target.base_url, headers=headers, timeout=httpx.Timeout(timeout), **way)

    def __repr__(self) -> str:
        return f"<jobd.{type(self).__name__} {self._settings.url}>"


def built(http: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    usual = http.timeout
    return http.build_request(
        request.method,
        request.path,
        params=request.query or None,
        content=request.body,
        headers={**({} if request.body is None else {"Content-Type": "application/json"}), **request.headers},
        timeout=httpx.Timeout(usual.connect, read=None if usual.read is None else usual.read + request.hold_s),
    )


def reply_of(response: httpx.Response, body: bytes = b"") -> Reply:
    return Reply(response.status_code, response.headers, body)


def lost_by(error: httpx.TransportError) -> Lost:
    return Lost(str(error) or type(error).__name__, isinstance(error, _UNSENT))
