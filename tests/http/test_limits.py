"""`/v1/queues/{queue}/limits`, the limit key of a submit, and what a limited job says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.wait import wait_until
from tests.support.workerless import WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """
[queues.far]
slots = 0
key_running = 1
[tasks.theirs]
run = "external"
queue = "far"
limit_key = "/user"
"""
LIMITS = "/v1/queues/far/limits"


@pytest.fixture(scope="module")
def daemon() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(CONFIG) as made:
        yield made


def submit(daemon: WorkerlessDaemon, **fields: Any) -> Any:
    answer = daemon.api("POST", "/v1/jobs", {"task": "theirs", "payload": {}, **fields})
    assert answer.status == 202, answer.body
    return answer.json


def waiting(daemon: WorkerlessDaemon, job_id: str) -> Any:
    return daemon.api("GET", f"/v1/jobs/{job_id}").json["waiting"]


def test_the_second_job_of_a_key_says_that_it_is_limited_until_the_first_leaves(daemon: WorkerlessDaemon) -> None:
    first, second = submit(daemon, limit_key="k1"), submit(daemon, limit_key="k1")
    wait_until(lambda: waiting(daemon, first["job_id"])["reason"] == "in_line", "the first was not admitted")

    assert first["limit_key"] == "k1"
    assert waiting(daemon, second["job_id"]) == {
        "reason": "limited",
        "position": None,
        "limit_key": "k1",
        "eta_s": None,
    }
    daemon.api("POST", f"/v1/jobs/{first['job_id']}/cancel")
    wait_until(lambda: waiting(daemon, second["job_id"])["reason"] == "in_line", "the second was not admitted")


@pytest.mark.parametrize(("user", "key"), [("ann", "ann"), (7, "7"), (True, "true"), (None, None), (1.5, "1.5")])
def test_the_key_comes_from_the_payload_if_the_task_says_where(daemon: WorkerlessDaemon, user: Any, key: str) -> None:
    assert submit(daemon, payload={"user": user})["limit_key"] == key


@pytest.mark.parametrize("user", ["", "x" * 201, {}, [], "*"])
def test_a_payload_without_a_usable_key_is_refused(daemon: WorkerlessDaemon, user: Any) -> None:
    answer = daemon.api("POST", "/v1/jobs", {"task": "theirs", "payload": {"user": user}})

    assert (answer.status, answer.code) == (422, "invalid")
    assert "the limit key of task theirs" in answer.json["detail"]


def test_a_limit_that_is_raised_admits_at_once(daemon: WorkerlessDaemon) -> None:
    jobs = [submit(daemon, limit_key="k2")["job_id"] for _ in range(3)]

    answer = daemon.api("POST", LIMITS, {"key": "k2", "running": 3, "weight": 2})

    assert answer.json == {"key": "k2", "running": 3, "rate": None, "rate_s": None, "weight": 2}
    wait_until(lambda: all(waiting(daemon, job_id)["reason"] == "in_line" for job_id in jobs), "some are held back")
    page = daemon.api("GET", LIMITS).json
    assert page["configured"] == {"running": 1, "rate": 0, "rate_s": 60, "fair": False}
    assert "k2" in [limit["key"] for limit in page["limits"]]
    assert daemon.api("POST", f"{LIMITS}/drop", {"key": "k2"}).json == {"key": "k2", "dropped": True}
    assert daemon.api("POST", f"{LIMITS}/drop", {"key": "k2"}).json == {"key": "k2", "dropped": False}


BAD: list[tuple[str, Any]] = [
    ("no key", {"running": 1}),
    ("empty key", {"key": "", "running": 1}),
    ("long key", {"key": "x" * 201}),
    ("nul", {"key": "a\0"}),
    *((f"running {value!r}", {"key": "k", "running": value}) for value in (-1, 1.5, "1", None, True, 10**7)),
    *((f"rate {value!r}", {"key": "k", "rate": value, "rate_s": 1}) for value in (-1, 1.5, "1", None, 10_001)),
    *((f"rate_s {value!r}", {"key": "k", "rate": 1, "rate_s": value}) for value in (0, -1, "1", None, 86_401)),
    *((f"weight {value!r}", {"key": "k", "weight": value}) for value in (0, -1, 101, "1", None)),
    ("rate without its period", {"key": "k", "rate": 1}),
    ("period without a rate", {"key": "k", "rate_s": 1}),
    ("unknown field", {"key": "k", "max": 1}),
]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in BAD])
def test_a_bad_limit_is_refused_and_sets_nothing(daemon: WorkerlessDaemon, body: Any) -> None:
    before = daemon.api("GET", LIMITS).json

    answer = daemon.api("POST", LIMITS, body)

    assert (answer.status, answer.code) in ((422, "invalid"), (422, "nul")), answer.body
    assert daemon.api("GET", LIMITS).json == before


@pytest.mark.parametrize("path", ["/v1/queues/nowhere/limits", "/v1/queues/nowhere/limits/drop"])
def test_limits_of_an_unknown_queue_are_404(daemon: WorkerlessDaemon, path: str) -> None:
    answer = daemon.api("POST", path, {"key": "k"})

    assert (answer.status, answer.code) == (404, "no_such_queue")
