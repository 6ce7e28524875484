"""A background response is read whole, each event once, though jobd, its servers or the line die meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.support.proxy import Proxy
from tests.support.wait import wait_until
from tests.tasks.openai_server import OpenAIServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd

CONFIG = """
[leases]
ttl_s = 10
heartbeat_s = 2

[retry]
max_attempts = 10
base_s = 0
cap_s = 0

[queues.default]
slots = 4
[queues.nobody]
slots = 0

[models.small]
base_url = "{base_url}"
"""
TOKENS = [f"{n} " for n in range(50)]
TEXT = "".join(TOKENS)
#: Seconds between two tokens of the model: an answer takes a second and a half.
DELAY_S = 0.03
FAULTS = ("jobd", "postgres", "line", "valkey")
#: Seconds in which a reader must have come to the end.
PATIENCE_S = 120.0


@pytest.fixture
def model() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.stop()


@pytest.fixture
def daemon(jobd: Callable[..., Jobd], folder: Path, model: OpenAIServer) -> Jobd:
    (folder / "jobd.toml").write_text(CONFIG.format(base_url=model.base_url))
    return jobd(None, "--config", str(folder / "jobd.toml")).start().until_ready()


class ResponseFollower:
    """Reads a response to its end, and comes back with the last number it has whenever the line is cut."""

    def __init__(self, base_url: Callable[[], str], response_id: str) -> None:
        self._base_url = base_url
        self._response_id = response_id
        self.events: list[dict[str, Any]] = []
        self.lines = 0
        #: The fault happened while it read.
        self.was_struck = False

    @property
    def text(self) -> str:
        return "".join(event["delta"] for event in self.events if event["type"] == "response.output_text.delta")

    @property
    def is_over(self) -> bool:
        return (
            bool(self.events)
            and "response" in self.events[-1]
            and self.events[-1]["response"]["status"]
            not in (
                "queued",
                "in_progress",
            )
        )

    def run(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.is_over:
            assert time.monotonic() < until, f"no end after {len(self.events)} events"
            with contextlib.suppress(OSError, KeyError, ValueError, openai.APIError):
                self._read()
            time.sleep(0.05)

    def _read(self) -> None:
        after: dict[str, Any] = {"starting_after": len(self.events) - 1} if self.events else {}
        with openai.OpenAI(base_url=self._base_url(), api_key="none", max_retries=0, timeout=10) as client:
            self.lines += 1
            with client.responses.retrieve(self._response_id, stream=True, **after) as stream:
                for event in stream:
                    if event.type == "error":  # it says that the stream ends here, and has no number of its own
                        return
                    assert event.sequence_number == len(self.events), "an event is missing, or came twice"
                    self.events.append(event.to_dict())


def make_response(daemon: Jobd, text: str, queue: str = "default") -> str:
    headers = {"x-jobd-queue": queue}
    with openai.OpenAI(base_url=f"http://{daemon.address}/v1", api_key="none") as client:
        return client.responses.create(model="small", input=text, background=True, extra_headers=headers).id


def strike(daemon: Jobd, fault: str) -> None:
    if fault == "jobd":
        daemon.kill()
        daemon.start()
    elif fault != "line":
        os.kill(daemon.server_pid(fault), signal.SIGKILL)


def read_through(daemon: Jobd, response_id: str, fault: str, at: int, cuts: random.Random) -> ResponseFollower:
    """Follow the response; when `at` of its tokens were read, the fault happens."""
    allowances = (cuts.randrange(200, 6000) for _ in itertools.count()) if fault == "line" else iter(())
    proxy = Proxy(lambda: daemon.address, allowances)
    reader = ResponseFollower(lambda: f"{proxy.url}/v1", response_id)
    thread = threading.Thread(target=reader.run)
    thread.start()
    try:
        some = "".join(TOKENS[:at])
        wait_until(lambda: reader.text.startswith(some) or not thread.is_alive(), lambda: reader.text, PATIENCE_S)
        reader.was_struck = thread.is_alive()
        strike(daemon, fault)
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), daemon.log()
        assert reader.is_over, daemon.log()
    finally:
        proxy.close()
    daemon.until_ready()
    return reader


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_background_response_is_read_once_and_whole_whatever_dies(
    daemon: Jobd, model: OpenAIServer, rounds: int
) -> None:
    cuts = random.Random(rounds)
    lines = struck = 0
    for n in range(rounds):
        model.script({"tokens": TOKENS, "delay_s": DELAY_S, "times": 10})
        fault = FAULTS[n % len(FAULTS)]
        response_id = make_response(daemon, "count")

        reader = read_through(daemon, response_id, fault, cuts.randrange(1, 30), cuts)

        whole = ResponseFollower(lambda: f"http://{daemon.address}/v1", response_id)
        whole.run()
        assert reader.events == whole.events, fault
        assert reader.events[-1]["type"] == "response.completed"
        assert reader.text == TEXT, fault
        lines += reader.lines
        struck += reader.was_struck
    assert lines > rounds
    assert struck > rounds / 2, "most came to their end before anything happened"


def test_a_stream_that_is_ended_by_a_stop_of_jobd_says_so(daemon: Jobd) -> None:
    response_id = make_response(daemon, "count", queue="nobody")
    seen = []

    with openai.OpenAI(base_url=f"http://{daemon.address}/v1", api_key="none") as client:
        with client.responses.retrieve(response_id, stream=True) as stream:
            for event in stream:
                seen.append((event.type, event.sequence_number))
                if event.type == "response.queued":
                    daemon.signal(signal.SIGTERM)
    daemon.wait()

    assert seen == [("response.created", 0), ("response.queued", 1), ("error", 1)]


def test_an_attempt_that_answers_differently_after_a_kill_gets_an_item_of_its_own(
    daemon: Jobd, model: OpenAIServer
) -> None:
    model.script({"tokens": TOKENS, "delay_s": DELAY_S}, {"tokens": ["0 ", "1 ", "and so on"]})
    response_id = make_response(daemon, "count")

    reader = read_through(daemon, response_id, "jobd", 5, random.Random(0))

    left, answer = reader.events[-1]["response"]["output"]
    assert (left["status"], answer["status"]) == ("incomplete", "completed")
    assert TEXT.startswith(left["content"][0]["text"])
    assert answer["content"][0]["text"] == "0 1 and so on"
