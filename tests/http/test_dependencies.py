"""`depends_on` over HTTP: single submits and batches, what a job waits for, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Answer, Api

NOBODY = "00000000-0000-7000-8000-000000000000"


def item(**fields: Any) -> dict[str, Any]:
    return {"task": "embed", "payload": {}, "queue": "fast", **fields}


def submit(api: Api, **fields: Any) -> Any:
    answer = api("POST", "/v1/jobs", item(**fields))
    assert answer.status == 202, answer
    return answer.json


def batch(api: Api, *items: dict[str, Any]) -> Answer:
    return api("POST", "/v1/jobs/batch", list(items))


def read(api: Api, job_id: str) -> Any:
    return api("GET", f"/v1/jobs/{job_id}").json


def until(api: Api, job_id: str, status: str, reason: str | None = None) -> None:
    def is_so() -> bool:
        job = read(api, job_id)
        return job["status"] == status and (reason is None or job["waiting"]["reason"] == reason)

    wait_until(is_so, lambda: str(read(api, job_id)))


def test_a_job_waits_for_another_and_says_so(api: Api, workers: DatabaseWorkers) -> None:
    first = submit(api)["job_id"]
    made = submit(api, depends_on=[first])

    assert made["waiting"] == {"reason": "depends", "position": None, "eta_s": None, "depends_on": [first]}
    assert made["depends_on"] == [{"id": first, "kind": "job", "on": "success", "ref": None, "status": "queued"}]
    workers.finish(first)
    until(api, made["job_id"], "queued", "in_line")
    assert read(api, made["job_id"])["depends_on"][0]["status"] == "done"


def test_a_job_whose_predecessor_failed_is_canceled_and_says_why(api: Api, workers: DatabaseWorkers) -> None:
    first = submit(api)["job_id"]
    job_id = submit(api, depends_on=[{"job": first, "ref": "a"}])["job_id"]
    rescue = submit(api, depends_on=[{"job": first, "on": "any"}])["job_id"]
    workers.fail(first)

    until(api, job_id, "canceled")
    until(api, rescue, "queued", "in_line")

    assert read(api, job_id)["error"]["code"] == "dependency_failed"
    events = api("GET", f"/v1/jobs/{job_id}/events").body.decode()
    assert "dependency_failed" in events


def test_a_predecessor_that_has_ended_counts_at_once(api: Api, workers: DatabaseWorkers) -> None:
    first = submit(api)["job_id"]
    workers.finish(first)

    job_id = submit(api, depends_on=[first])["job_id"]

    until(api, job_id, "queued", "in_line")


def test_items_of_a_batch_wait_for_each_other_by_ref(api: Api, workers: DatabaseWorkers) -> None:
    answer = batch(
        api,
        item(depends_on=[{"ref": "left"}, {"ref": "right"}], payload={"x": "{{inputs.left.n}} {{inputs.right.n}}"}),
        item(ref="left", depends_on=[{"ref": "top"}]),
        item(ref="right", depends_on=[{"ref": "top"}]),
        item(ref="top"),
    )
    assert answer.status == 202, answer
    bottom, left, right, top = [entry["job_id"] for entry in answer.json["jobs"]]

    workers.finish(top)
    for n, job_id in enumerate((left, right)):
        until(api, job_id, "queued", "in_line")
        workers.finish(job_id, f'{{"n": {n}}}')
    until(api, bottom, "queued", "in_line")

    assert read(api, bottom)["payload"] == {"x": "0 1"}


def test_a_batch_sent_again_with_its_key_is_the_same_jobs(api: Api) -> None:
    key = {"Idempotency-Key": str(uuid4())}
    items = [item(ref="a"), item(depends_on=[{"ref": "a"}])]

    first = api("POST", "/v1/jobs/batch", items, key)
    again = api("POST", "/v1/jobs/batch", items, key)

    ids = [[entry["job_id"] for entry in answer.json["jobs"]] for answer in (first, again)]
    assert ids[0] == ids[1]
    assert [entry["existing"] for entry in again.json["jobs"]] == [True, True]


BAD_SUBMITS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no list": ({"depends_on": NOBODY}, "invalid", "depends_on"),
    "no id": ({"depends_on": ["x"]}, "invalid", "depends_on"),
    "null": ({"depends_on": None}, "invalid", "depends_on"),
    "an empty object": ({"depends_on": [{}]}, "invalid", "needs job, ref or group"),
    "another field": ({"depends_on": [{"id": NOBODY}]}, "invalid", "id"),
    "another word for on": ({"depends_on": [{"job": NOBODY, "on": "done"}]}, "invalid", "on"),
    "job and group": ({"depends_on": [{"job": NOBODY, "group": NOBODY}]}, "invalid", "not both"),
    "a ref without a batch": ({"depends_on": [{"ref": "a"}]}, "invalid", "same batch"),
    "a name without a batch": ({"ref": "a"}, "invalid", "item of a batch"),
    "a bad name": ({"ref": "a b"}, "invalid", "ref"),
    "a name of two lines": ({"ref": "a\n"}, "invalid", "ref"),
    "the same twice": ({"depends_on": [NOBODY, {"job": NOBODY}]}, "invalid", "twice"),
    "two of one name": (
        {"depends_on": [{"job": NOBODY, "ref": "a"}, {"job": str(uuid4()), "ref": "a"}]},
        *("invalid", "names a twice"),
    ),
    "too many": ({"depends_on": [str(uuid4()) for _ in range(1001)]}, "invalid", "1000"),
    "an unknown job": ({"depends_on": [NOBODY]}, "unknown_dependency", NOBODY),
    "an unknown group": ({"group": NOBODY}, "unknown_group", NOBODY),
    "to wait for an unknown group": ({"depends_on": [{"group": NOBODY}]}, "unknown_group", NOBODY),
    "its own group": ({"group": NOBODY, "depends_on": [{"group": NOBODY}]}, "dependency_cycle", NOBODY),
    "a group that is none": ({"group": "x"}, "invalid", "group"),
}


@pytest.mark.parametrize("name", BAD_SUBMITS)
def test_a_bad_dependency_is_refused_and_changes_nothing(api: Api, workers: DatabaseWorkers, name: str) -> None:
    fields, code, said = BAD_SUBMITS[name]
    before = workers.traces()

    answer = api("POST", "/v1/jobs", item(**fields), {"Idempotency-Key": str(uuid4())})

    assert (answer.code, said in answer.json["detail"]) == (code, True), answer.json
    assert workers.traces() == before


BAD_BATCHES: dict[str, tuple[list[dict[str, Any]], str, str, int | None]] = {
    "itself": ([item(ref="a", depends_on=[{"ref": "a"}])], "dependency_cycle", "a -> a", None),
    "a ring": (
        [
            item(ref="a", depends_on=[{"ref": "b"}]),
            item(ref="b", depends_on=[{"ref": "c"}]),
            item(ref="c", depends_on=[{"ref": "a"}]),
            item(depends_on=[{"ref": "a"}]),
        ],
        *("dependency_cycle", "->", None),
    ),
    "no such item": ([item(), item(depends_on=[{"ref": "b"}])], "unknown_dependency", "no item of the batch", 1),
    "a name twice": ([item(ref="a"), item(ref="a")], "invalid", "two items have the ref a", 1),
    "an unknown job": ([item(), item(depends_on=[NOBODY])], "unknown_dependency", "item 1", 1),
    "an unknown group": ([item(group=NOBODY)], "unknown_group", "item 0", 0),
    "too many in all": (
        [item(depends_on=[str(uuid4()) for _ in range(1000)]) for _ in range(51)],
        *("too_many_dependencies", "50000", 50),
    ),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused_whole(api: Api, workers: DatabaseWorkers, name: str) -> None:
    items, code, said, index = BAD_BATCHES[name]
    before = workers.traces()

    answer = batch(api, *items)

    assert (answer.code, said in answer.json["detail"]) == (code, True), answer.json
    assert answer.json.get("index") == index
    assert workers.traces() == before


def test_a_dependency_that_retention_has_deleted_is_refused(api: Api, workers: DatabaseWorkers) -> None:
    first = submit(api)["job_id"]
    workers.finish(first)
    workers.prune()

    answer = api("POST", "/v1/jobs", item(depends_on=[first]))

    assert (answer.status, answer.code) == (422, "gone_dependency")
