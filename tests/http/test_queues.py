"""`/v1/queues`, `/v1/stats`, and what a full queue answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.database_workers import database_workers
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

COUNTERS = ("queued", "running", "done", "error", "canceled")


def submit(api: Api, **fields: Any) -> Any:
    answer = api("POST", "/v1/jobs", {"task": "embed", "payload": {}, **fields})
    assert answer.status == 202, answer
    return answer.json


def queue(api: Api, name: str) -> Any:
    (wanted,) = (entry for entry in api("GET", "/v1/queues").json["queues"] if entry["name"] == name)
    return wanted


def test_every_configured_queue_is_listed(api: Api) -> None:
    queues = {entry["name"]: entry for entry in api("GET", "/v1/queues").json["queues"]}

    assert {"default", "fast"} <= queues.keys()
    assert (queues["fast"]["slots"], queues["fast"]["paused"]) == (0, False)


def test_counters_follow_the_jobs(api: Api, workers: DatabaseWorkers) -> None:
    before = queue(api, "fast")
    ids = [submit(api, queue="fast")["job_id"] for _ in range(5)]
    workers.start(ids[0])
    workers.finish(ids[1])
    workers.fail(ids[2])
    api("POST", f"/v1/jobs/{ids[3]}/cancel")

    after = queue(api, "fast")

    assert [after[name] - before[name] for name in COUNTERS] == [1, 1, 1, 1, 1]
    assert after["head_waits_s"] > 0


def test_a_paused_queue_holds_its_jobs_and_says_so(api: Api) -> None:
    job_id = submit(api, queue="fast")["job_id"]

    paused = api("POST", "/v1/queues/fast/pause")
    waits = api("GET", f"/v1/jobs/{job_id}").json["waiting"]["reason"]
    listed = queue(api, "fast")["paused"]
    resumed = api("POST", "/v1/queues/fast/resume")

    assert (paused.status, paused.json) == (200, {"name": "fast", "paused": True})
    assert (waits, listed) == ("paused", True)
    assert (resumed.status, resumed.json) == (200, {"name": "fast", "paused": False})
    assert api("GET", f"/v1/jobs/{job_id}").json["waiting"]["reason"] == "in_line"


@pytest.mark.parametrize("name", ["nowhere", "*", "x" * 300, "FAST"])
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_unknown_queue_is_404(api: Api, name: str, verb: str) -> None:
    answer = api("POST", f"/v1/queues/{name}/{verb}")

    assert (answer.status, answer.code) == (404, "no_such_queue")


def test_a_paused_task_and_a_pause_of_everything_hold_jobs_and_say_so(api: Api) -> None:
    job_id = submit(api, queue="fast")["job_id"]

    def waiting() -> Any:
        return api("GET", f"/v1/jobs/{job_id}").json["waiting"]

    assert api("POST", "/v1/tasks/embed/pause").json == {"name": "embed", "paused": True}
    by_task, task = waiting(), api("GET", "/v1/tasks/embed").json["paused"]
    assert api("POST", "/v1/pause").json == {"paused": True}
    by_all, stats = waiting(), api("GET", "/v1/stats").json
    assert api("POST", "/v1/resume").json == {"paused": False}
    assert api("POST", "/v1/tasks/embed/resume").json == {"name": "embed", "paused": False}

    assert (by_task["reason"], by_task["paused"], task) == ("paused", "task", True)
    assert (by_all["reason"], by_all["paused"]) == ("paused", "all")
    assert (stats["paused"], stats["paused_tasks"]) == (True, ["embed"])
    assert waiting()["reason"] == "in_line"


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_unknown_task_is_404(api: Api, verb: str) -> None:
    answer = api("POST", f"/v1/tasks/nowhere/{verb}")

    assert (answer.status, answer.code) == (404, "no_such_task")


def test_a_job_says_when_it_expires(api: Api) -> None:
    made = submit(api, queue="fast", expires_in_s=3600)

    read = api("GET", f"/v1/jobs/{made['job_id']}").json

    assert made["expires_ts"] == made["created_ts"] + 3_600_000 == read["expires_ts"]


def test_totals_are_the_sums_over_all_queues(api: Api, workers: DatabaseWorkers) -> None:
    submit(api)

    stats = api("GET", "/v1/stats").json

    assert stats["degraded"] is False
    assert 0 < stats["disk"]["free_bytes"] <= stats["disk"]["total_bytes"]
    assert stats["disk"]["min_free_bytes"] == 100 << 20, "the default of limits.min_free_mb"
    assert 0 < stats["memory"]["available_bytes"] <= stats["memory"]["total_bytes"]
    assert stats["totals"] == {name: sum(entry[name] for entry in stats["queues"]) for name in COUNTERS}
    assert workers.rows("SELECT count(*) FROM jobs WHERE status = 'queued'") == [(stats["totals"]["queued"],)]


def test_what_is_still_to_be_told_is_counted(api: Api) -> None:
    def nothing_left() -> bool:
        stats = api("GET", "/v1/stats").json
        return (stats["outbox_depth"], stats["outbox_age_s"]) == (0, None)

    submit(api)

    wait_until(nothing_left, lambda: api("GET", "/v1/stats").json, 10)


# A full queue


@pytest.fixture
def small(jobd: Callable[..., Jobd], folder: Path) -> Jobd:
    settings = {"JOBD_LIMITS_MAX_QUEUED": "3", "JOBD_QUEUES_DEFAULT_SLOTS": "0"}
    return jobd(folder / "data", **settings).start().until_ready()


def test_a_full_queue_says_when_to_come_again(small: Jobd) -> None:
    api = Api(small.address)
    with database_workers(small.addresses["DATABASE_URL"]) as workers:
        ids = [submit(api)["job_id"] for _ in range(3)]
        before = workers.traces()
        body, two = {"task": "embed", "payload": {}}, [{"task": "embed", "payload": {}}] * 2

        single = api("POST", "/v1/jobs", body, {"Idempotency-Key": "k"})
        batch = api("POST", "/v1/jobs/batch", two)

        assert [(answer.status, answer.code) for answer in (single, batch)] == [(429, "queue_full")] * 2
        assert 1 <= int(single.headers["retry-after"]) <= 300
        assert (batch.json["index"], workers.traces()) == (0, before)

        workers.finish(ids[0])
        whole = api("POST", "/v1/jobs/batch", two)
        after = api("POST", "/v1/jobs", body, {"Idempotency-Key": "k"})

        assert (whole.status, whole.json["index"]) == (429, 1)
        assert after.status == 202
        wait_until(lambda: api("GET", "/v1/queues").json["queues"][0]["drain_per_s"], "no rate was found", 10)
