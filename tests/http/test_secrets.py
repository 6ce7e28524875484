"""Canaries: tokens and a payload go through every path, good and bad, and are then found in no log.

jobd logs at its most talkative here, and what Postgres and Valkey print goes into the same log.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobd.auth.token import new_token
from jobd.http.app import ENDPOINTS
from tests.support.daemon import Jobd, run_jobd
from tests.support.http import Answer, Api
from tests.support.raw_http import exchange
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.http.endpoint import Endpoint

#: The first test waits for all the calls of all routes.
pytestmark = pytest.mark.timeout(240)

ADMIN, UNKNOWN = new_token(), new_token()
MARK = "canary-7f1d-payload"
ELSEWHERE = "canary-9c2e-header"


class ExercisedDaemon:
    """A jobd that has seen it all, and everything that was secret in it."""

    def __init__(self, daemon: Jobd) -> None:
        self.daemon = daemon
        self.secrets = [ADMIN.text, UNKNOWN.text, ADMIN.text[14:], UNKNOWN.text[14:]]
        self.problems: list[tuple[str, Answer]] = []

    def log(self) -> str:
        return self.daemon.log_file.read_text()

    def call(self, method: str, path: str, body: object = None, token: str = ADMIN.text, **headers: str) -> Answer:
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
        answer = Api(self.daemon.address)(method, path, body, sent)
        if answer.status >= 400:
            self.problems.append((f"{method} {path}", answer))
        return answer


@pytest.fixture(scope="module")
def exercised() -> Iterator[ExercisedDaemon]:
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    tokens = json.dumps([{"name": "ops", "sha256": ADMIN.sha256.hex(), "scopes": ["admin"]}])
    daemon = Jobd(folder / "data", JOBD_AUTH_TOKENS=tokens, JOBD_LOG_LEVEL="debug", JOBD_QUEUES_DEFAULT_SLOTS="0")
    try:
        exercised = ExercisedDaemon(daemon.start().until_ready())
        walk_all_paths(exercised)
        yield exercised
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


def walk_all_paths(exercised: ExercisedDaemon) -> None:
    use_tokens(exercised)
    live_a_life(exercised)
    for endpoint in ENDPOINTS:
        call_badly(exercised, endpoint)
    send_noise(exercised)
    call_while_postgres_dies(exercised)


def use_tokens(exercised: ExercisedDaemon) -> None:
    """Make one, use it, revoke it, use it again."""
    data_dir = ("--data-dir", str(exercised.daemon.data_dir))
    made = run_jobd("token", "create", "--name", "made", "--scope", "client", *data_dir).stdout.strip()
    exercised.secrets += [made, made[14:]]
    wait_until(lambda: exercised.call("GET", "/v1/queues", token=made).status == 200, exercised.log, 20)
    run_jobd("token", "revoke", "made", *data_dir)
    wait_until(lambda: exercised.call("GET", "/v1/queues", token=made).status in (401, 429), exercised.log, 20)


def live_a_life(exercised: ExercisedDaemon) -> None:
    """Jobs that end in all ways, with the canary in payload, result, error, events and key."""
    for report in ("complete", "fail"):
        submit = {"task": "chat", "payload": {MARK: MARK}, "max_attempts": 1}
        answer = exercised.call("POST", "/v1/jobs", submit, **{"Idempotency-Key": f"{MARK}-{report}"})
        assert answer.status == 202, answer
        conflict = {**submit, "payload": {"other": MARK}}
        assert exercised.call("POST", "/v1/jobs", conflict, **{"Idempotency-Key": f"{MARK}-{report}"}).status == 422
        claim = {"worker_id": "w", "streams": ["jobs:stream"], "max_wait_ms": 5000}
        job = exercised.call("POST", "/internal/worker/claim", claim).json
        assert job["claimed"], job
        exercised.secrets.append(job["lease_token"])
        held = {key: job[key] for key in ("job_id", "attempt_id", "lease_token")}
        event = {"type": "log", "data": {"text": MARK}}
        lease = {"worker_id": "w", "job_id": job["job_id"], "lease_token": job["lease_token"]}
        assert exercised.call("POST", "/internal/worker/events", {**lease, "events": [event]}).json["ok"]
        assert exercised.call("POST", "/internal/worker/heartbeat", lease).json["ok"]
        end = {"result": {MARK: MARK}} if report == "complete" else {"error": {"code": "x", "message": MARK}}
        for body in (
            {**held, **end},
            {**held, "worker_id": "w", **end},
            {**held, "result": MARK, "error": MARK},
        ):
            exercised.call("POST", f"/internal/worker/{report}", body)
        assert exercised.call("GET", f"/v1/jobs/{job['job_id']}").json["status"] in ("done", "error")
        exercised.call("POST", f"/v1/jobs/{job['job_id']}/cancel", {})
        exercised.call("POST", f"/v1/jobs/{job['job_id']}/retry", {})


def call_badly(exercised: ExercisedDaemon, endpoint: Endpoint) -> None:
    """Every route with bodies, headers and queries that it cannot take, and with tokens that are not known."""
    path = re.sub(r"\{\w+(:\w+)?\}", "0", endpoint.path)
    bodies: list[Any] = [None]
    if endpoint.method in ("POST", "PATCH"):
        bodies = [
            {MARK: MARK},
            [MARK],
            MARK,
            {"task": MARK, "payload": {MARK: MARK}, "queue": MARK, "ttl_s": MARK},
            {"task": "chat", "payload": MARK},
            [{"task": "chat", "payload": {MARK: "\0"}}],
            f'{{"task":"chat","payload":{{"{MARK}":1,"{MARK}":2}}}}'.encode(),
            f'{{"payload": "{MARK}'.encode(),
            f'{{"payload": NaN, "{MARK}": 1}}'.encode(),
            b'{"task":"chat","payload":{"' + MARK.encode() + b'":"\xff"}}',
            b'{"task":"chat","payload":{"x":"' + MARK.encode() * 20_000 + b'"}}',
            b"[" * 100 + MARK.encode(),
        ]
    for body in bodies:
        head_of(exercised, endpoint.method, path, body, ADMIN.text)
    for query in (f"?x={ELSEWHERE}", f"?token={ADMIN.text}", f"?limit={ELSEWHERE}&cursor={ELSEWHERE}"):
        head_of(exercised, endpoint.method, path + query, bodies[0], ADMIN.text)
    head_of(exercised, endpoint.method, path, bodies[-1], UNKNOWN.text)
    head_of(exercised, endpoint.method, path, bodies[0], f"{UNKNOWN.text}\xff")
    head_of(
        exercised,
        endpoint.method,
        path,
        bodies[0],
        ADMIN.text,
        **{"Last-Event-ID": ELSEWHERE, "Idempotency-Key": ELSEWHERE},
    )
    head_of(exercised, endpoint.method, path, bodies[0], ADMIN.text, **{"Content-Type": ELSEWHERE})
    head_of(exercised, endpoint.method, path, bodies[0], ADMIN.text, Host=f"{ELSEWHERE}.example")
    head_of(exercised, endpoint.method, endpoint.path.replace("{id}", ADMIN.text), bodies[0], ADMIN.text)


def head_of(exercised: ExercisedDaemon, method: str, path: str, body: Any, token: str, **headers: str) -> None:
    """Send it and read the answer's head, and its body if it is a problem: a stream would go on."""
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    connection = http.client.HTTPConnection(exercised.daemon.address, timeout=10)
    try:
        connection.request(method, path, content, sent)
        answer = connection.getresponse()
        if answer.status >= 400:
            kept = {name.lower(): value for name, value in answer.getheaders()}
            exercised.problems.append((f"{method} {path}", Answer(answer.status, kept, answer.read())))
    finally:
        connection.close()


