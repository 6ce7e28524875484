"""Labels, owner and trace of a job over HTTP."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from jobd.auth.token import new_token
from tests.support.http import Api

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

LABELS = {"team": "vision", "Run_1.a-b": "é \U0001f600", "none": ""}
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def submit(api: Api, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    answer = api("POST", "/v1/jobs", {"task": "embed", "payload": {}, **fields}, headers)
    assert answer.status == 202, answer
    return answer.json


def read(api: Api, job_id: str) -> Any:
    return api("GET", f"/v1/jobs/{job_id}").json


def test_labels_come_back_with_the_job_and_in_pages(api: Api) -> None:
    made = submit(api, labels=LABELS)

    found = read(api, made["job_id"])
    (first, *_) = api("GET", "/v1/jobs?limit=1").json["jobs"]

    assert (made["labels"], found["labels"], first["labels"]) == (LABELS, LABELS, LABELS)
    assert (made["owner"], found["owner"], first["owner"]) == (None, None, None)


def test_a_job_without_labels_has_none(api: Api) -> None:
    assert submit(api)["labels"] == submit(api, labels={})["labels"] == {}


def test_each_job_of_a_batch_has_its_labels_and_all_have_the_trace(api: Api) -> None:
    jobs = [{"task": "embed", "payload": {}, "labels": {"n": str(n)}} for n in range(3)]

    answer = api("POST", "/v1/jobs/batch", jobs, {"traceparent": TRACEPARENT})

    found = [read(api, job["job_id"]) for job in answer.json["jobs"]]
    assert [job["labels"] for job in found] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]
    assert {job["traceparent"] for job in found} == {TRACEPARENT}


def test_a_job_belongs_to_the_trace_of_its_submit(api: Api) -> None:
    made = submit(api, {"traceparent": TRACEPARENT, "tracestate": "a=1"})

    assert (made["traceparent"], read(api, made["job_id"])["traceparent"]) == (TRACEPARENT, TRACEPARENT)


def test_a_malformed_trace_is_ignored(api: Api) -> None:
    assert submit(api, {"traceparent": "00-xyz", "tracestate": "a=1"})["traceparent"] is None


def test_the_same_key_and_labels_lead_to_the_same_job_whatever_the_trace(api: Api) -> None:
    key = {"Idempotency-Key": str(uuid4())}
    made = submit(api, key, labels=LABELS)

    again = submit(api, {**key, "traceparent": TRACEPARENT}, labels=LABELS)

    assert (again["job_id"], again["existing"], again["labels"]) == (made["job_id"], True, LABELS)


def test_the_same_key_with_other_labels_is_refused(api: Api) -> None:
    key = {"Idempotency-Key": str(uuid4())}
    submit(api, key, labels=LABELS)

    answer = api("POST", "/v1/jobs", {"task": "embed", "payload": {}, "labels": {}}, key)

    assert (answer.status, answer.code) == (422, "idempotency_mismatch")


def test_a_dead_letter_keeps_its_labels_when_it_runs_again(api: Api, workers: DatabaseWorkers) -> None:
    made = submit(api, labels=LABELS)
    workers.fail(made["job_id"], retryable=False)

    answer = api("POST", f"/v1/jobs/{made['job_id']}/retry")

    assert (answer.status, answer.json["labels"]) == (202, LABELS)


BAD: dict[str, Any] = {
    "null": None,
    "a list": [],
    "a number as value": {"a": 1},
    "null as value": {"a": None},
    "an object as value": {"a": {}},
    "an empty name": {"": "x"},
    "a name of 65 characters": {"n" * 65: "x"},
    "a space in a name": {"a b": "x"},
    "a colon in a name": {"a:b": "x"},
    "a letter outside ASCII in a name": {"é": "x"},
    "a line end behind a name": {"a\n": "x"},
    "a value of 513 characters": {"a": "x" * 513},
    "17 labels": {str(n): "x" for n in range(17)},
}


@pytest.mark.parametrize("labels", BAD.values(), ids=BAD)
def test_bad_labels_are_refused(api: Api, labels: Any) -> None:
    answer = api("POST", "/v1/jobs", {"task": "embed", "payload": {}, "labels": labels})

    assert (answer.status, answer.code) == (422, "invalid")
    assert "labels" in answer.json["detail"]


def test_the_largest_labels_are_taken(api: Api) -> None:
    labels = {f"{n:064}": "\U0001f600" * 512 for n in range(16)}

    assert read(api, submit(api, labels=labels)["job_id"])["labels"] == labels


def listed(api: Api, *terms: str) -> list[str]:
    query = urlencode([("label", term) for term in terms])
    return [job["job_id"] for job in api("GET", f"/v1/jobs?{query}").json["jobs"]]


def test_a_list_has_only_jobs_with_all_the_labels(api: Api) -> None:
    run = str(uuid4())
    first, second = submit(api, labels={"run": run, "n": "a:b"}), submit(api, labels={"run": run})

    assert listed(api, f"run:{run}") == [second["job_id"], first["job_id"]]
    assert listed(api, f"run:{run}", "n:a:b") == [first["job_id"]]
    assert listed(api, f"run:{run}", "n:a") == listed(api, f"run:{run}x") == []


@pytest.mark.parametrize(
    "query",
    [
        *("label=", "label=a", "label=:a", "label=a%20b:c", "label=a:%00", "label=a:" + "x" * 513),
        *("label=a:b&label=c", "&".join(["label=a:b"] * 17), "owner=", "owner=%00", "owner=a&owner=b"),
    ],
)
def test_a_bad_filter_is_refused(api: Api, query: str) -> None:
    answer = api("GET", f"/v1/jobs?{query}")

    assert (answer.status, answer.code) == (422, "invalid")


def test_the_owner_is_the_token_that_sent_the_job(jobd: Callable[..., Jobd]) -> None:
    token = new_token()
    tokens = [{"name": "ci", "sha256": token.sha256.hex(), "scopes": ["client"]}]
    daemon = jobd(JOBD_AUTH_TOKENS=json.dumps(tokens)).start().until_ready()
    api = Api(daemon.address, {"Authorization": f"Bearer {token.text}"})

    made = submit(api)

    assert (made["owner"], read(api, made["job_id"])["owner"]) == ("ci", "ci")
    assert [job["job_id"] for job in api("GET", "/v1/jobs?owner=ci").json["jobs"]] == [made["job_id"]]
    assert api("GET", "/v1/jobs?owner=other").json["jobs"] == []


def test_a_command_is_told_the_trace_of_its_job(jobd: Callable[..., Jobd], folder: Path) -> None:
    program = "import json, os; print(json.dumps([os.environ.get('TRACEPARENT'), os.environ.get('TRACESTATE')]))"
    config = folder / "trace.toml"
    config.write_text(f"[tasks.trace]\nrun = 'command'\nargv = {json.dumps([sys.executable, '-c', program])}\n")
    api = Api(jobd(None, "--config", str(config)).start().until_ready().address)

    results = [
        api("POST", "/v1/jobs?wait_s=30", {"task": "trace", "payload": {}}, headers).json["result"]
        for headers in ({"traceparent": TRACEPARENT, "tracestate": "a=1"}, {})
    ]

    assert results == [[TRACEPARENT, "a=1"], [None, None]]
