"""A small OpenAI-compatible server in a process of its own, which fails when and how a test wants it to.

It speaks the wire format of `/v1/chat/completions` and `/v1/completions`, streamed or not, and of `/v1/embeddings`.
Each request takes the next step of the script, or none:

    {"tokens": ["a", "b"]}           the text to answer, and its pieces
    {"delay_s": 0.1}                 between two of them
    {"usage": false}                 keep the usage to itself
    {"data": ["{…}", "[DONE]"]}      exactly these events, of which nothing is checked
    {"body": "…"}                    exactly this, as JSON
    {"status": 500, "error": {…}, "headers": {…}}   with the body {"error": …}
    {"cut_after": n}                 close the connection after n pieces; 0: before any of the answer
    {"hang_after": n}                say nothing more after n pieces, until the client hangs up
    {"times": n}                     for n requests, not one

A message (or a prompt) whose text is such a step, as JSON, asks for it when the script has none.

`python -m tests.tasks.openai_server` prints its port and ends with its standard input.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

from tests.support.daemon import TOP
from tests.support.wait import wait_until

TOKENS = ("Hel", "lo", " there", "!")
PATIENCE_S = 15.0


class HungUp(Exception):
    """The client is gone."""


class Script:
    """The answers still to be given, and the requests that were seen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.steps: list[dict[str, Any]] = []
        self.seen: list[dict[str, Any]] = []
        self.connections = 0

    def set(self, steps: list[dict[str, Any]]) -> None:
        with self.lock:
            self.steps = [step for step in steps for _ in range(step.get("times", 1))]
            self.seen = []

    def next_step(self, request: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.seen.append(request)
            return self.steps.pop(0) if self.steps else asked_for(request["body"])


def asked_for(body: dict[str, Any]) -> dict[str, Any]:
    try:
        step: object = json.loads(body["prompt"] if "prompt" in body else body["messages"][-1]["content"])
        return step if isinstance(step, dict) else {}
    except (LookupError, TypeError, ValueError):
        return {}


script = Script()


class OpenAIHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with script.lock:
            script.connections += 1
        try:
            super().handle()
        except ConnectionError:
            pass
        finally:
            with script.lock:
                script.connections -= 1

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        with script.lock:
            self._json(200, {"seen": script.seen, "connections": script.connections - 1})

    def do_PUT(self) -> None:
        script.set(self._read())
        self._json(200, {})

    def do_POST(self) -> None:
        body = self._read()
        request = {
            "path": self.path,
            "authorization": self.headers.get("Authorization"),
            "trace": [self.headers.get("traceparent"), self.headers.get("tracestate")],
            "body": body,
            "port": self.client_address[1],
            "outcome": "open",
        }
        step = script.next_step(request)
        try:
            request["outcome"] = self._answer(step, body)
        except (HungUp, ConnectionError):
            request["outcome"] = "hung_up"
            self.close_connection = True

    def _answer(self, step: dict[str, Any], body: dict[str, Any]) -> str:
        self._hang_or_cut(step, 0)
        if self.close_connection:
            return "cut"
        if "status" in step:
            self._json(step["status"], {"error": step.get("error", {"message": "scripted"})}, step.get("headers", {}))
        elif "body" in step:
            self._send(200, "application/json", step["body"].encode())
        elif urlsplit(self.path).path == "/v1/embeddings":
            self._json(200, embeddings(body))
        elif urlsplit(self.path).path not in ("/v1/chat/completions", "/v1/completions"):
            self._json(404, {"error": {"message": f"no route {self.path}", "type": "invalid_request_error"}})
        elif body.get("stream"):
            return self._stream(step, body)
        else:
            self._json(200, completion(step, body))
        return "answered"

    def _stream(self, step: dict[str, Any], body: dict[str, Any]) -> str:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for sent, data in enumerate(step.get("data") or chunks(step, body), 1):
            self._chunk(f"data: {data}\n\n".encode())
            self._hang_or_cut(step, sent)
            if self.close_connection:
                return "cut"
            self._pause(step.get("delay_s", 0.0))
        self._chunk(b"")
        return "answered"

    def _hang_or_cut(self, step: dict[str, Any], sent: int) -> None:
        if step.get("hang_after") == sent:
            self._pause(PATIENCE_S)
        if step.get("cut_after") == sent:
            self.close_connection = True

    def _pause(self, seconds: float) -> None:
        """Nothing more is to be read of a request, so what can be read now is the end of the connection."""
        if select.select([self.connection], [], [], seconds)[0] and not self.connection.recv(1, socket.MSG_PEEK):
            raise HungUp

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _read(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, "application/json", json.dumps(value).encode(), headers)

    def _send(self, status: int, type_: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": type_, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


class ScriptedServer(ThreadingHTTPServer):
    daemon_threads = True
    #: The usual five are too few when a hundred jobs begin at once.
    request_queue_size = 512


def chunks(step: dict[str, Any], body: dict[str, Any]) -> Iterator[str]:
    """As llama.cpp, vLLM and OpenAI send them: the role, the text, the finish reason, the usage, the end mark."""
    tokens = step.get("tokens", TOKENS)
    if "prompt" in body:
        yield from (chunk(body, [{"index": 0, "text": token, "finish_reason": None}]) for token in tokens)
        yield chunk(body, [{"index": 0, "text": "", "finish_reason": "stop"}])
    else:
        yield chunk(body, [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}])
        for token in tokens:
            yield chunk(body, [{"index": 0, "delta": {"content": token}, "finish_reason": None}])
        yield chunk(body, [{"index": 0, "delta": {}, "finish_reason": "stop"}])
    if step.get("usage", True) and body.get("stream_options", {}).get("include_usage"):
        yield chunk(body, [], usage=usage(tokens))
    yield "[DONE]"


def chunk(body: dict[str, Any], choices: list[dict[str, Any]], **more: Any) -> str:
    about = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body.get("model", "tiny")}
    return json.dumps({**about, "choices": choices, **more}, ensure_ascii=False)


