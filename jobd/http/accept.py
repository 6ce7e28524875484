"""Accepts connections and serves each one. A connection counts from the moment it was accepted, before TLS.

File descriptors are what a client can take without a token, so the number of connections is bounded. At the limit, a
new connection replaces the one that has been silent the longest, that is, has sent no whole request yet: a flood of
connections that send nothing evicts only itself. `RESERVED` more connections are admitted for /livez and /readyz when
all others are busy (`Admission.is_reserved`); such a connection counts as silent again after each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from jobd.http.connection import ClientConnection, ClientReader
from jobd.http.hypercorn_names import WorkerContext, parse_socket_addr

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from jobd.http.http1 import HttpSettings

log = logging.getLogger(__name__)

#: Connections beyond the limit, for health checks (/livez and /readyz) only.
RESERVED = 16
#: Connections accepted before the event loop runs other tasks; evicted connections free their descriptors only then.
ACCEPT_BATCH = 32
#: Pause in seconds before accepting again when the system is out of descriptors or memory.
EXHAUSTED_PAUSE_S = 0.2
#: Errors of accept() when the system is out of descriptors or memory; the connection stays in the listener's backlog.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Quota:
    """At most `limit` connections, and those of them that are silent, the longest silent first."""

    def __init__(self, limit: int, *, are_reserved: bool = False) -> None:
        self.limit = limit
        self.are_reserved = are_reserved
        self.taken: set[Admission] = set()
        self.silent: dict[Admission, None] = {}

    def has_room(self) -> bool:
        """Whether one more connection may be admitted; evicts the longest silent one at the limit."""
        if len(self.taken) >= self.limit and self.silent:
            next(iter(self.silent)).evict()
        return len(self.taken) < self.limit


class Admission:
    """One connection's share of the quota, from its acceptance to its end."""

    def __init__(self, quota: Quota, peer: socket.socket) -> None:
        self._quota = quota
        self._peer = peer
        self.is_reserved = quota.are_reserved
        quota.taken.add(self)
        self.rest()

    def rest(self) -> None:
        """No request is running on the connection: it may be evicted."""
        if self in self._quota.taken:
            self._quota.silent[self] = None

    def use(self) -> None:
        """A request is running: the connection may not be evicted."""
        self._quota.silent.pop(self, None)

    def leave(self) -> None:
        self._quota.taken.discard(self)
        self._quota.silent.pop(self, None)

    def evict(self) -> None:
        """End the connection, even within its TLS handshake: its reader sees end of file at once."""
        self.leave()
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)


class ConnectionLimit:
    """The open connections of one listener: those within its limit, and the reserved ones."""

    def __init__(self, limit: int) -> None:
        self._quotas = (Quota(limit), Quota(RESERVED, are_reserved=True))

    def admit(self, peer: socket.socket) -> Admission | None:
        """Admit one more connection; None: all others have requests running."""
        for quota in self._quotas:
            if quota.has_room():
                return Admission(quota, peer)
        return None

    def evict_silent(self) -> None:
        for quota in self._quotas:
            for admission in list(quota.silent):
                admission.evict()


class ListeningSocket(NamedTuple):
    socket: socket.socket
    limit: ConnectionLimit
    tls: ssl.SSLContext | None = None


class HttpServer:
    """Serves an ASGI application on listening sockets, which stay open when it ends."""

    def __init__(self, app: Any, settings: HttpSettings, listeners: Sequence[ListeningSocket]) -> None:
        self._app = app
        self._settings = settings
        self._listeners = listeners
        self._context = WorkerContext(None)
        self._connections: set[ClientConnection] = set()

    async def serve(self, shutdown: anyio.Event) -> None:
        """Serve until `shutdown`; requests that are running then have `graceful_timeout` seconds to end."""
        async with anyio.create_task_group() as connections:
            async with anyio.create_task_group() as accepting:
                for listener in self._listeners:
                    listener.socket.setblocking(False)
                    accepting.start_soon(self._accept, listener, connections)
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            await self._context.terminated.set()
            for listener in self._listeners:
                listener.limit.evict_silent()
            for connection in self._connections:
                connection.end_if_idle()
            connections.cancel_scope.deadline = anyio.current_time() + self._settings.graceful_timeout

    async def _accept(self, listener: ListeningSocket, connections: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener.socket)
            try:
                for _ in range(ACCEPT_BATCH):
                    peer, address = listener.socket.accept()
                    admission = listener.limit.admit(peer)
                    if admission is None:
                        peer.close()
                    else:
                        connections.start_soon(self._serve, listener, peer, address, admission)
            except BlockingIOError:
                continue
            except OSError as error:  # a client that has left before it was accepted needs nothing
                if error.errno in _EXHAUSTED:
                    log.warning("no connection can be accepted just now: %s; see limits.max_connections", error)
                    await anyio.sleep(EXHAUSTED_PAUSE_S)

    async def _serve(self, listener: ListeningSocket, peer: socket.socket, address: Any, admission: Admission) -> None:
        try:
            client = parse_socket_addr(peer.family, address)
            reader, writer = await _open_streams(peer, listener.tls, self._settings.ssl_handshake_timeout)
            connection = ClientConnection(self._app, self._settings, self._context, reader, writer, client, admission)
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
            admission.leave()


async def _open_streams(
    peer: socket.socket, tls: ssl.SSLContext | None, handshake_s: float
) -> tuple[ClientReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    peer.setblocking(False)
    if peer.family != socket.AF_UNIX:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = ClientReader(loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, peer, ssl=tls, ssl_handshake_timeout=None if tls is None else handshake_s
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