def send_noise(exercised: ExercisedDaemon) -> None:
    """What h11 cannot read, with secrets in it."""
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + ADMIN.text.encode() + b"\r\n"
    for noise in (
        ADMIN.text.encode() + b"\r\n\r\n",
        head + b" folded: " + MARK.encode() + b"\r\n\r\n",
        head + b"X: \0" + MARK.encode() + b"\r\n\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\n" + MARK.encode() + b"\r\n",
        head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + MARK.encode(),
        b"GET /" + ADMIN.text.encode() + b"?" + MARK.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        exchange(exercised.daemon.address, noise)
    for part in (head, head + b"Content-Length: 999\r\n\r\n" + MARK.encode()):
        exchange(exercised.daemon.address, part, shut=True)


def call_while_postgres_dies(exercised: ExercisedDaemon) -> None:
    """Calls that lose their connection within a statement, and calls that find none."""
    body = {"task": "chat", "payload": {MARK: MARK * 1000}}
    for _ in range(3):
        with ThreadPoolExecutor(8) as callers:
            calls = [callers.submit(exercised.call, "POST", "/v1/jobs", body) for _ in range(100)]
            os.kill(exercised.daemon.server_pid("postgres"), signal.SIGQUIT)
            assert {call.result().status for call in calls} <= {202, 503}
        exercised.daemon.until_ready()


def test_paths_were_walked(exercised: ExercisedDaemon) -> None:
    """Without this the tests below would pass for a jobd that never got anywhere."""
    statuses = {answer.status for _, answer in exercised.problems}

    assert {400, 401, 404, 413, 415, 421, 422} <= statuses
    assert exercised.log().count("received immediate shutdown request") == 3


def test_no_secret_is_in_any_log(exercised: ExercisedDaemon) -> None:
    logs = [exercised.daemon.log_file, *exercised.daemon.data_dir.rglob("*.log")]

    for path in logs:
        text = path.read_text(errors="replace")
        for secret in (*exercised.secrets, MARK, ELSEWHERE):
            assert secret not in text, next(line for line in text.splitlines() if secret in line)[:500]


def test_no_answer_is_a_fault_of_jobd(exercised: ExercisedDaemon) -> None:
    assert [(asked, answer.body) for asked, answer in exercised.problems if answer.status == 500] == []


def test_no_problem_repeats_a_token_that_came_in_a_header(exercised: ExercisedDaemon) -> None:
    for asked, answer in exercised.problems:
        for secret in exercised.secrets:
            assert secret in asked or secret.encode() not in answer.body, asked


def test_no_problem_repeats_the_payload(exercised: ExercisedDaemon) -> None:
    """The name of a field that is not known is repeated, since it must be found; what it holds is not."""
    for asked, answer in exercised.problems:
        said = answer.json.get("detail") or answer.json["error"]["message"]
        assert MARK.encode() not in answer.body or "field" in said, (asked, answer.body)


def test_database_holds_no_usable_token(exercised: ExercisedDaemon) -> None:
    files = [path for path in (exercised.daemon.data_dir / "postgres").rglob("*") if path.is_file()]

    content = [path.read_bytes() for path in files]

    assert len(files) > 100
    for secret in (ADMIN.text, exercised.secrets[4]):
        assert not any(secret.encode() in part for part in content)
