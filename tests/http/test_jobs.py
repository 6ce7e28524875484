"""`/v1/jobs`, one job at a time: what was sent comes back, and what became of it."""

from __future__ import annotations

import json
import time
import uuid
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from jobd.wire.canonical import spec_hash
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api

CONTRACT = ["job_id", "task", "payload", "status", "created_ts", "updated_ts", "ttl_s", "result", "error"]


def submit(api: Api, **fields: Any) -> Any:
    answer = api("POST", "/v1/jobs", {"task": "embed", "payload": {"n": 1}, **fields})
    assert answer.status == 202, answer
    return answer.json


def read(api: Api, job_id: str) -> Any:
    answer = api("GET", f"/v1/jobs/{job_id}")
    assert answer.status == 200, answer
    return answer.json


# Submit


def test_a_submit_is_answered_with_the_job_and_its_place(api: Api) -> None:
    before = time.time() * 1000

    answer = api("POST", "/v1/jobs", {"task": "chat", "payload": {"prompt": "hé"}})

    job = answer.json
    assert (answer.status, answer.headers["location"]) == (202, f"/v1/jobs/{job['job_id']}")
    assert list(job)[:9] == CONTRACT
    assert uuid.UUID(job["job_id"]).version == 7
    assert (job["task"], job["payload"], job["status"]) == ("chat", {"prompt": "hé"}, "queued")
    assert (job["ttl_s"], job["result"], job["error"]) == (86400, None, None)
    assert before - 1 <= job["created_ts"] == job["updated_ts"] <= time.time() * 1000 + 1
    assert (job["queue"], job["priority"], job["max_attempts"], job["timeout_s"]) == ("default", 0, 3, 3600.0)
    assert "existing" not in job


def test_what_the_submit_answered_is_what_a_read_answers(api: Api) -> None:
    sent = {"task": "embed", "payload": {"a": [1, 2.5, None, {"b": "c"}]}, "ttl_s": 60, "queue": "fast", "priority": -5}
    made = submit(api, **sent, delay_s=100, max_attempts=7, timeout_s=1.5)

    found = read(api, made["job_id"])

    del found["waiting"], found["attempts"]
    assert found == made
    assert {name: found[name] for name in sent} == sent
    assert (found["max_attempts"], found["timeout_s"]) == (7, 1.5)
    assert found["run_after_ts"] == found["created_ts"] + 100_000


def test_the_spec_hash_is_of_what_the_job_is_to_do(api: Api) -> None:
    job = submit(api, payload={"b": 1.0, "a": "x"})

    assert job["spec_hash"] == spec_hash("embed", "default", {"a": "x", "b": 1}).hex()


def test_a_payload_without_canonical_form_has_no_hash(api: Api) -> None:
    job = submit(api, payload={"n": 2**60 + 1})

    assert job["spec_hash"] is None
    assert read(api, job["job_id"])["payload"] == {"n": 2**60 + 1}


@pytest.mark.parametrize("zone_h", [0, 2, -11])
def test_a_time_to_run_is_kept_whatever_its_zone(api: Api, zone_h: int) -> None:
    at = datetime.now(timezone(timedelta(hours=zone_h))).replace(microsecond=0) + timedelta(days=2)

    job = submit(api, run_after=at.isoformat())

    assert job["run_after_ts"] == read(api, job["job_id"])["run_after_ts"] == at.timestamp() * 1000


def test_a_time_to_run_in_the_past_is_now(api: Api) -> None:
    job = submit(api, run_after="2020-01-01T00:00:00Z")

    assert job["run_after_ts"] == job["created_ts"] == read(api, job["job_id"])["run_after_ts"]


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"__proto__": {"constructor": 1}, "$ref": "#/a", "": 0},
        {"html": "<script>alert(1)</script>", "ansi": "\x1b[2J", "rtl": "\u202etxt.exe", "emoji": "\U0001f600"},
        {"sql": "'; DROP TABLE jobs; --", "percent": "%s %n {0}", "backslash": "\\", "quote": '"', "u": "\\u0000"},
    ],
)
def test_odd_payloads_are_plain_data(api: Api, payload: dict[str, Any]) -> None:
    job = submit(api, payload=payload)

    assert job["payload"] == read(api, job["job_id"])["payload"] == payload


