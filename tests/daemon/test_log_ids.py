"""Log lines name the request, job, attempt and trace that they are about, and nothing of a payload."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from jobd.auth.token import new_token
from tests.support.daemon import environment
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01", "tracestate": "a=1"}
CANARY = "payload-canary"
HANDLERS = """
import logging

log = logging.getLogger("my.app")

async def in_loop(payload, ctx):
    log.warning("in the loop")
    return [ctx.traceparent, ctx.tracestate]

def in_thread(payload, ctx):
    log.warning("in a thread")
    raise ValueError("no")
"""
CONFIG = """
[retry]
max_attempts = 1
[queues.default]
slots = 2
[queues.far]
slots = 0
[tasks.in_loop]
run = "python"
handler = "my_handlers:in_loop"
[tasks.in_thread]
run = "python"
handler = "my_handlers:in_thread"
[tasks.far]
run = "external"
queue = "far"
"""
WORKER_CONFIG = """
[queues.far]
slots = 1
[tasks.far]
run = "python"
handler = "my_handlers:in_loop"
queue = "far"
"""


@pytest.fixture
def daemon(jobd: Callable[..., Jobd], folder: Path) -> Jobd:
    (folder / "my_handlers.py").write_text(HANDLERS)
    (folder / "jobd.toml").write_text(CONFIG)
    path = f"{environment({})['PYTHONPATH']}:{folder}"
    return jobd(None, "--config", str(folder / "jobd.toml"), PYTHONPATH=path).start().until_ready()


def lines_of(daemon: Jobd, message: str) -> list[dict[str, Any]]:
    """JSON lines whose message fits."""
    lines = [json.loads(line) for line in daemon.log_file.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if re.search(message, line["message"])]


def ids_in(line: dict[str, Any]) -> dict[str, str]:
    return {name: line[name] for name in ("request_id", "job_id", "attempt", "trace_id") if name in line}


def run(daemon: Jobd, task: str, headers: dict[str, str]) -> dict[str, Any]:
    job = {"task": task, "payload": {"text": CANARY}}
    answer = Api(daemon.address)("POST", "/v1/jobs?wait_s=60", job, headers)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def test_lines_of_a_job_name_it_its_attempt_and_its_trace(daemon: Jobd) -> None:
    """Those of jobd, and those that a handler logs by itself, in the loop and in a thread."""
    in_loop = run(daemon, "in_loop", TRACE)
    in_thread = run(daemon, "in_thread", TRACE)
    without_trace = run(daemon, "in_thread", {})

    ids = {"attempt": "1", "trace_id": TRACE_ID}
    assert in_loop["result"] == [*TRACE.values()]
    assert [ids_in(line) for line in lines_of(daemon, "in the loop")] == [{"job_id": in_loop["job_id"], **ids}]
    expected = [{"job_id": in_thread["job_id"], **ids}, {"job_id": without_trace["job_id"], "attempt": "1"}]
    assert [ids_in(line) for line in lines_of(daemon, "in a thread")] == expected
    wait_until(lambda: len(lines_of(daemon, "in_thread failed")) == 2, daemon.log)
    assert [ids_in(line) for line in lines_of(daemon, "in_thread failed")] == expected
    assert CANARY not in daemon.log_file.read_text()


def test_lines_of_a_remote_worker_name_the_job_too(daemon: Jobd, folder: Path) -> None:
    with remote_worker(daemon, folder) as log:
        job = run(daemon, "far", TRACE)

    assert job["result"] == [*TRACE.values()]
    (line,) = [json.loads(line) for line in log.read_text().splitlines() if "in the loop" in line]
    assert ids_in(line) == {"job_id": job["job_id"], "attempt": "1", "trace_id": TRACE_ID}


@contextlib.contextmanager
def remote_worker(daemon: Jobd, folder: Path) -> Iterator[Path]:
    (folder / "worker.toml").write_text(WORKER_CONFIG)
    log = folder / "worker.log"
    variables = environment({"PYTHONPATH": f"{environment({})['PYTHONPATH']}:{folder}"})
    command = [sys.executable, "-m", "jobd", "worker", "--url", f"http://{daemon.address}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--config", str(folder / "worker.toml")], cwd="/", env=variables, stdout=out, stderr=out
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        ("abc-DEF_1.2", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("", False),
        ("a b", False),
        ("a\tb", False),
        ("<script>", False),
        ("é", False),
    ],
)
def test_request_id_of_the_caller_is_taken_if_it_is_short_and_plain(api: Api, given: str, is_taken: bool) -> None:
    answer = api("GET", "/v1/jobs/not-an-id", headers={"X-Request-Id": given})

    request_id = answer.headers["x-request-id"]
    assert (request_id == given) == is_taken
    assert answer.json["request_id"] == request_id
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", request_id)


def test_request_without_an_id_gets_one_of_its_own(api: Api) -> None:
    first, second = (api("GET", "/livez").headers["x-request-id"] for _ in range(2))

    assert re.fullmatch(r"[0-9a-f]{16}", first)
    assert first != second


def test_line_of_a_request_names_it_and_its_trace(jobd: Callable[..., Jobd]) -> None:
    """Postgres is away, so the request fails: the line that an operator looks for."""
    token = new_token()
    tokens = json.dumps([{"name": "ann", "sha256": token.sha256.hex(), "scopes": ["client"]}])
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    daemon = jobd(None, JOBD_POSTGRES_URL=nowhere, JOBD_AUTH_TOKENS=tokens).start()
    wait_until(lambda: daemon.readiness()[0] == 503, daemon.log)

    headers = {"Authorization": f"Bearer {token.text}", "X-Request-Id": "mine-1", **TRACE}
    answer = Api(daemon.address, headers)("GET", f"/v1/jobs/{uuid.uuid4()}")

    assert (answer.status, answer.headers["x-request-id"]) == (503, "mine-1")
    (line,) = lines_of(daemon, "^GET /v1/jobs/{id}: ")
    assert ids_in(line) == {"request_id": "mine-1", "trace_id": TRACE_ID}
    assert token.text not in daemon.log_file.read_text()
