"""A line that can be cut or fall silent: a TCP proxy that lets so many bytes of each answer through."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from typing import TYPE_CHECKING

from tests.support.raw_http import dial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Closing with this set sends a reset instead of an orderly end.
_ABRUPTLY = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards to whatever address `target` names at the moment.

    Each connection takes the next of `allowances`: how many bytes of answers pass before it is cut; none left: all.
    A cut comes only when there are bytes to withhold, so the request has been served by then. Every other cut is a
    reset.
    """

    def __init__(self, target: Callable[[], str], allowances: Iterator[int]) -> None:
        self._target = target
        self._allowances = allowances
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._is_closed = False
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0
        #: Answers are swallowed, and no connection is cut: those who ask wait.
        self.is_silent = False
        self._lines: set[socket.socket] = set()
        self._threads[0].start()

    def _accept(self) -> None:
        with self._listener:
            while self._readable(self._listener):
                client, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _readable(self, *lines: socket.socket) -> list[socket.socket]:
        """Those of the lines that are, as soon as one is; none after the end."""
        while not self._is_closed:
            if readable := select.select(lines, [], [], 0.05)[0]:
                return readable
        return []

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, KeyError), client, dial(self._target()) as server, self._listed(client):
            left = next(self._allowances, None)
            while readable := self._readable(client, server):
                if client in readable:
                    if not (part := client.recv(65536)):
                        return
                    server.sendall(part)
                if server in readable:
                    if not (part := server.recv(65536)):
                        return
                    if self.is_silent:
                        continue
                    if left is not None and len(part) > left:
                        self._cut(client, part[:left])
                        return
                    client.sendall(part)
                    left = None if left is None else left - len(part)

    def _cut(self, client: socket.socket, last: bytes) -> None:
        client.sendall(last)
        self.cuts += 1
        if self.cuts % 2:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPTLY)

    @contextlib.contextmanager
    def _listed(self, client: socket.socket) -> Iterator[None]:
        self._lines.add(client)
        try:
            yield
        finally:
            self._lines.discard(client)

    @property
    def open(self) -> int:
        """How many connections stand."""
        return len(self._lines)

    def hang_up(self) -> None:
        for client in list(self._lines):
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_closed = True
        for thread in self._threads:
            thread.join(5)


@contextlib.contextmanager
def proxy(target: Callable[[], str], *allowances: int) -> Iterator[Proxy]:
    made = Proxy(target, iter(allowances))
    try:
        yield made
    finally:
        made.close()