def test_the_limit_of_a_payload_counts_its_bytes(api: Api) -> None:
    text = '{"a":"%s"}' % ("é" * ((204_800 - 8) // 2))
    body = b'{"task":"embed","payload":%s}' % text.encode()
    assert len(text.encode()) == 204_800

    fits = api("POST", "/v1/jobs", body)
    too_long = api("POST", "/v1/jobs", body.replace(b"}}", b" }}"))

    assert fits.status == 202
    assert (too_long.status, too_long.code) == (413, "too_large")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/JSON"])
def test_other_spellings_of_json_are_json(api: Api, content_type: str) -> None:
    answer = api("POST", "/v1/jobs", {"task": "embed", "payload": {}}, {"Content-Type": content_type})

    assert answer.status == 202


# Dedupe


def test_a_queued_twin_answers_instead_when_asked_to(api: Api, workers: DatabaseWorkers) -> None:
    payload = {"twin": str(uuid.uuid4())}
    first = submit(api, payload=payload)

    other = submit(api, payload=payload)
    twin = submit(api, payload=payload, dedupe="active")
    workers.finish(first["job_id"])
    workers.finish(other["job_id"])
    finished = submit(api, payload=payload, dedupe="result")
    fresh = submit(api, payload=payload, dedupe="active")

    assert other["job_id"] != first["job_id"]
    assert (twin["job_id"], twin["existing"]) == (other["job_id"], True)
    assert (finished["job_id"], finished["status"], finished["result"]) == (other["job_id"], "done", {"ok": True})
    assert fresh["job_id"] not in (first["job_id"], other["job_id"])


# Read


#: An id that no job has.
NOBODY = "01a1e32b-6742-7000-927b-55333af42aa0"


@pytest.mark.parametrize("job_id", ["x", "0", NOBODY, f"{{{NOBODY}}}", NOBODY.replace("-", ""), "a" * 4000])
@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("POST", "/cancel"), ("POST", "/retry")])
def test_an_unknown_id_is_404_for_every_call(api: Api, job_id: str, method: str, rest: str) -> None:
    answer = api(method, f"/v1/jobs/{job_id}{rest}")

    assert (answer.status, answer.code) == (404, "unknown_job")


def test_an_id_in_capitals_is_the_same_id(api: Api) -> None:
    job = submit(api)

    assert read(api, job["job_id"].upper())["job_id"] == job["job_id"]


@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("POST", "/cancel"), ("POST", "/retry")])
def test_a_job_that_retention_deleted_is_gone(api: Api, workers: DatabaseWorkers, method: str, rest: str) -> None:
    job = submit(api)
    workers.finish(job["job_id"])
    workers.prune()

    answer = api(method, f"/v1/jobs/{job['job_id']}{rest}")

    assert (answer.status, answer.code) == (410, "gone_job")


def test_a_finished_job_tells_its_result_and_attempts(api: Api, workers: DatabaseWorkers) -> None:
    job = submit(api, max_attempts=2)
    workers.fail(job["job_id"], retryable=True, delay_s=0.0)
    failed = read(api, job["job_id"])

    workers.finish(job["job_id"], '{"answer": 42}')

    found = read(api, job["job_id"])
    assert (failed["status"], failed["error"], failed["attempt_count"]) == ("queued", None, 1)
    assert (found["status"], found["result"], found["error"]) == ("done", {"answer": 42}, None)
    assert [one["outcome"] for one in found["attempts"]] == ["failed", "done"]
    assert found["attempts"][0]["error"] == {"code": "boom"}
    assert found["created_ts"] <= found["started_ts"] <= found["finished_ts"] == found["updated_ts"]
    assert "waiting" not in found


def test_a_running_job_has_an_open_attempt(api: Api, workers: DatabaseWorkers) -> None:
    job = submit(api)
    workers.start(job["job_id"])

    found = read(api, job["job_id"])

    (attempt,) = found["attempts"]
    assert (found["status"], attempt["outcome"], attempt["ended_ts"]) == ("running", None, None)
    assert "lease_token" not in json.dumps(found)


# Why it waits


def test_a_job_in_line_knows_its_place(api: Api, workers: DatabaseWorkers) -> None:
    first, second = submit(api, queue="fast"), submit(api, queue="fast")
    urgent = submit(api, queue="fast", priority=1)

    waits = [read(api, job["job_id"])["waiting"] for job in (urgent, first, second)]

    assert [wait["reason"] for wait in waits] == ["in_line"] * 3
    assert waits[0]["position"] <= waits[1]["position"] - 1 == waits[2]["position"] - 2


def test_a_job_whose_time_has_not_come_is_delayed(api: Api) -> None:
    job = submit(api, delay_s=1000)

    waiting = read(api, job["job_id"])["waiting"]
    assert (waiting["reason"], waiting["position"]) == ("delayed", None)
    assert waiting["eta_s"] > 900


