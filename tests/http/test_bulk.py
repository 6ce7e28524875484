"""`/v1/jobs/count`, `/cancel`, `/retry`, `/delete`: all jobs that fit a filter, in batches, and each call on record."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api

ACTIONS = ("cancel", "retry", "delete")


@pytest.fixture(autouse=True)
def no_jobs(api: Api, workers: DatabaseWorkers) -> None:
    """Tests before this one have left jobs."""
    workers.finish_all()
    changed_all(api, "cancel", all=True)
    workers.prune()


def submit(api: Api, number: int = 1, **fields: Any) -> list[str]:
    return [api("POST", "/v1/jobs", {"task": "embed", "payload": {}, **fields}).json["job_id"] for _ in range(number)]


def bury(api: Api, workers: DatabaseWorkers, number: int = 1, **fields: Any) -> list[str]:
    made = submit(api, number, **fields)
    for job_id in made:
        workers.fail(job_id)
    return made


def change(api: Api, action: str, **body: Any) -> Any:
    answer = api("POST", f"/v1/jobs/{action}", body)
    assert answer.status == 200, answer
    return answer.json


def changed_all(api: Api, action: str, **body: Any) -> list[tuple[int, int]]:
    """What was changed and skipped by each call, until there are no more."""
    answers: list[tuple[int, int]] = []
    before: dict[str, str] = {}
    while True:
        answer = change(api, action, **body, **before)
        answers.append((answer["changed"], answer["skipped"]))
        if answer["next"] is None:
            return answers
        before = {"before": answer["next"]}


def total(answers: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(changed for changed, _ in answers), sum(skipped for _, skipped in answers)


def count(api: Api, **body: Any) -> int:
    answer = api("POST", "/v1/jobs/count", body)
    assert (answer.status, answer.json["exact"]) == (200, True), answer
    number: int = answer.json["count"]
    return number


def statuses(api: Api, job_ids: list[str]) -> list[str]:
    return [api("GET", f"/v1/jobs/{job_id}").json["status"] for job_id in job_ids]


# -- count -------------------------------------------------------------------------------------------------------------


def test_jobs_are_counted_by_every_kind_of_term(api: Api, workers: DatabaseWorkers) -> None:
    since_ts = int(time.time() * 1000) - 60_000
    submit(api, 2, task="plan", queue="fast")
    submit(api)
    bury(api, workers, 3)

    assert count(api) == count(api, since_ts=since_ts) == 6
    assert count(api, status="queued") == 3
    assert count(api, task="plan") == count(api, queue="fast") == count(api, task="plan", status="queued") == 2
    assert count(api, error="boom") == 3
    assert count(api, error="other") == count(api, text="other") == count(api, until_ts=since_ts) == 0


def test_a_count_for_an_action_leaves_out_what_it_cannot_change(api: Api, workers: DatabaseWorkers) -> None:
    submit(api, 2)
    bury(api, workers, 3)

    assert count(api, action="cancel") == count(api, action="cancel", task="embed") == 2
    assert count(api, action="retry") == count(api, action="retry", task="embed") == 3


# -- cancel ------------------------------------------------------------------------------------------------------------


def test_a_cancel_takes_what_fits_and_leaves_the_rest(api: Api, workers: DatabaseWorkers) -> None:
    fitting, others = submit(api, 5, queue="fast"), submit(api, 2)
    running, done = submit(api, 2, queue="fast")
    workers.start(running)
    workers.finish(done)

    answers = changed_all(api, "cancel", queue="fast", limit=2)

    assert total(answers) == (6, 0)
    assert all(changed <= 2 for changed, _ in answers)
    assert statuses(api, fitting) == ["canceled"] * 5
    assert statuses(api, others) == ["queued"] * 2
    assert statuses(api, [running, done]) == ["running", "done"]
    assert api("GET", f"/v1/jobs/{running}").json["cancel_requested"] is True


def test_a_cancel_by_label_leaves_other_jobs(api: Api) -> None:
    (fitting,) = submit(api, labels={"run": "7", "site": "a"})
    others = [*submit(api, labels={"run": "7"}), *submit(api, labels={"run": "8", "site": "a"}), *submit(api)]

    number, answers = count(api, labels={"site": "a"}), changed_all(api, "cancel", labels={"run": "7", "site": "a"})

    assert (number, total(answers)) == (2, (1, 0))
    assert statuses(api, [fitting, *others]) == ["canceled", "queued", "queued", "queued"]


def test_a_job_whose_cancel_was_asked_for_before_is_skipped(api: Api, workers: DatabaseWorkers) -> None:
    (job_id,) = submit(api)
    workers.start(job_id)

    first, second = (total(changed_all(api, "cancel", status="running")) for _ in range(2))

    assert (first, second) == ((1, 0), (0, 1))


def test_a_call_looks_at_as_many_jobs_as_its_limit(api: Api) -> None:
    made = submit(api, 4)

    answer = change(api, "cancel", status="queued", limit=3)

    assert answer == {"changed": 3, "skipped": 0, "next": made[1]}
    assert statuses(api, made) == ["queued", "canceled", "canceled", "canceled"]


# -- retry -------------------------------------------------------------------------------------------------------------


def test_a_retry_runs_each_fitting_dead_letter_once_more(api: Api, workers: DatabaseWorkers) -> None:
    dead, other = bury(api, workers, 5), bury(api, workers, task="plan")
    submit(api, 2)

    first = total(changed_all(api, "retry", error="boom", task="embed", limit=2))
    again = total(changed_all(api, "retry", error="boom", task="embed"))

    assert (first, again) == ((5, 0), (0, 5))
    assert statuses(api, dead + other) == ["error"] * 6
    letters = {letter["job_id"]: letter["redriven_to"] for letter in api("GET", "/v1/dlq").json["letters"]}
    assert letters[other[0]] is None
    for job_id in dead:
        assert api("GET", f"/v1/jobs/{letters[job_id]}").json["redriven_from"] == job_id


# -- delete ------------------------------------------------------------------------------------------------------------


def test_a_delete_takes_finished_jobs_that_fit_and_leaves_the_rest(api: Api, workers: DatabaseWorkers) -> None:
    dead, (done, running, canceled), (other,) = bury(api, workers, 3), submit(api, 3), submit(api, task="plan")
    workers.finish(done)
    workers.finish(other)
    workers.start(running)
    api("POST", f"/v1/jobs/{canceled}/cancel")
    assert count(api, action="delete", task="embed") == 5

    answers = changed_all(api, "delete", task="embed", limit=2)

    assert total(answers) == (5, 0)
    assert all(changed <= 2 for changed, _ in answers)
    assert statuses(api, [running, other]) == ["running", "done"]
    assert {api("GET", f"/v1/jobs/{job_id}").code for job_id in (*dead, done, canceled)} == {"gone_job"}
    assert not {letter["job_id"] for letter in api("GET", "/v1/dlq").json["letters"]} & {*dead}


@pytest.mark.parametrize("term", [{"status": "error"}, {"error": "boom"}, {"labels": {"run": "7"}}])
def test_a_delete_finds_jobs_by_every_kind_of_term(api: Api, workers: DatabaseWorkers, term: Any) -> None:
    (dead,) = bury(api, workers, labels={"run": "7"})
    (other,) = submit(api)
    workers.finish(other)

    assert total(changed_all(api, "delete", **term)) == (1, 0)
    assert api("GET", f"/v1/jobs/{dead}").code == "gone_job"
    assert statuses(api, [other]) == ["done"]


def test_a_deleted_job_leaves_redis(daemon: Jobd, api: Api, workers: DatabaseWorkers) -> None:
    client: Any = redis.Redis.from_url(daemon.addresses["REDIS_URL"], decode_responses=True)
    (job_id,) = submit(api)
    workers.finish(job_id)
    wait_until(lambda: client.hget(f"job:{job_id}", "status") == "done", lambda: str(client.hgetall(f"job:{job_id}")))

    change(api, "delete", status="done")

    wait_until(lambda: not client.keys(f"job:{job_id}*"), lambda: str(client.keys(f"job:{job_id}*")))


# -- all of them -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
def test_every_call_is_recorded_with_actor_filter_and_number(api: Api, workers: DatabaseWorkers, action: str) -> None:
    submit(api, 2) if action == "cancel" else bury(api, workers, 2)

    change(api, action, task="embed", since_ts=7)
    change(api, action, task="plan")

    rows = workers.rows("SELECT actor, action, subject FROM audit ORDER BY id DESC LIMIT 2")
    assert rows == [
        ("anonymous", f"jobs.{action}", '0 jobs that fit {"task":"plan"}'),
        ("anonymous", f"jobs.{action}", '2 jobs that fit {"task":"embed","since_ts":7}'),
    ]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_filter_without_terms_is_taken_only_if_all_is_said(api: Api, action: str) -> None:
    refused = api("POST", f"/v1/jobs/{action}", {})

    assert (refused.status, refused.code) == (422, "invalid")
    assert '"all": true' in refused.json["detail"]
    assert change(api, action, all=True)["changed"] == 0


BAD_FILTERS: list[tuple[Any, int, str, str]] = [
    ({"status": "finished"}, 422, "invalid", "status"),
    ({"status": None}, 422, "invalid", "status"),
    ({"status": ["queued"]}, 422, "invalid", "status"),
    ({"task": "*"}, 422, "invalid", "task"),
    ({"task": ""}, 422, "invalid", "task"),
    ({"queue": "x" * 65}, 422, "invalid", "queue"),
    ({"error": ""}, 422, "invalid", "error"),
    ({"error": "x" * 129}, 422, "invalid", "error"),
    ({"text": "x" * 201}, 422, "invalid", "text"),
    ({"text": "\0"}, 422, "nul", ""),
    ({"since_ts": -1}, 422, "invalid", "since_ts"),
    ({"since_ts": 1.5}, 422, "invalid", "since_ts"),
    ({"since_ts": "1"}, 422, "invalid", "since_ts"),
    ({"until_ts": 10**15}, 422, "invalid", "until_ts"),
    ({"until_ts": True}, 422, "invalid", "until_ts"),
    ({"labels": {"a b": "c"}}, 422, "invalid", "labels"),
    ({"labels": {"a": 1}}, 422, "invalid", "labels"),
    ({"labels": ["a:b"]}, 422, "invalid", "labels"),
    ({"owner": ""}, 422, "invalid", "owner"),
    ({"statuss": "queued"}, 422, "invalid", "statuss"),
    ([], 422, "not_object", ""),
    (b"", 400, "not_json", ""),
    (b'{"task":"a","task":"b"}', 400, "duplicate_key", ""),
    (b"x" * 70_000, 413, "body_too_large", ""),
]
BAD_BATCHES: list[tuple[Any, int, str, str]] = [
    ({"all": False}, 422, "invalid", "all"),
    ({"labels": {}}, 422, "invalid", "all"),
    ({"all": 1}, 422, "invalid", "all"),
    ({"limit": 5}, 422, "invalid", "all"),
    ({"all": True, "limit": 0}, 422, "invalid", "limit"),
    ({"all": True, "limit": 1001}, 422, "invalid", "limit"),
    ({"all": True, "limit": None}, 422, "invalid", "limit"),
    ({"all": True, "before": "x"}, 422, "invalid", "before"),
    ({"all": True, "before": None}, 422, "invalid", "before"),
    ({"all": True, "before": 7}, 422, "invalid", "before"),
    ({"all": True, "action": "cancel"}, 422, "invalid", "action"),
    ({"ids": [str(uuid.uuid4())]}, 422, "invalid", "ids"),
]
BAD_MEANINGS: list[tuple[str, Any, str]] = [
    ("cancel", {"status": "done"}, "queued or running"),
    ("cancel", {"status": "error"}, "queued or running"),
    ("cancel", {"error": "timeout"}, "error and text"),
    ("cancel", {"text": "memory", "task": "embed"}, "error and text"),
    ("retry", {"status": "queued"}, "may be error"),
    ("retry", {"status": "done"}, "may be error"),
    ("delete", {"status": "queued"}, "done or error or canceled"),
    ("delete", {"status": "running"}, "done or error or canceled"),
    ("count", {"action": "delete", "status": "running"}, "done or error or canceled"),
    ("count", {"action": "cancel", "status": "done"}, "queued or running"),
    ("count", {"action": "retry", "status": "queued"}, "may be error"),
    ("count", {"action": "cancel", "error": "timeout"}, "error and text"),
    ("count", {"action": "pause"}, "action"),
    ("count", {"action": None}, "action"),
    ("count", {"all": True}, "all"),
    ("count", {"limit": 5}, "limit"),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "named"),
    [
        *[(path, *row) for path in ("count", *ACTIONS) for row in BAD_FILTERS],
        *[(path, *row) for path in ACTIONS for row in BAD_BATCHES],
        *[(path, body, 422, "invalid", named) for path, body, named in BAD_MEANINGS],
    ],
)
def test_a_bad_body_is_refused_by_name_and_without_a_trace(
    api: Api, workers: DatabaseWorkers, path: str, body: Any, status: int, code: str, named: str
) -> None:
    submit(api)
    traces = "SELECT count(*), max(id) FROM audit"
    before = workers.traces(), workers.rows(traces)

    answer = api("POST", f"/v1/jobs/{path}", body)

    assert (answer.status, answer.code) == (status, code)
    assert named in answer.json["detail"]
    assert (workers.traces(), workers.rows(traces)) == before


@pytest.mark.parametrize("path", ["count", *ACTIONS])
def test_a_path_of_a_bulk_call_is_no_job_to_be_read(api: Api, path: str) -> None:
    assert api("GET", f"/v1/jobs/{path}").code == "unknown_job"
