"""Accepts connections and serves each one, counted from the moment it was accepted: before TLS, before a first byte.

Descriptors are what strangers can take without a token, so their number is bounded here. A newcomer that finds all
places taken is given the place of the connection that has been silent the longest: one that sent no whole request yet.
So a flood of connections that say nothing only throws out its own. A few more places are kept for /livez and /readyz
while the others are busy (`Place.is_reserved`); there a connection counts as silent again after each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.utils import parse_socket_addr

from jobd.http.http1 import Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from jobd.http.http1 import Settings

log = logging.getLogger(__name__)

#: Connections beyond the limit for those who ask how jobd is.
RESERVED = 16
#: Connections accepted in one step; what an evicted one holds is given back between two steps.
AT_ONCE = 32
#: Seconds without accepting when the system has no descriptor or memory for one more connection.
PAUSE_S = 0.2
#: A system that cannot take one more connection; the one that waits stays in the listener's queue.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Places:
    """A number of connections, and which of those that have one are silent, the longest silent first."""

    def __init__(self, limit: int, *, are_reserved: bool = False) -> None:
        self.limit = limit
        self.are_reserved = are_reserved
        self.taken: set[Place] = set()
        self.silent: dict[Place, None] = {}

    def has_room(self) -> bool:
        """Whether there is room for one more, if need be by ending a silent connection."""
        if len(self.taken) >= self.limit and self.silent:
            next(iter(self.silent)).evict()
        return len(self.taken) < self.limit


class Place:
    """What one connection holds, from its acceptance to its end."""

    def __init__(self, places: Places, peer: socket.socket) -> None:
        self._places = places
        self._peer = peer
        self.is_reserved = places.are_reserved
        places.taken.add(self)
        self.rest()

    def rest(self) -> None:
        """Nothing is under way on the connection and nobody would miss it."""
        if self in self._places.taken:
            self._places.silent[self] = None

    def use(self) -> None:
        """A request is under way."""
        self._places.silent.pop(self, None)

    def leave(self) -> None:
        self._places.taken.discard(self)
        self._places.silent.pop(self, None)

    def evict(self) -> None:
        """End the connection, in a handshake or after it: its reader sees the end at once."""
        self.leave()
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)


class Crowd:
    """The open connections of one listener."""

    def __init__(self, limit: int) -> None:
        self._places = (Places(limit), Places(RESERVED, are_reserved=True))

    def admit(self, peer: socket.socket) -> Place | None:
        """A place for one more connection; None: all are taken by connections with requests under way."""
        for places in self._places:
            if places.has_room():
                return Place(places, peer)
        return None

    def evict_silent(self) -> None:
        for places in self._places:
            for place in list(places.silent):
                place.evict()


class Listener(NamedTuple):
    socket: socket.socket
    crowd: Crowd
    tls: ssl.SSLContext | None = None


class Server:
    """Serves an ASGI application on listening sockets, which stay open when it ends."""

    def __init__(self, app: Any, settings: Settings, listeners: Sequence[Listener]) -> None:
        self._app = app
        self._settings = settings
        self._listeners = listeners
        self._context = WorkerContext(None)
        self._connections: set[Connection] = set()

    async def serve(self, shutdown: anyio.Event) -> None:
        """Serve until `shutdown`; what is under way then has `graceful_timeout` to end."""
        async with anyio.create_task_group() as connections:
            async with anyio.create_task_group() as accepting:
                for listener in self._listeners:
                    listener.socket.setblocking(False)
                    accepting.start_soon(self._accept, listener, connections)
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            await self._context.terminated.set()
            for listener in self._listeners:
                listener.crowd.evict_silent()
            for connection in self._connections:
                connection.end_if_idle()
            connections.cancel_scope.deadline = anyio.current_time() + self._settings.graceful_timeout

    async def _accept(self, listener: Listener, connections: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener.socket)
            try:
                for _ in range(AT_ONCE):
                    peer, address = listener.socket.accept()
                    place = listener.crowd.admit(peer)
                    if place is None:
                        peer.close()
                    else:
                        connections.start_soon(self._serve, listener, peer, address, place)
            except BlockingIOError:
                continue
            except OSError as error:  # that of a client which has left already is its own concern
                if error.errno in _EXHAUSTED:
                    log.warning("no connection can be accepted just now: %s; see limits.max_connections", error)
                    await anyio.sleep(PAUSE_S)

    async def _serve(self, listener: Listener, peer: socket.socket, address: Any, place: Place) -> None:
        try:
            client = parse_socket_addr(peer.family, address)
            reader, writer = await _open_streams(peer, listener.tls, self._settings.ssl_handshake_timeout)
            connection = Connection(self._app, self._settings, self._context, reader, writer, client, place)
            self._connections.add(connection)
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
        except OSError as error:  # a handshake that fails, or a client that has left
            log.debug("a connection ended: %s", error)
        except Exception:
            log.exception("a connection failed")
        finally:
            place.leave()


async def _open_streams(
    peer: socket.socket, tls: ssl.SSLContext | None, handshake_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    peer.setblocking(False)
    if peer.family != socket.AF_UNIX:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, peer, ssl=tls, ssl_handshake_timeout=None if tls is None else handshake_s
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