def completion(step: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    tokens = step.get("tokens", TOKENS)
    message = {"role": "assistant", "content": "".join(tokens)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model", "tiny"),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage(tokens),
    }


def usage(tokens: list[str]) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": len(tokens), "total_tokens": 7 + len(tokens)}


def embeddings(body: dict[str, Any]) -> dict[str, Any]:
    texts = body["input"]
    if isinstance(texts, str) or isinstance(texts[0], int):  # one text, or the tokens of one
        texts = [texts]
    data = [
        {"object": "embedding", "index": index, "embedding": [float(len(text)), float(index), 0.5]}
        for index, text in enumerate(texts)
    ]
    return {
        "object": "list",
        "data": data,
        "model": body.get("model", "tiny"),
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


class OpenAIServer:
    """The process, seen from a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tasks.openai_server"],
            cwd=TOP,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *steps: dict[str, Any]) -> None:
        """The next requests; forgets what was seen before."""
        self._call("PUT", json.dumps(steps))

    @property
    def seen(self) -> list[dict[str, Any]]:
        """The requests since the script was set: path, authorization, body, and what became of each."""
        found: list[dict[str, Any]] = self._call("GET")["seen"]
        return found

    @property
    def connections(self) -> int:
        """Those of others that are open."""
        count: int = self._call("GET")["connections"]
        return count

    def until_hung_up(self) -> None:
        def outcomes() -> list[str]:
            return [request["outcome"] for request in self.seen]

        wait_until(lambda: "hung_up" in outcomes(), lambda: f"nobody hung up: {outcomes()}", PATIENCE_S / 2)

    def stop(self) -> None:
        with self._process:  # closes the pipes
            self._process.kill()

    def _call(self, method: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            connection.request(method, "/script", body)
            return json.loads(connection.getresponse().read())


def serve() -> None:
    server = ScriptedServer(("127.0.0.1", 0), OpenAIHandler)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve()
