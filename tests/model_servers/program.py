"""A model server as a program: `python program.py '{"port": 8080}'`. It answers GET with 200 and POST with a stream.

    load_s      seconds before it listens
    status      what it answers to GET; 503 while it pretends to load
    alone       file that it locks while it runs; exit code 3 if another one has it
    print       lines that it writes at its start
    exit        ends at once with this code
    deaf        ignores SIGTERM
    child       starts a process of its own, in a session of its own, and writes its number to this file
    runs        file to which it adds a line with its number at each start

A question that has "die" in it ends the program with code 7, "wait" is never answered.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPTIONS = json.loads(sys.argv[1])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(OPTIONS.get("status", 200), "application/json", b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = json.dumps(body["messages"])
        if "die" in text:
            os._exit(7)
        if "wait" in text:
            time.sleep(600)
        choice = {"index": 0, "delta": {"content": f"I am {body['model']}"}, "finish_reason": "stop"}
        chunk = json.dumps({"id": "1", "object": "chat.completion.chunk", "created": 1, "choices": [choice]})
        self._send(200, "text/event-stream", f"data: {chunk}\n\ndata: [DONE]\n\n".encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def main() -> None:
    for line in OPTIONS.get("print", ()):
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    if "runs" in OPTIONS:
        with open(OPTIONS["runs"], "a") as file:
            file.write(f"{os.getpid()}\n")
    if "exit" in OPTIONS:
        sys.exit(OPTIONS["exit"])
    if "alone" in OPTIONS:
        try:
            fcntl.flock(os.open(OPTIONS["alone"], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(3)
    if OPTIONS.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in OPTIONS:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(OPTIONS["child"], "w") as file:
            file.write(str(child.pid))
    time.sleep(OPTIONS.get("load_s", 0))
    ThreadingHTTPServer(("127.0.0.1", OPTIONS["port"]), Handler).serve_forever()


main()
