"""An event stream that is cut 200 times, through a kill -9 and a FLUSHALL, is read whole: nothing lost or doubled."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

CUTS, EVENTS, CLIENTS = 200, 400, 3


class Worker(threading.Thread):
    """Holds the job and tells its events one by one, each until it is answered."""

    def __init__(self, daemon: Jobd) -> None:
        super().__init__()
        self._daemon = daemon
        self.sent = 0
        self.may_end = threading.Event()

    def run(self) -> None:
        claimed = self.post("claim", {"streams": ["jobs:stream"], "max_wait_ms": 5000})
        held = {name: claimed[name] for name in ("job_id", "lease_token")}
        while self.sent < EVENTS or not self.may_end.is_set():
            event = {"type": "token", "data": {"n": self.sent}}
            answer = self.post("events", {**held, "events": [event], "offset": self.sent})
            assert answer["ok"], answer
            self.sent += 1
            time.sleep(0.005)
        assert self.post("complete", {**held, "attempt_id": claimed["attempt_id"], "result": 1})["ok"]

    def post(self, what: str, body: dict[str, Any]) -> Any:
        while True:
            try:
                api = Api(self._daemon.address)
                answer = api("POST", f"/internal/worker/{what}", {"worker_id": "w", **body})
                if answer.status == 200:
                    return answer.json
            except (OSError, ValueError):
                pass  # it is being restarted
            time.sleep(0.05)


class Client(threading.Thread):
    """Reads a random piece, cuts the line, and comes back with the last id of a whole event."""

    def __init__(self, daemon: Jobd, job_id: str, seed: int) -> None:
        super().__init__()
        self._daemon = daemon
        self._job_id = job_id
        self._random = random.Random(seed)
        self.cuts = 0
        self.seen: list[tuple[str, str]] = []

    def run(self) -> None:
        while not self.seen or self.seen[-1][1] != "done":
            try:
                self._read_a_piece()
            except (OSError, ValueError):
                time.sleep(0.05)

    def _read_a_piece(self) -> None:
        host, _, port = self._daemon.address.partition(":")
        cursor = f"Last-Event-ID: {self.seen[-1][0]}\r\n" if self.seen else ""
        most = self._random.randrange(1, 4000)
        got = b""
        with socket.create_connection((host, int(port)), timeout=2) as line:
            head = f"GET /v1/jobs/{self._job_id}/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            line.sendall(f"{head}{cursor}\r\n".encode())
            with contextlib.suppress(OSError):  # a cut from the other side, or nothing more for now
                while len(got) < most and (part := line.recv(min(most - len(got), 512))):
                    got += part
        self.cuts += 1
        self._note(got)

    def _note(self, got: bytes) -> None:
        """Whole events only: what was cut in the middle is as if it had never come."""
        plain = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", got.partition(b"\r\n\r\n")[2])
        for block in plain.split(b"\n\n")[:-1]:
            fields = dict(re.findall(rb"^(id|event): (.*)$", block, re.M))
            if b"id" in fields:
                self.seen.append((fields[b"id"].decode(), fields[b"event"].decode()))


@pytest.mark.timeout(300)
def test_every_client_sees_every_event_once_whatever_is_cut(jobd: Callable[..., Jobd], folder: Path) -> None:
    (folder / "jobd.toml").write_text("[queues.default]\nslots = 0\n")
    daemon = jobd(None, "--config", str(folder / "jobd.toml")).start().until_ready()
    job_id = Api(daemon.address)("POST", "/v1/jobs", {"task": "chat", "payload": {}}).json["job_id"]
    worker = Worker(daemon)
    clients = [Client(daemon, job_id, seed) for seed in range(CLIENTS)]
    for thread in (worker, *clients):
        thread.start()

    wait_until(lambda: worker.sent > EVENTS // 4)
    with redis.Redis.from_url(daemon.addresses["REDIS_URL"]) as client:
        client.flushall()
    wait_until(lambda: worker.sent > EVENTS // 2)
    daemon.kill()
    daemon.start().until_ready()
    wait_until(lambda: sum(client.cuts for client in clients) >= CUTS)
    worker.may_end.set()
    for thread in (worker, *clients):
        thread.join(60)
        assert not thread.is_alive()

    expected = ["0-1", *(f"1-{n}" for n in range(worker.sent + 2))]
    for client in clients:
        assert [cursor for cursor, _ in client.seen] == expected
        assert [kind for _, kind in client.seen].count("done") == 1
