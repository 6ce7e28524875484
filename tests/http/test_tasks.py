"""The tasks of a running jobd: what is told of them, which payloads they take, what reaches their workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from tests.support.wait import wait_until
from tests.support.workerless import WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """
[queues.default]
slots = 2
[queues.far]
slots = 0
[retry]
max_attempts = 4
[tasks.area]
run = "python"
handler = "tests.tasks.handlers:area"
[tasks.alone]
run = "python"
handler = "tests.tasks.isolated_handlers:area"
isolate = true
timeout_s = 9
max_attempts = 2
[tasks.free]
run = "python"
handler = "tests.tasks.isolated_handlers:act"
isolate = true
[tasks.program]
run = "command"
argv = ["/bin/true", "--password=hunter2"]
env = ["HUNTER2"]
[tasks.model]
run = "openai"
[tasks.theirs]
run = "external"
queue = "far"
lease_ttl_s = 30
[tasks.ours]
run = "external"
queue = "far"
"""


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(CONFIG, JOBD_TASKS_MODEL_BASE_URL="http://me:hunter2@127.0.0.1:9/v1") as made:
        yield made


def task(workerless: WorkerlessDaemon, name: str) -> Any:
    answer = workerless.api("GET", f"/v1/tasks/{name}")
    assert answer.status == 200, answer
    return answer.json


def until_it_ends(workerless: WorkerlessDaemon, job_id: str) -> Any:
    wait_until(lambda: workerless.read(job_id)["status"] in ("done", "error"), lambda: str(workerless.read(job_id)), 30)
    return workerless.read(job_id)


# -- what is told ------------------------------------------------------------------------------------------------------


def test_every_task_is_listed_and_nothing_that_is_the_operators(workerless: WorkerlessDaemon) -> None:
    answer = workerless.api("GET", "/v1/tasks")

    names = [entry["name"] for entry in answer.json["tasks"]]
    assert names == sorted(names)
    assert {"alone", "area", "chat", "free", "model", "program", "theirs"} <= set(names)
    for secret in (b"hunter2", b"HUNTER2", b"127.0.0.1", b"/bin/true", b"handlers"):
        assert secret not in answer.body


def test_task_says_what_its_jobs_get(workerless: WorkerlessDaemon) -> None:
    alone = task(workerless, "alone")

    assert alone.pop("payload_schema")
    assert alone == {
        "name": "alone",
        "run": "python",
        "queue": "default",
        "timeout_s": 9,
        "max_attempts": 2,
        "paused": False,
    }
    assert task(workerless, "theirs") == {
        "name": "theirs",
        "run": "external",
        "queue": "far",
        "timeout_s": 3600,
        "max_attempts": 4,
        "payload_schema": None,
        "paused": False,
    }


@pytest.mark.parametrize("name", ["area", "alone"])
def test_schema_of_a_typed_task_tells_good_payloads_from_bad_ones(workerless: WorkerlessDaemon, name: str) -> None:
    validator = jsonschema_rs.validator_for(task(workerless, name)["payload_schema"])

    assert validator.is_valid({"width": 1, "height": 2})
    assert not validator.is_valid({"width": "one"})
    assert not validator.is_valid({})


@pytest.mark.parametrize("name", ["free", "program", "model", "chat"])
def test_task_that_takes_any_object_has_no_schema(workerless: WorkerlessDaemon, name: str) -> None:
    assert task(workerless, name)["payload_schema"] is None


@pytest.mark.parametrize("name", ["fly", "AREA", "x" * 300])
def test_unknown_task_is_404(workerless: WorkerlessDaemon, name: str) -> None:
    answer = workerless.api("GET", f"/v1/tasks/{name}")

    assert (answer.status, answer.code) == (404, "no_such_task")


# -- payloads ----------------------------------------------------------------------------------------------------------


def test_payload_that_does_not_fit_is_refused_at_submit(workerless: WorkerlessDaemon) -> None:
    before = workerless.rows("SELECT count(*) FROM jobs")

    answer = workerless.api("POST", "/v1/jobs", {"task": "area", "payload": {"width": "three"}})

    assert (answer.status, answer.code) == (422, "invalid_payload")
    expected = "payload does not fit task area: Expected `int`, got `str` - at `$.width`; /v1/tasks/area has its schema"
    assert answer.json["detail"] == expected
    assert workerless.rows("SELECT count(*) FROM jobs") == before


def test_one_that_does_not_fit_refuses_its_batch(workerless: WorkerlessDaemon) -> None:
    good, bad = {"task": "area", "payload": {"width": 3}}, {"task": "area", "payload": {}}

    answer = workerless.api("POST", "/v1/jobs/batch", [good, bad])

    assert (answer.status, answer.code, answer.json["index"]) == (422, "invalid_payload", 1)


@pytest.mark.parametrize("name", ["area", "alone"])
def test_payload_that_fits_is_run(workerless: WorkerlessDaemon, name: str) -> None:
    job = until_it_ends(workerless, workerless.submit(task=name, payload={"width": 3, "height": 4}))

    assert (job["status"], job["result"]) == ("done", 12)


def test_payload_of_an_isolated_task_is_checked_by_its_process(workerless: WorkerlessDaemon) -> None:
    job = until_it_ends(workerless, workerless.submit(task="alone", payload={"width": "three"}))

    assert (job["status"], job["error"]["code"], job["attempt_count"]) == ("error", "invalid_payload", 1)


# -- external tasks ----------------------------------------------------------------------------------------------------


def test_external_job_is_refused_in_a_queue_whose_slots_would_take_it(workerless: WorkerlessDaemon) -> None:
    answer = workerless.api("POST", "/v1/jobs", {"task": "theirs", "payload": {}, "queue": "default"})

    assert (answer.status, answer.code) == (422, "wrong_queue")
    assert "leave queue out (it is far) or name one with slots = 0" in answer.json["detail"]


@pytest.mark.parametrize(("name", "ttl_s", "every_s"), [("theirs", 30, 10), ("ours", 60, 20)])
def test_worker_is_told_how_long_the_lease_of_its_task_lasts(
    workerless: WorkerlessDaemon, name: str, ttl_s: int, every_s: float
) -> None:
    job_id = workerless.submit(task=name)
    claimed = workerless.claim("jobs:stream:far")
    held = {"worker_id": "w-1", **{key: claimed[key] for key in ("job_id", "lease_token", "attempt_id")}}

    beat = workerless.beat(held)

    assert (claimed["job_id"], claimed["lease_ttl_seconds"]) == (job_id, ttl_s)
    assert claimed["heartbeat_interval_seconds"] == every_s
    assert (beat["ok"], beat["lease_ttl_seconds"]) == (True, ttl_s)
    left = "SELECT extract(epoch FROM lease_expires_at - heartbeat_at)::integer FROM leases WHERE resource_id = $1"
    assert workerless.rows(left, job_id) == [(ttl_s,)]
    workerless.fail(held, retryable=False)
