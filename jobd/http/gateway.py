"""The HTTP gateway: the application served on a socket that was bound before anything else started.

It stops in three steps: streams end themselves on `InFlight.closing`; requests that still run after `FINISH_S` are
cancelled; the server shuts down, and is cancelled if it takes longer than `CLOSE_S`. A gateway that is itself cancelled
leaves out the first step only.

Sockets are bound in `jobd.http.listen`, connections admitted in `jobd.http.accept`, served in `jobd.http.connection`,
requests parsed in `jobd.http.http1` and checked in `jobd.http.request_checks`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from jobd.http.accept import ConnectionLimit, HttpServer, ListeningSocket
from jobd.http.http1 import HttpSettings
from jobd.http.listen import bind_listener, listener_url
from jobd.http.problems import refusal_of
from jobd.http.request_checks import READS
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from jobd.auth.doorkeeper import Principal
    from jobd.http.listen import TlsFiles
    from jobd.supervise.service import Handle

__all__ = ["Gateway", "InFlight", "RunningRequest", "bind_listener", "hypercorn_settings", "listener_url"]

log = logging.getLogger(__name__)

#: Seconds between two checks whether the tokens of running requests are still valid; also the heartbeat to the
#: supervisor.
TOKEN_CHECK_S = 1.0
#: Seconds that running requests have to end by themselves when the gateway stops; after that they are cancelled.
FINISH_S = 2.0
#: Seconds that the server then has to write what was answered and close its connections.
CLOSE_S = 2.0
#: Connections of each listener, for tests and benchmarks; the daemon passes limits.max_connections.
MAX_CONNECTIONS = 4000
#: Seconds for a TLS handshake; as long as an idle connection without TLS may stay silent (`keep_alive_timeout`).
TLS_HANDSHAKE_S = 5.0


class RunningRequest:
    """One request, which may be ended before it is answered."""

    def __init__(self, principal: Principal | None, end: Callable[[], None] | None) -> None:
        self.principal = principal
        #: Cancels the request when its token is no longer valid. None: it may write and is short, so it finishes.
        self.end = end
        #: The answer to the cancelled request, if no answer has begun.
        self.refusal: ApiError | None = None

    def refuse(self, refusal: ApiError) -> None:
        if self.end is not None:
            self.refusal = refusal
            self.end()


class InFlight:
    """ASGI middleware: keeps every running request, so that a stop of the gateway or a revoked token can end it."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._requests: dict[RunningRequest, anyio.CancelScope] = {}
        #: Set when no request is running any more; None: nobody waits for it.
        self._idle: anyio.Event | None = None
        #: Set when the gateway stops: streams have to end.
        self.closing = anyio.Event()
        #: Callbacks for the same moment, for event streams: a waiting task for each would cost too much memory.
        self.on_closing: set[Callable[[], None]] = set()
        self._is_over = False
        #: Streams of events that are open now.
        self.event_streams = 0
        app.state.in_flight = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        def sending(message: Message) -> Awaitable[None]:
            nonlocal has_begun
            has_begun = True
            return send(message)

        with anyio.CancelScope() as cancel_scope:
            end = cancel_scope.cancel if scope["method"] in READS else None
            request = scope["state"]["running_request"] = RunningRequest(scope["state"].get("principal"), end)
            self._requests[request] = cancel_scope
            if self._is_over:
                cancel_scope.cancel()
            try:
                await self._app(scope, receive, sending)
            finally:
                del self._requests[request]
                if not self._requests and self._idle is not None:
                    self._idle.set()
        if cancel_scope.cancelled_caught and not has_begun:
            await refusal_of(request.refusal or _stopping(), "", scope["path"])(scope, receive, send)

    def end_revoked(self, still_admits: Callable[[Principal], bool]) -> None:
        """End the requests whose token was revoked, has expired or lost a scope or queue."""
        for request in list(self._requests):
            if request.principal is not None and request.refusal is None and not still_admits(request.principal):
                request.refuse(_token_lost())

    async def finish(self, wait_s: float) -> None:
        self.closing.set()
        for call in list(self.on_closing):
            call()
        if self._requests:
            self._idle = anyio.Event()
            with anyio.move_on_after(wait_s):
                await self._idle.wait()
        self._is_over = True
        for cancel_scope in list(self._requests.values()):
            cancel_scope.cancel()


def _stopping() -> ApiError:
    return ApiError(
        "unavailable",
        "jobd stops, and whether this was done is not known; ask again, a submit with the same Idempotency-Key",
        headers={"Retry-After": "1", "Connection": "close"},
    )


def _token_lost() -> ApiError:
    return ApiError(
        "unauthorized",
        "this token was revoked, has expired or was changed meanwhile; `jobd token list` shows which are known",
        headers={"WWW-Authenticate": "Bearer"},
    )


class Gateway:
    def __init__(
        self,
        app: Starlette,
        listener: socket.socket,
        *,
        guard: Callable[[ASGIApp], ASGIApp] = lambda app: app,
        still_admits: Callable[[Principal], bool] = lambda principal: True,
        unix_listener: socket.socket | None = None,
        tls: TlsFiles | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._app = app
        self._guard = guard
        self._still_admits = still_admits
        self._listener = listener
        self._unix_listener = unix_listener
        self._tls = tls
        self._max_connections = max_connections

    async def run(self, handle: Handle) -> None:
        in_flight, shutdown, served = InFlight(self._app), anyio.Event(), anyio.Event()
        # Shielded: cancelled with the gateway, the server would cut off answers that are being written.
        serving = anyio.CancelScope(shield=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve, serving, in_flight, shutdown, served)
            try:
                handle.ready()
                while not handle.stop.is_set():
                    with anyio.move_on_after(TOKEN_CHECK_S):
                        await handle.stop.wait()
                    in_flight.end_revoked(self._still_admits)
                    handle.beat()
                await in_flight.finish(0.0 if handle.hurry else FINISH_S)
            finally:
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await in_flight.finish(0.0)
                    shutdown.set()
                    await served.wait()
                serving.cancel()

    async def _serve(
        self, serving: anyio.CancelScope, in_flight: InFlight, shutdown: anyio.Event, served: anyio.Event
    ) -> None:
        try:
            with serving:
                async with self._app.router.lifespan_context(self._app):
                    settings = self._settings()
                    await HttpServer(self._guard(in_flight), settings, self._listeners(settings)).serve(shutdown)
        finally:
            served.set()

    def _settings(self) -> HttpSettings:
        settings = hypercorn_settings()
        if self._tls is not None:
            settings.certfile, settings.keyfile = self._tls
        return settings

    def _listeners(self, settings: HttpSettings) -> list[ListeningSocket]:
        listeners = [
            ListeningSocket(self._listener, ConnectionLimit(self._max_connections), settings.create_ssl_context())
        ]
        if self._unix_listener is not None:
            listeners.append(ListeningSocket(self._unix_listener, ConnectionLimit(self._max_connections)))
        return listeners


def hypercorn_settings() -> HttpSettings:
    settings = HttpSettings()
    settings.alpn_protocols = ["http/1.1"]
    settings.ssl_handshake_timeout = TLS_HANDSHAKE_S
    settings.include_server_header = False
    settings.graceful_timeout = 1.0
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.accesslog = None
    return settings
