"""Who may act as a worker, and for which queues."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemon import run_jobd
from tests.support.http import Api
from tests.support.workerless import CONFIG, WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

VERBS = (
    *("claim", "heartbeat", "complete", "fail", "release", "events"),
    *("complete/batch", "fail/batch", "release/batch", "events/batch"),
)
TOKENS = {"gpu-worker": "g" * 40, "any-worker": "a" * 40, "client": "c" * 40}


def entry(name: str, rights: str) -> str:
    return f'{{ name = "{name}", sha256 = "{hashlib.sha256(TOKENS[name].encode()).hexdigest()}", {rights} }}'


AUTH = f"""
[auth]
tokens = [
    {entry("gpu-worker", 'scopes = ["worker"], queues = ["gpu"]')},
    {entry("any-worker", 'scopes = ["worker"]')},
    {entry("client", 'scopes = ["client"]')},
]
"""


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(CONFIG + AUTH) as made:
        yield made


def calling_as(workerless: WorkerlessDaemon, name: str) -> Api:
    return Api(workerless.daemon.address, {"Authorization": f"Bearer {TOKENS[name]}"})


def claim(*streams: str) -> dict[str, Any]:
    return {"worker_id": "w-1", "streams": streams, "max_wait_ms": 0}


@pytest.mark.parametrize(
    ("streams", "status"),
    [
        (["jobs:stream:gpu"], 200),
        (["jobs:stream"], 403),
        (["jobs:stream:gpu", "jobs:stream"], 403),
        (["jobs:stream:nowhere"], 403),
        (["nonsense"], 422),
    ],
    ids=str,
)
def test_token_for_one_queue_serves_no_other(workerless: WorkerlessDaemon, streams: list[str], status: int) -> None:
    assert calling_as(workerless, "gpu-worker")("POST", "/internal/worker/claim", claim(*streams)).status == status


def test_token_without_queues_serves_all(workerless: WorkerlessDaemon) -> None:
    answer = calling_as(workerless, "any-worker")(
        "POST", "/internal/worker/claim", claim("jobs:stream", "jobs:stream:slow")
    )

    assert (answer.status, answer.json["claimed"]) == (200, False)


@pytest.mark.parametrize("verb", VERBS)
def test_client_is_no_worker(workerless: WorkerlessDaemon, verb: str) -> None:
    answer = calling_as(workerless, "client")("POST", f"/internal/worker/{verb}", {})

    assert (answer.status, answer.code) == (403, "forbidden")


@pytest.mark.parametrize("verb", VERBS)
def test_nobody_is_no_worker(workerless: WorkerlessDaemon, verb: str) -> None:
    answer = Api(workerless.daemon.address)("POST", f"/internal/worker/{verb}", {})

    assert (answer.status, answer.code) == (401, "unauthorized")


def test_worker_is_no_client(workerless: WorkerlessDaemon) -> None:
    answer = calling_as(workerless, "any-worker")("GET", f"/v1/jobs/{uuid.uuid4()}")

    assert (answer.status, answer.code) == (403, "forbidden")


@pytest.mark.parametrize(
    ("token", "queue", "said"),
    [
        ("x" * 40, "gpu", "this token is not known"),
        (None, "gpu", "no token"),
        (TOKENS["client"], "gpu", "it needs a token with the scope worker"),
        (TOKENS["gpu-worker"], "default", "may not serve 'jobs:stream'"),
    ],
    ids=["unknown token", "no token", "client's token", "token of another queue"],
)
def test_worker_that_is_not_let_in_ends_and_says_why(
    workerless: WorkerlessDaemon, token: str | None, queue: str, said: str
) -> None:
    arguments = ["worker", "--url", workerless.daemon.addresses["JOBD_URL"], "--queue", queue]

    ended = run_jobd(*arguments, **({} if token is None else {"JOBD_TOKEN": token}))

    assert ended.returncode == 77, ended
    assert said in ended.stderr
    assert token is None or token not in ended.stderr + ended.stdout


def test_worker_for_a_queue_that_jobd_does_not_have_ends_and_says_which_it_has(workerless: WorkerlessDaemon) -> None:
    arguments = ["worker", "--url", workerless.daemon.addresses["JOBD_URL"], "--queue", "nowhere"]

    ended = run_jobd(*arguments, JOBD_TOKEN=TOKENS["any-worker"])

    assert ended.returncode == 69, ended
    assert "there is no stream 'jobs:stream:nowhere'; the streams here are jobs:stream" in ended.stderr
