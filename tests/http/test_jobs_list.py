"""`GET /v1/jobs`: pages of jobs, newest first, by filters."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api


def listed(api: Api, **query: Any) -> Any:
    answer = api("GET", f"/v1/jobs?{urlencode(query)}")
    assert answer.status == 200, answer
    return answer.json


def submit(api: Api, **fields: Any) -> Any:
    return api("POST", "/v1/jobs", {"task": "embed", "payload": {}, **fields}).json


def test_the_newest_come_first_and_without_their_payload(api: Api) -> None:
    made = [submit(api, payload={"n": n})["job_id"] for n in range(3)]

    page = listed(api, limit=3)

    assert [job["job_id"] for job in page["jobs"]] == made[::-1]
    assert "payload" not in page["jobs"][0]


def test_pages_follow_each_other_to_the_end(api: Api) -> None:
    payload = {"pages": str(uuid.uuid4())}
    made = [submit(api, payload=payload) for _ in range(5)]

    found: list[str] = []
    page = listed(api, limit=2, spec_hash=made[0]["spec_hash"])
    found += [job["job_id"] for job in page["jobs"]]
    while page["next"]:
        page = listed(api, limit=2, spec_hash=made[0]["spec_hash"], before=page["next"])
        found += [job["job_id"] for job in page["jobs"]]

    assert found == [job["job_id"] for job in reversed(made)]


def test_filters_leave_only_what_fits(api: Api, workers: DatabaseWorkers) -> None:
    wanted = submit(api, task="plan", queue="fast")["job_id"]
    workers.finish(wanted)
    for others in ({"task": "plan"}, {"queue": "fast"}, {"task": "plan", "queue": "fast"}):
        submit(api, **others)

    page = listed(api, status="done", task="plan", queue="fast")

    assert [job["job_id"] for job in page["jobs"]] == [wanted]


def test_nothing_that_fits_is_an_empty_page(api: Api) -> None:
    assert listed(api, spec_hash="0" * 64) == {"jobs": [], "next": None}
    assert listed(api, before="00000000-0000-7000-8000-000000000000") == {"jobs": [], "next": None}


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=101", "limit=1.5", "limit=x", "limit=", "limit=-1", "limit=true", "limit=" + "9" * 400),
        *("status=finished", "status=", "status=QUEUED", "task=*", "queue=" + "x" * 65),
        *("spec_hash=abc", "spec_hash=" + "g" * 64, "spec_hash=" + "0" * 64 + "&status=done"),
        *(
            "before=x",
            "before=",
            "before=%00",
            "offset=3",
            "statuss=done",
            "status=done&status=error",
            "limit=1&limit=1",
        ),
    ],
)
def test_a_bad_parameter_is_refused_by_name(api: Api, query: str) -> None:
    answer = api("GET", f"/v1/jobs?{query}")

    assert (answer.status, answer.code) == (422, "invalid")
    assert query.partition("=")[0] in answer.json["detail"]


@pytest.mark.parametrize(
    "path", ["/v1/queues", "/v1/stats", "/v1/dlq", "/v1/jobs/01a1e32b-6742-7000-927b-55333af42aa0"]
)
def test_every_read_refuses_parameters_it_does_not_know(api: Api, path: str) -> None:
    answer = api("GET", f"{path}?verbose=1")

    assert (answer.status, answer.code) == (422, "invalid")
