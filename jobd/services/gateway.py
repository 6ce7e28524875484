"""The HTTP gateway: Hypercorn serving the application on a socket that was bound before anything else started.

Stopping takes three steps, because Hypercorn alone waits for ever for an open stream on Python 3.12 and later:
streams are told (`InFlight.closing`) and end themselves; requests that go on are cancelled; then Hypercorn is told to
shut down, and is cut off if it does not. A gateway that is itself cancelled leaves out the first step only.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import anyio
from hypercorn.asyncio import serve
from hypercorn.config import Config as HypercornConfig

from jobd.errors import AddressRefused

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
    from starlette.applications import Starlette

    from jobd.service import Handle

log = logging.getLogger(__name__)

BACKLOG = 1024
BEAT_S = 5.0
#: How long requests that ignore `closing` may go on, and how long Hypercorn gets after them.
FINISH_S = 2.0
CLOSE_S = 2.0


class InFlight:
    """ASGI middleware: knows every request under way, so that a stop can end them."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._scopes: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self._idle.set()
        #: Set when streams shall end.
        self.closing = anyio.Event()
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
        with anyio.move_on_after(wait_s):
            await self._idle.wait()
        for cancel_scope in list(self._scopes):
            cancel_scope.cancel()


class Gateway:
    def __init__(self, app: Starlette, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener

    async def run(self, handle: Handle) -> None:
        in_flight, shutdown, served = InFlight(self._app), anyio.Event(), anyio.Event()
        # Cancelled half-way, Hypercorn goes on accepting and forgets its connections: it is always asked first.
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
                # Hypercorn closes the socket that it is given; ours stays open for the next start of this service.
                settings = hypercorn_settings(f"fd://{os.dup(self._listener.fileno())}")
                await serve(in_flight, settings, shutdown_trigger=shutdown.wait)
        finally:
            served.set()
        if not shutdown.is_set():
            raise RuntimeError("Hypercorn stopped by itself")


def hypercorn_settings(bind: str) -> HypercornConfig:
    settings = HypercornConfig()
    settings.bind = [bind]
    settings.backlog = BACKLOG
    settings.alpn_protocols = ["http/1.1"]
    settings.include_server_header = False
    settings.graceful_timeout = 1.0
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.accesslog = None
    return settings


def bind_listener(host: str, port: int) -> socket.socket:
    """Bind before anything is started, so that a port in use changes nothing."""
    where = f"server.host = {host}, server.port = {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, ValueError) as error:  # ValueError: no host could be called that
        why = error.strerror if isinstance(error, socket.gaierror) else "no such name"
        raise AddressRefused(f"cannot listen on {where}: {why}; name an address of this machine") from error
    try:
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressRefused(f"cannot listen on {where}: {error.strerror}; name another with --host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressRefused(
            f"cannot listen on {where}: {error.strerror}; name another with --host or --port"
        ) from error
    return listener


def listener_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
