"""The HTTP gateway: the application served on a socket that was bound before anything else started.

Stopping takes three steps: streams are told (`InFlight.closing`) and end themselves; requests that go on are cancelled;
then the server is told to shut down, and is cut off if it does not. A gateway that is itself cancelled leaves out the
first step only.

Where it listens is in `jobd.services.listen`, who is let in in `jobd.services.accept`, what a connection may do in
`jobd.services.http1`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from jobd.services.accept import Crowd, Listener, Server
from jobd.services.http1 import Settings
from jobd.services.listen import bind_listener, listener_url

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
    from starlette.applications import Starlette
    from starlette.types import ASGIApp

    from jobd.service import Handle
    from jobd.services.listen import TlsFiles

__all__ = ["Gateway", "InFlight", "bind_listener", "hypercorn_settings", "listener_url"]

log = logging.getLogger(__name__)

BEAT_S = 5.0
#: How long requests that ignore `closing` may go on, and how long the server gets after them.
FINISH_S = 2.0
CLOSE_S = 2.0
MAX_CONNECTIONS = 4000
#: A client that has connected by TLS and says nothing is as idle as any other.
TLS_HANDSHAKE_S = 5.0


class InFlight:
    """ASGI middleware: knows every request under way, so that a stop can end them."""

    def __init__(self, app: Starlette, guarded: ASGIApp) -> None:
        self._app = guarded
        self._scopes: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self._idle.set()
        #: Set when streams shall end.
        self.closing = anyio.Event()
        #: Called then: for streams, of which there are too many for a task each that waits.
        self.on_closing: set[Callable[[], None]] = set()
        app.state.in_flight = self

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        app: Any = self._app  # the same protocol under two names
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        with anyio.CancelScope() as cancel_scope:
            self._scopes.add(cancel_scope)
            if self._idle.is_set():
                self._idle = anyio.Event()
            try:
                await app(scope, receive, send)
            finally:
                self._scopes.discard(cancel_scope)
                if not self._scopes:
                    self._idle.set()

    async def finish(self, wait_s: float) -> None:
        self.closing.set()
        for call in list(self.on_closing):
            call()
        with anyio.move_on_after(wait_s):
            await self._idle.wait()
        for cancel_scope in list(self._scopes):
            cancel_scope.cancel()


class Gateway:
    def __init__(
        self,
        app: Starlette,
        listener: socket.socket,
        *,
        guard: Callable[[ASGIApp], ASGIApp] = lambda app: app,
        unix_listener: socket.socket | None = None,
        tls: TlsFiles | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._app = app
        self._guarded = guard(app)
        self._listener = listener
        self._unix_listener = unix_listener
        self._tls = tls
        self._max_connections = max_connections

    async def run(self, handle: Handle) -> None:
        in_flight, shutdown, served = InFlight(self._app, self._guarded), anyio.Event(), anyio.Event()
        # Cancelled with the gateway, it would cut off answers that are being written: it is always asked first.
        serving = anyio.CancelScope(shield=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._serve, serving, in_flight, shutdown, served)
            try:
                handle.ready()
                while not handle.stop.is_set():
                    with anyio.move_on_after(BEAT_S):
                        await handle.stop.wait()
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
                    await Server(in_flight, settings, self._listeners(settings)).serve(shutdown)
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
