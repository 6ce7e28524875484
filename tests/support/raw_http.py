"""HTTP by hand: bytes sent as they are, and what came back, however it ended."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
from typing import NamedTuple

TIMEOUT_S = 10.0


class RawAnswer(NamedTuple):
    #: 0: the connection was closed without an answer.
    status: int
    code: str | None
    headers: dict[str, str]
    body: bytes
    #: Whether the other side closed the connection after it.
    closed: bool


def exchange(address: str | socket.socket, sent: bytes, *, shut: bool = False) -> tuple[bytes, bool]:
    """Send all, then read until the other side closes or is silent; True if it closed."""
    connection = dial(address) if isinstance(address, str) else address
    with connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        return received(connection)


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def received(connection: socket.socket) -> tuple[bytes, bool]:
    """What comes until a short silence follows something, or the end."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while True:
            connection.settimeout(0.3 if parts else TIMEOUT_S)
            try:
                part = connection.recv(65536)
            except TimeoutError:
                return b"".join(parts), False
            if not part:
                break
            parts.append(part)
    return b"".join(parts), True


class _Replay:
    def __init__(self, data: io.BytesIO) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return self._data


def answers_in(data: bytes, closed: bool, method: str = "GET") -> list[RawAnswer]:
    """The answers in what was received, one after the other."""
    found, stream = [], io.BytesIO(data)
    while stream.tell() < len(data):
        answer = http.client.HTTPResponse(_Replay(_Uncloseable(stream)), method=method)  # type: ignore[arg-type]
        answer.begin()
        body = answer.read()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        is_problem = headers.get("content-type") == "application/problem+json"
        code = json.loads(body)["code"] if is_problem and body else None
        found.append(RawAnswer(answer.status, code, headers, body, closed))
    return found


class _Uncloseable(io.BufferedIOBase):
    """The answer's reader closes its file; the next answer is in the same one."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        return self._stream.read(size)

    def read1(self, size: int = -1, /) -> bytes:
        return self._stream.read1(size)

    def readinto(self, buffer: object, /) -> int:
        return self._stream.readinto(buffer)  # type: ignore[arg-type]

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._stream.readline(size)

    def close(self) -> None:
        pass


def ask(address: str | socket.socket, sent: bytes, *, shut: bool = False) -> RawAnswer:
    """The first answer to these bytes."""
    data, closed = exchange(address, sent, shut=shut)
    if not data:
        return RawAnswer(0, None, {}, b"", closed)
    return answers_in(data, closed)[0]
