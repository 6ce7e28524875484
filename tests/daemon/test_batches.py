"""A large batch over kill -9 of jobd and a pause: every line is answered once, and calls of people go first."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.forms import send_file
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

CHAT = "/v1/chat/completions"
CONFIG = """
[leases]
ttl_s = 6
heartbeat_s = 1
[queues.default]
slots = 2
[tickets]
enabled = false
[models.talker]
task = "chat"
"""
#: Seconds that a line takes.
LINE_S = 0.02


def body_of(seconds: float, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "hi"}
    return {"model": "talker", "messages": [message], "tokens": 2, "seconds": seconds, **fields}


def content_of(number: int) -> bytes:
    """Every hundredth line is one that the mock cannot do."""
    calls = (
        {
            "custom_id": f"line {n}",
            "method": "POST",
            "url": CHAT,
            "body": body_of(LINE_S, **({"tokens": -1} if n % 100 == 99 else {})),
        }
        for n in range(number)
    )
    return b"".join(json.dumps(call).encode() + b"\n" for call in calls)


class LargeBatch:
    def __init__(self, daemon: Jobd, number: int) -> None:
        self._daemon = daemon
        self._number = number
        file_id = send_file(self.api, content_of(number)).json["id"]
        request = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        self.id: str = self.api("POST", "/v1/batches", request).json["id"]

    @property
    def api(self) -> Api:
        """It has another address after each start."""
        return Api(self._daemon.address)

    def read(self) -> Any:
        return self.api("GET", f"/v1/batches/{self.id}").json

    def done(self) -> int:
        counts = self.read()["request_counts"]
        return int(counts["completed"] + counts["failed"])

    def wait_for(self, number: int) -> None:
        wait_until(lambda: self.done() >= number, self.read, 300.0)

    def kill(self) -> None:
        self._daemon.kill()
        self._daemon.start().until_ready()

    def lines(self, name: str) -> list[Any]:
        text = self.api("GET", f"/v1/files/{self.read()[name]}/content").body
        return [json.loads(line) for line in text.splitlines()]

    def call_somebody_waits_for(self) -> int:
        """How many lines have started while it waited."""
        answer = self.api("POST", CHAT, body_of(0))
        assert answer.status == 200, answer
        call = self.api("GET", f"/v1/jobs/{answer.headers['x-jobd-job-id']}").json
        query = f"/v1/jobs?label=jobd.batch:{self.id}&limit=100"
        found: int = 0
        before = ""
        while True:
            page = self.api("GET", f"{query}{before}").json
            ids = [job["job_id"] for job in page["jobs"] if job["updated_ts"] >= call["created_ts"]]
            jobs = [self.api("GET", f"/v1/jobs/{job_id}").json for job_id in ids]
            found += sum(call["created_ts"] < (job["started_ts"] or 0) < call["started_ts"] for job in jobs)
            if page["next"] is None:
                return int(found)
            before = f"&before={page['next']}"

    def check(self) -> None:
        batch = self.read()
        output, errors = self.lines("output_file_id"), self.lines("error_file_id")
        names = [f"line {n}" for n in range(self._number)]
        assert batch["status"] == "completed"
        assert [line["custom_id"] for line in errors] == names[99::100]
        assert [line["custom_id"] for line in output] == [name for n, name in enumerate(names) if n % 100 != 99]
        counts = {"total": self._number, "completed": len(output), "failed": len(errors)}
        assert batch["request_counts"] == counts
        group = "-".join(self.id[6:][at:to] for at, to in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
        assert self.api("GET", f"/v1/groups/{group}").json["members"] == self._number


@pytest.fixture
def daemon(jobd: Callable[..., Jobd], folder: Path) -> Jobd:
    (folder / "jobd.toml").write_text(CONFIG)
    return jobd(None, "--config", str(folder / "jobd.toml")).start().until_ready()


def test_a_batch_goes_on_after_a_kill(daemon: Jobd) -> None:
    batch = LargeBatch(daemon, 200)
    batch.wait_for(20)

    batch.kill()

    wait_until(lambda: batch.read()["status"] == "completed", batch.read, 120.0)
    batch.check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_5000_lines_over_two_kills_and_a_pause(daemon: Jobd) -> None:
    batch = LargeBatch(daemon, 5_000)
    began = time.monotonic()
    batch.wait_for(500)
    overtaken = [batch.call_somebody_waits_for()]

    batch.kill()
    batch.wait_for(1_500)
    batch.api("POST", "/v1/pause")
    time.sleep(2)
    paused_at = batch.done()
    batch.api("POST", "/v1/resume")
    overtaken.append(batch.call_somebody_waits_for())
    batch.wait_for(3_000)
    batch.kill()
    overtaken.append(batch.call_somebody_waits_for())

    wait_until(lambda: batch.read()["status"] == "completed", batch.read, 400.0)
    figures = f"{time.monotonic() - began:.0f} s; {paused_at} at the pause; lines started before a call: {overtaken}"
    print(figures)  # noqa: T201 - pytest -s shows it
    batch.check()
    assert max(overtaken) <= 8


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
def test_kills_at_random_moments_of_short_batches(daemon: Jobd, seed: int) -> None:
    """They hit validation, submission and the making of the files."""
    chance = random.Random(seed)
    batch = LargeBatch(daemon, 400)
    for _ in range(3):
        stop = threading.Event()
        stop.wait(chance.uniform(0.0, 3.0))
        batch.kill()

    wait_until(lambda: batch.read()["status"] == "completed", batch.read, 200.0)
    batch.check()