def test_a_job_that_failed_waits_out_its_backoff(api: Api, workers: DatabaseWorkers) -> None:
    job = submit(api)
    workers.fail(job["job_id"], retryable=True)

    waiting = read(api, job["job_id"])["waiting"]
    assert (waiting["reason"], waiting["position"]) == ("retry_backoff", None)
    assert waiting["eta_s"] > 0


def test_a_job_in_line_knows_when_it_starts_once_run_times_are_known(api: Api, workers: DatabaseWorkers) -> None:
    running, job = submit(api, queue="fast"), submit(api, queue="fast")
    workers.start(running["job_id"])

    workers.rows(
        """
        INSERT INTO rollups VALUES (
            date_trunc('minute', now()), 'fast', 'slow', 1, 0, 0, 0, 0, 0, 3600, array_fill(0, '{14}'),
            array_fill(0, '{13}') || 1
        )
        """
    )

    def in_the_list() -> float | None:
        (listed,) = (
            one
            for one in api("GET", "/v1/jobs?queue=fast&status=queued").json["jobs"]
            if one["job_id"] == job["job_id"]
        )
        eta_s: float | None = listed["waiting"]["eta_s"]
        return eta_s

    try:
        # Run times of jobs of other tests may be known, and are used for some seconds.
        wait_until(lambda: (in_the_list() or 0.0) >= 4, lambda: f"it is said to start in {in_the_list()} s")
        found = read(api, job["job_id"])["waiting"]
        assert found["reason"] == "in_line"
        assert found["eta_s"] >= found["position"] + 1
    finally:
        workers.rows("DELETE FROM rollups WHERE task = 'slow'")
        workers.finish_all()
        api("POST", f"/v1/jobs/{job['job_id']}/cancel")


def test_only_queued_jobs_of_a_page_wait(api: Api, workers: DatabaseWorkers) -> None:
    done, queued = submit(api)["job_id"], submit(api)["job_id"]
    workers.finish(done)

    page = {job["job_id"]: job for job in api("GET", "/v1/jobs").json["jobs"]}

    assert "waiting" not in page[done]
    assert page[queued]["waiting"]["reason"] == "in_line"


# Cancel and retry


def test_a_queued_job_is_canceled_at_once(api: Api) -> None:
    job_id = submit(api)["job_id"]

    answer = api("POST", f"/v1/jobs/{job_id}/cancel")
    again = api("POST", f"/v1/jobs/{job_id}/cancel")

    assert (answer.status, answer.json) == (200, {"job_id": job_id, "status": "canceled", "cancel_requested": True})
    assert read(api, job_id)["status"] == "canceled"
    assert (again.status, again.code) == (409, "already_final")
    assert "canceled" in again.json["detail"]


def test_a_running_job_is_asked_to_stop_as_often_as_one_likes(api: Api, workers: DatabaseWorkers) -> None:
    job_id = submit(api)["job_id"]
    workers.start(job_id)

    answers = [api("POST", f"/v1/jobs/{job_id}/cancel") for _ in range(2)]

    expected = {"job_id": job_id, "status": "running", "cancel_requested": True}
    assert [(answer.status, answer.json) for answer in answers] == [(200, expected)] * 2
    assert read(api, job_id)["cancel_requested"] is True


def test_a_finished_job_stays_as_it_is(api: Api, workers: DatabaseWorkers) -> None:
    job_id = submit(api)["job_id"]
    workers.finish(job_id)
    before = read(api, job_id)

    cancel, retry = api("POST", f"/v1/jobs/{job_id}/cancel"), api("POST", f"/v1/jobs/{job_id}/retry")

    assert [(cancel.status, cancel.code), (retry.status, retry.code)] == [(409, "already_final"), (409, "not_dead")]
    assert "done" in cancel.json["detail"] and "done" in retry.json["detail"]
    assert read(api, job_id) == before


def test_a_dead_letter_runs_again_as_a_new_job(api: Api, workers: DatabaseWorkers) -> None:
    old = submit(api, payload={"again": 1}, priority=3, max_attempts=1)
    workers.fail(old["job_id"])
    dead = read(api, old["job_id"])

    answer = api("POST", f"/v1/jobs/{old['job_id']}/retry")

    new = answer.json
    assert (answer.status, answer.headers["location"]) == (202, f"/v1/jobs/{new['job_id']}")
    assert (new["status"], new["redriven_from"], new["attempt_count"]) == ("queued", old["job_id"], 0)
    assert (new["payload"], new["priority"], new["max_attempts"]) == ({"again": 1}, 3, 1)
    assert (dead["status"], dead["error"]) == ("error", {"code": "boom"})
    assert read(api, old["job_id"]) == dead
