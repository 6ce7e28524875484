"""A proxy that the environment names is used for a jobd on another machine."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd import AsyncClient, Client
from jobd.client import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"queues":[]}'
VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy")


class Proxy:
    """Notes the head of each request and answers it with `answer`."""

    def __init__(self, answer: bytes) -> None:
        self.heads: list[str] = []
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                head = b""
                while b"\r\n\r\n" not in head and (data := connection.recv(4096)):
                    head += data
                self.heads.append(head.decode())
                connection.sendall(self._answer)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    made = Proxy(getattr(request, "param", ANSWER))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://me:pass%21@127.0.0.1:{made.port}")
    yield made
    made.close()


def queues_by(kind: type[Client] | type[AsyncClient], url: str) -> object:
    if kind is Client:
        with Client(url, "secret", patience_s=0) as client:
            return client.queues()

    async def awaited() -> object:
        async with AsyncClient(url, "secret", patience_s=0) as client:
            return await client.queues()

    return anyio.run(awaited)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_proxy_is_asked_for_the_whole_address(kind: type[Client], proxy: Proxy) -> None:
    assert queues_by(kind, "http://jobd.example:7433/under") == []

    (head,) = proxy.heads
    assert head.startswith("GET http://jobd.example:7433/under/v1/queues HTTP/1.1\r\n")
    assert "\r\nHost: jobd.example:7433\r\n" in head
    assert "\r\nProxy-Authorization: Basic bWU6cGFzcyE=\r\n" in head


@pytest.mark.parametrize("proxy", [b"HTTP/1.1 403 Forbidden\r\n\r\n"], indirect=True)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_proxy_is_asked_for_a_tunnel_that_sees_no_token(kind: type[Client], proxy: Proxy) -> None:
    with pytest.raises(ClientError, match=r"the proxy refused: HTTP/1\.1 403 Forbidden"):
        queues_by(kind, "https://jobd.example")

    (head,) = proxy.heads
    assert head.startswith("CONNECT jobd.example:443 HTTP/1.1\r\nHost: jobd.example:443\r\nProxy-Authorization: Basic")
    assert "secret" not in head


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_host_that_no_proxy_names_is_called_directly(
    kind: type[Client], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "jobd.invalid")

    with pytest.raises(ClientError, match="no answer from"):
        queues_by(kind, "http://jobd.invalid")

    assert proxy.heads == []
