"""A queue with jobs of two models of which one can be loaded: how often it swaps, and what those see who wait."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.model_servers.test_service import PROGRAM, free_port
from tests.support.daemon import is_alive
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd


@pytest.fixture
def daemon(jobd: Callable[..., Jobd], folder: Path) -> Iterator[Jobd]:
    """Its models a and b take turns; each start of a server leaves a line in the file `runs`."""
    lines = ["[openai]", "max_model_wait_s = 3600", "[queues.gpu]", "slots = 1"]
    for name in ("a", "b"):
        port = free_port()
        options = json.dumps({"port": port, "runs": str(folder / "runs"), "alone": str(folder / "alone")})
        lines += [
            f"[models.{name}]",
            f'base_url = "http://127.0.0.1:{port}/v1"',
            f"argv = ['{sys.executable}', '{PROGRAM}', '{options}']",
            'queue = "gpu"',
            'swap_group = "gpu"',
        ]
    (folder / "jobd.toml").write_text("\n".join(lines))
    daemon = jobd(None, "--config", str(folder / "jobd.toml")).start().until_ready()
    yield daemon
    daemon.stop()
    for pid in map(int, (folder / "runs").read_text().split()):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_mixed_jobs_are_done_model_by_model(daemon: Jobd, folder: Path) -> None:
    api = Api(daemon.address)

    def submit(model: str, text: str = "hello", priority: int = 0) -> str:
        payload = {"messages": [{"role": "user", "content": text}]}
        answer = api("POST", "/v1/jobs", {"task": f"model.{model}", "payload": payload, "priority": priority})
        assert answer.status == 202, answer.body
        job_id: str = answer.json["job_id"]
        return job_id

    def status(job_id: str) -> str:
        found: str = api("GET", f"/v1/jobs/{job_id}").json["status"]
        return found

    def wait_for(job_id: str, wanted: str) -> None:
        wait_until(lambda: status(job_id) == wanted, lambda: str(api("GET", f"/v1/jobs/{job_id}").body))

    # While the slot is held, jobs of both models come in turn, and wait for the one that is loaded, or in line for it.
    first = submit("a", "wait")
    wait_until(lambda: [server["jobs"] for server in daemon.get("/v1/board")[1]["model_servers"]] == [1, 0])
    jobs = [submit(model) for model in "ba" * 6]
    urgent = submit("b", priority=1)
    waiting = [api("GET", f"/v1/jobs/{job_id}").json["waiting"] for job_id in jobs[:2]]
    assert [each["reason"] for each in waiting] == ["model_swap", "in_line"]
    assert waiting[0]["detail"] == "a is loaded, and of group gpu one model at a time"

    api("POST", f"/v1/jobs/{first}/cancel")
    for job_id in (urgent, *jobs):
        wait_for(job_id, "done")

    # The urgent job of b goes first; then all of b, which is loaded, then all of a. In the order of the line: 12 swaps.
    assert len((folder / "runs").read_text().split()) == 3
    ended = sorted((api("GET", f"/v1/jobs/{job_id}").json["finished_ts"], number) for number, job_id in enumerate(jobs))
    assert [number % 2 for _, number in ended] == [0] * 6 + [1] * 6
