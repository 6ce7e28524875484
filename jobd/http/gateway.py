"""The HTTP gateway: the application served on a socket that was bound before anything else started.

Stopping takes three steps: streams are told (`InFlight.closing`) and end themselves; requests that go on are cancelled;
then the server is told to shut down, and is cut off if it does not. A gateway that is itself cancelled leaves out the
first step only.

Where it listens is in `jobd.http.listen`, who is let in in `jobd.http.accept`, what a connection may do in
`jobd.http.http1`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from jobd.http.accept import Crowd, Listener, Server
from jobd.http.http1 import Settings
from jobd.http.listen import bind_listener, listener_url
from jobd.http.problems import problem_of
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

__all__ = ["Gateway", "InFlight", "UnderWay", "bind_listener", "hypercorn_settings", "listener_url"]

log = logging.getLogger(__name__)

#: How often it is looked who still has a token that counts.
BEAT_S = 1.0
#: How long requests that ignore `closing` may go on, and how long the server gets after them.
FINISH_S = 2.0
CLOSE_S = 2.0
MAX_CONNECTIONS = 4000
#: A client that has connected by TLS and says nothing is as idle as any other.
TLS_HANDSHAKE_S = 5.0


class UnderWay:
    """One request, which may have to end before it is done."""

    def __init__(self, principal: Principal | None, end: Callable[[], None] | None) -> None:
        self.principal = principal
        #: How to end it when its token counts no more. None: it is short and may write, so it is left to finish.
        self.end = end
        #: What it is answered then, if its answer has not begun.
        self.refusal: ApiError | None = None

    def refuse(self, refusal: ApiError) -> None:
        if self.end is not None:
            self.refusal = refusal
            self.end()


class InFlight:
    """ASGI middleware: knows every request under way, so that a stop or the loss of its token can end it."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._requests: dict[UnderWay, anyio.CancelScope] = {}
        self._idle = anyio.Event()
        self._idle.set()
        #: Set when streams shall end.
        self.closing = anyio.Event()
        #: Called then: for streams, of which there are too many for a task each that waits.
        self.on_closing: set[Callable[[], None]] = set()
        self._is_over = False
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
            request = scope["state"]["under_way"] = UnderWay(scope["state"].get("principal"), end)
            self._requests[request] = cancel_scope
            if self._idle.is_set():
                self._idle = anyio.Event()
            if self._is_over:
                cancel_scope.cancel()
            try:
                await self._app(scope, receive, sending)
            finally:
                del self._requests[request]
                if not self._requests:
                    self._idle.set()
        if cancel_scope.cancelled_caught and not has_begun:
            await problem_of(request.refusal or _stopping(), "")(scope, receive, send)

    def end_of_others(self, still_admits: Callable[[Principal], bool]) -> None:
        """End what is under way for those whose token was revoked, has expired or may less than before."""
        for request in list(self._requests):
            if request.principal is not None and request.refusal is None and not still_admits(request.principal):
                request.refuse(_token_lost())

    async def finish(self, wait_s: float) -> None:
        self.closing.set()
        for call in list(self.on_closing):
            call()
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
        # Cancelled with the gateway, it would cut off answers that are being written: it is always asked first.
        serving = anyio.CancelScope(shield=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve, serving, in_flight, shutdown, served)
            try:
                handle.ready()
                while not handle.stop.is_set():
                    with anyio.move_on_after(BEAT_S):
                        await handle.stop.wait()
                    in_flight.end_of_others(self._still_admits)
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
                    await Server(self._guard(in_flight), settings, self._listeners(settings)).serve(shutdown)
        finally:
            served.set()

    def _settings(self) -> Settings:
        settings = hypercorn_settings()
        if self._tls is not None:
            settings.certfile, settings.keyfile = self._tls
        return settings

    def _listeners(self, settings: Settings) -> list[Listener]:
        listeners = [Listener(self._listener, Crowd(self._max_connections), settings.create_ssl_context())]
        if self._unix_listener is not None:
            listeners.append(Listener(self._unix_listener, Crowd(self._max_connections)))
        return listeners


def hypercorn_settings() -> Settings:
    settings = Settings()
    settings.alpn_protocols = ["http/1.1"]
    settings.ssl_handshake_timeout = TLS_HANDSHAKE_S
    settings.include_server_header = False
    settings.graceful_timeout = 1.0
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.accesslog = None
    return settings
