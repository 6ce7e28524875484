"""`/v1/groups`: make, fill, seal, wait, follow, cancel, run again, and the graph of a job; and what is refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from tests.http.test_dependencies import NOBODY, batch, item, read, submit, until
from tests.support.sse import Stream
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api


def make(api: Api, **fields: Any) -> Any:
    answer = api("POST", "/v1/groups", fields)
    assert answer.status == 201, answer
    assert answer.headers["location"] == f"/v1/groups/{answer.json['group_id']}"
    return answer.json


def group(api: Api, group_id: str, wait_s: float = 0) -> Any:
    return api("GET", f"/v1/groups/{group_id}?wait_s={wait_s}").json


def members(api: Api, group_id: str, number: int) -> list[str]:
    answer = batch(api, *(item(group=group_id) for _ in range(number)))
    assert answer.status == 202, answer
    return [entry["job_id"] for entry in answer.json["jobs"]]


def seal(api: Api, group_id: str) -> Any:
    return api("POST", f"/v1/groups/{group_id}/seal").json


def test_a_group_from_its_making_to_its_callback(api: Api, workers: DatabaseWorkers) -> None:
    callback = item(payload={"text": "{{inputs.group.done}} of {{inputs.group.members}}"})
    made = make(api, name="nightly", labels={"team": "x"}, callback=callback)
    job_ids = members(api, made["group_id"], 3)
    sealed = seal(api, made["group_id"])

    assert (made["status"], made["members"], made["sealed"]) == ("running", 0, False)
    assert (sealed["pending"], sealed["sealed"], sealed["name"], sealed["labels"]) == (
        3,
        True,
        "nightly",
        {"team": "x"},
    )
    assert read(api, made["callback_id"])["waiting"]["depends_on"] == [made["group_id"]]
    workers.finish(job_ids[0])
    workers.fail(job_ids[1])
    api("POST", f"/v1/jobs/{job_ids[2]}/cancel")

    finished = group(api, made["group_id"], 10)

    counters = {name: finished[name] for name in ("members", "pending", "done", "error", "canceled")}
    assert counters == {"members": 3, "pending": 0, "done": 1, "error": 1, "canceled": 1}
    assert (finished["status"], finished["finished_ts"] is not None) == ("error", True)
    until(api, made["callback_id"], "queued", "in_line")
    assert read(api, made["callback_id"])["payload"] == {"text": "1 of 3"}


def test_a_group_sent_again_with_its_id_is_the_same(api: Api) -> None:
    body = {"id": str(uuid4()), "callback": item()}

    first, again = api("POST", "/v1/groups", body), api("POST", "/v1/groups", body)

    assert (first.status, again.status) == (201, 200)
    assert first.json == again.json


def test_members_are_listed_by_their_group(api: Api) -> None:
    made = make(api)
    job_ids = members(api, made["group_id"], 3)
    submit(api)

    page = api("GET", f"/v1/jobs?group={made['group_id']}").json
    count = api("POST", "/v1/jobs/count", {"group": made["group_id"], "status": "queued"}).json

    assert [job["job_id"] for job in page["jobs"]] == sorted(job_ids, reverse=True)
    assert count == {"count": 3, "exact": True}
    assert read(api, job_ids[0])["group_id"] == made["group_id"]


def test_groups_are_listed_newest_first(api: Api) -> None:
    ids = [make(api)["group_id"] for _ in range(3)]

    first = api("GET", "/v1/groups?limit=2").json
    rest = api("GET", f"/v1/groups?limit=2&before={first['next']}").json

    assert [one["group_id"] for one in (*first["groups"], *rest["groups"])][:3] == ids[::-1]


def test_a_group_is_canceled_in_batches_and_sealed_by_it(api: Api) -> None:
    made = make(api, callback=item())
    members(api, made["group_id"], 5)
    path = f"/v1/groups/{made['group_id']}/cancel"

    changed, before = 0, None
    while True:
        answer = api("POST", path, {"limit": 2, **({"before": before} if before else {})}).json
        changed, before = changed + answer["changed"], answer["next"]
        if before is None:
            break

    assert changed == 5
    finished = group(api, made["group_id"], 10)
    assert (finished["canceled"], finished["sealed"], finished["status"]) == (5, True, "error")
    until(api, made["callback_id"], "queued", "in_line")


def test_failed_members_run_again_as_members(api: Api, workers: DatabaseWorkers) -> None:
    made = make(api)
    job_ids = members(api, made["group_id"], 2)
    seal(api, made["group_id"])
    workers.finish(job_ids[0])
    workers.fail(job_ids[1])
    assert group(api, made["group_id"], 10)["status"] == "error"

    answer = api("POST", f"/v1/groups/{made['group_id']}/retry", {}).json
    page = api("GET", f"/v1/jobs?group={made['group_id']}&status=queued").json

    assert (answer["changed"], len(page["jobs"])) == (1, 1)
    workers.finish(page["jobs"][0]["job_id"])
    finished = group(api, made["group_id"], 10)
    assert (finished["status"], finished["members"], finished["retried"]) == ("done", 3, 1)


def test_a_retry_also_runs_what_was_given_up_because_of_the_failed_member(api: Api, workers: DatabaseWorkers) -> None:
    made = make(api, callback=item(), callback_on="success")
    answer = batch(
        api,
        item(ref="a", group=made["group_id"]),
        item(ref="b", group=made["group_id"], depends_on=[{"ref": "a"}]),
    )
    first, second = (job["job_id"] for job in answer.json["jobs"])
    seal(api, made["group_id"])
    workers.fail(first)
    assert group(api, made["group_id"], 10)["status"] == "error"
    wait_until(lambda: read(api, made["callback_id"])["status"] == "canceled", "the callback was not canceled")

    assert api("POST", f"/v1/groups/{made['group_id']}/retry", {}).json["changed"] == 1

    again = {job["redriven_from"]: job["job_id"] for job in queued(api, made["group_id"])}
    assert again.keys() == {first, second}
    workers.finish(again[first])
    until(api, again[second], "queued", "in_line")
    workers.finish(again[second])
    finished = group(api, made["group_id"], 10)
    assert (finished["status"], finished["members"], finished["retried"]) == ("done", 4, 2)
    assert finished["callback_id"] != made["callback_id"]
    until(api, finished["callback_id"], "queued", "in_line")


def queued(api: Api, group_id: str) -> list[Any]:
    found = api("GET", f"/v1/jobs?group={group_id}&status=queued").json["jobs"]
    return [api("GET", f"/v1/jobs/{job['job_id']}").json for job in found]


def test_a_group_is_followed_until_it_is_finished(api: Api, workers: DatabaseWorkers) -> None:
    made = make(api)
    (job_id,) = members(api, made["group_id"], 1)
    seal(api, made["group_id"])
    threading.Timer(0.2, workers.finish, [job_id]).start()

    with Stream(api.address, f"/v1/groups/{made['group_id']}/events") as stream:
        seen = [event.data for event in stream]

    assert [(one["pending"], one["status"]) for one in seen] == [(1, "running"), (0, "done")]


def test_the_graph_of_a_job_goes_both_ways(api: Api) -> None:
    answer = batch(
        api,
        item(ref="a"),
        item(ref="b", depends_on=[{"ref": "a"}]),
        item(ref="c", depends_on=[{"ref": "b", "on": "any"}]),
        item(),
    )
    first, second, third, _ = [entry["job_id"] for entry in answer.json["jobs"]]

    graph = api("GET", f"/v1/jobs/{second}/graph").json

    assert {node["id"] for node in graph["nodes"]} == {first, second, third}
    assert {(edge["from"], edge["to"], edge["on"]) for edge in graph["edges"]} == {
        *((first, second, "success"), (second, third, "any"))
    }
    assert not graph["is_cut"]


def test_a_large_graph_is_cut_to_what_is_nearest(api: Api) -> None:
    answer = batch(api, item(ref="a"), *(item(depends_on=[{"ref": "a"}]) for _ in range(150)))

    graph = api("GET", f"/v1/jobs/{answer.json['jobs'][0]['job_id']}/graph").json

    assert (len(graph["nodes"]), len(graph["edges"]), graph["is_cut"]) == (100, 99, True)


BAD_GROUPS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another field": ({"title": "x"}, "invalid", "title"),
    "an id that is none": ({"id": "x"}, "invalid", "id"),
    "an empty name": ({"name": ""}, "invalid", "name"),
    "a name of two lines": ({"name": "a\nb"}, "invalid", "name"),
    "a long name": ({"name": "x" * 201}, "invalid", "name"),
    "labels that are none": ({"labels": {"a b": "c"}}, "invalid", "labels"),
    "a callback that is no object": ({"callback": [1]}, "not_object", "object"),
    "a callback without a task": ({"callback": {"payload": {}}}, "invalid", "task"),
    "a callback of an unknown task": ({"callback": {"task": "nobody", "payload": {}}}, "unknown_task", "nobody"),
    "a callback that waits": ({"callback": item(depends_on=[NOBODY])}, "invalid", "callback.depends_on"),
    "a callback in a group": ({"callback": item(group=NOBODY)}, "invalid", "callback.group"),
    "another word for on": ({"callback_on": "done"}, "invalid", "callback_on"),
}


@pytest.mark.parametrize("name", BAD_GROUPS)
def test_a_bad_group_is_refused_and_changes_nothing(api: Api, workers: DatabaseWorkers, name: str) -> None:
    body, code, said = BAD_GROUPS[name]
    before = workers.traces(), workers.rows("SELECT count(*) FROM groups")

    answer = api("POST", "/v1/groups", body)

    assert (answer.code, said in answer.json["detail"]) == (code, True), answer.json
    assert (workers.traces(), workers.rows("SELECT count(*) FROM groups")) == before


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/v1/groups/x", None, "no_such_group"),
        ("GET", f"/v1/groups/{NOBODY}", None, "no_such_group"),
        ("GET", f"/v1/groups/{NOBODY}?wait_s=61", None, "invalid"),
        ("GET", "/v1/groups?limit=0", None, "invalid"),
        ("GET", "/v1/groups?before=x", None, "invalid"),
        ("POST", f"/v1/groups/{NOBODY}/cancel", {"limit": 0}, "invalid"),
        ("POST", f"/v1/groups/{NOBODY}/cancel", {"all": True}, "invalid"),
        ("GET", f"/v1/jobs/{NOBODY}/graph", None, "unknown_job"),
    ],
)
def test_a_bad_call_about_a_group_is_refused(api: Api, method: str, path: str, body: Any, code: str) -> None:
    assert api(method, path, body).code == code


def test_a_sealed_group_takes_no_more_members(api: Api) -> None:
    made = make(api)
    seal(api, made["group_id"])

    answer = api("POST", "/v1/jobs", item(group=made["group_id"]))

    assert (answer.status, answer.code) == (409, "group_sealed")


def test_a_ring_through_a_group_is_refused(api: Api) -> None:
    made = make(api)
    waiting = submit(api, depends_on=[{"group": made["group_id"]}])["job_id"]

    answer = api("POST", "/v1/jobs", item(group=made["group_id"], depends_on=[waiting]))

    assert (answer.status, answer.code) == (422, "dependency_cycle")


def test_what_ended_while_the_node_was_busy_is_found_by_polling(api: Api, workers: DatabaseWorkers) -> None:
    """Another node ended it: no commit of this one says so."""
    first = submit(api)["job_id"]
    job_id = submit(api, depends_on=[first])["job_id"]
    workers.finish(first)

    wait_until(lambda: read(api, job_id)["waiting"]["reason"] == "in_line", "nobody looked")


@pytest.mark.parametrize("max_jobs", [None, 5])
def test_a_worker_gets_the_inputs_with_its_claim(api: Api, workers: DatabaseWorkers, max_jobs: int | None) -> None:
    first = submit(api)["job_id"]
    job_id = submit(api, queue="told", depends_on=[{"job": first, "ref": "a"}])["job_id"]
    workers.finish(first, '{"n": [1, 2]}')

    asked = {"worker_id": "w1", "streams": ["jobs:stream:told"], "max_wait_ms": 1_000}

    def claim() -> Any:
        """The job; others that wait in this queue are left by other tests."""
        answer = api("POST", "/internal/worker/claim", asked | ({} if max_jobs is None else {"max_jobs": max_jobs}))
        jobs = [answer.json] if max_jobs is None else answer.json["jobs"]
        return next((job for job in jobs if job.get("job_id") == job_id), None)

    claimed = wait_until(claim, "the job is not to be had")

    assert claimed["inputs"] == {
        "a": {"id": first, "status": "done", "result": {"n": [1, 2]}, "error": None, "is_large": False}
    }
    names = ("job_id", "attempt_id", "lease_token", "stream", "message_id")
    report = {"worker_id": "w1", **{name: claimed[name] for name in names}, "result": None}
    assert api("POST", "/internal/worker/complete", report).json["ok"]
