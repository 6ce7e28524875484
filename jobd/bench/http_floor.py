"""The least that a submit over HTTP can cost: the same server, reading the body and answering a constant.

python -m jobd.bench.http_floor FD: serves on that listening socket until it is killed.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import anyio

from jobd.http.accept import ConnectionLimit, HttpServer, ListeningSocket
from jobd.http.gateway import MAX_CONNECTIONS, hypercorn_settings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

BODY = b'{"job_id":"01a1e32b-6742-7000-927b-55333af42aa0","status":"queued"}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def constant(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 202, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


async def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        listening = ListeningSocket(listener, ConnectionLimit(MAX_CONNECTIONS))
        server = HttpServer(constant, hypercorn_settings(), [listening])
        await server.serve(anyio.Event())


if __name__ == "__main__":
    anyio.run(main, backend_options={"use_uvloop": True})
