"""`POST /v1/jobs/batch`: many jobs in one commit, answered in order, all or none."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Answer, Api

LINES = {"Content-Type": "application/x-ndjson"}


def job(n: int = 0, **fields: Any) -> dict[str, Any]:
    return {"task": "embed", "payload": {"n": n}, **fields}


def lines(items: list[dict[str, Any]], end: str = "\n") -> bytes:
    return "".join(json.dumps(item) + end for item in items).encode()


def payloads(api: Api, answer: Answer) -> list[Any]:
    ids = [one["job_id"] for one in answer.json["jobs"]]
    return [api("GET", f"/v1/jobs/{job_id}").json["payload"]["n"] for job_id in ids]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_lines_are_jobs_in_their_order(api: Api, end: str) -> None:
    answer = api("POST", "/v1/jobs/batch", lines([job(n) for n in range(5)], end), LINES)

    assert answer.status == 202
    assert payloads(api, answer) == [0, 1, 2, 3, 4]


def test_an_array_is_jobs_in_their_order(api: Api) -> None:
    answer = api("POST", "/v1/jobs/batch", [job(n) for n in range(5)])

    assert answer.status == 202
    assert payloads(api, answer) == [0, 1, 2, 3, 4]
    assert [(one["status"], one["existing"]) for one in answer.json["jobs"]] == [("queued", False)] * 5


def test_the_last_line_needs_no_end(api: Api) -> None:
    answer = api("POST", "/v1/jobs/batch", lines([job(1), job(2)])[:-1], LINES)

    assert len(answer.json["jobs"]) == 2


def test_ten_thousand_jobs_go_in_one_call(api: Api, workers: DatabaseWorkers) -> None:
    before = workers.rows("SELECT count(*) FROM jobs WHERE queue = 'fast'")[0][0]

    answer = api("POST", "/v1/jobs/batch", [job(n, queue="fast") for n in range(10_000)])

    assert answer.status == 202
    assert len({one["job_id"] for one in answer.json["jobs"]}) == 10_000
    assert workers.rows("SELECT count(*) FROM jobs WHERE queue = 'fast'") == [(before + 10_000,)]


def test_a_job_behind_ten_thousand_others_has_no_number(api: Api) -> None:
    last = api("POST", "/v1/jobs/batch", [job(queue="fast") for _ in range(10_000)]).json["jobs"][-1]

    waiting = api("GET", f"/v1/jobs/{last['job_id']}").json["waiting"]

    assert waiting == {"reason": "in_line", "position": None, "eta_s": None}


def test_twins_in_a_batch_are_one_job_when_asked_to(api: Api, workers: DatabaseWorkers) -> None:
    mark = str(uuid.uuid4())
    known = api("POST", "/v1/jobs", {"task": "embed", "payload": {"known": mark}}).json["job_id"]
    workers.start(known)
    items = [{"task": "embed", "payload": {"new": mark}, "dedupe": "active"}] * 2
    items.append({"task": "embed", "payload": {"known": mark}, "dedupe": "active"})

    first, second, third = api("POST", "/v1/jobs/batch", items).json["jobs"]

    assert (first["existing"], second["existing"]) == (False, True)
    assert second["job_id"] == first["job_id"]
    assert third == {"job_id": known, "status": "running", "existing": True}


BAD = [
    ("no items", b"[]", {}, 422, "invalid"),
    ("no lines", b"", LINES, 422, "invalid"),
    ("blank lines", b"\n \n\r\n", LINES, 422, "invalid"),
    ("empty body", b"", {}, 400, "not_json"),
    ("one object", json.dumps(job()).encode(), {}, 422, "invalid"),
    ("null", b"null", {}, 422, "invalid"),
    ("cut short", b"[{}", {}, 400, "not_json"),
    ("garbage behind", json.dumps([job()]).encode() + b"x", {}, 400, "not_json"),
    ("byte order mark", b"\xef\xbb\xbf[]", {}, 400, "bom"),
    ("byte order mark before lines", b"\xef\xbb\xbf" + lines([job()]), LINES, 400, "bom"),
    ("nested without end", b"[" * 100_000, {}, 400, "too_deep"),
    ("nested without end in an item", b'[{"a":' + b"[" * 100_000, {}, 400, "too_deep"),
    ("UTF-16", json.dumps([job()]).encode("utf-16"), {}, 400, "not_utf8"),
    ("half a pair", b'[{"task":"embed","payload":{"x":"\\ud800"}}]', {}, 422, "surrogate"),
    ("broken and long", b"[" + b"{}," * 500_000 + b"nan]", {}, 400, "not_json"),
    ("too many", json.dumps([job()] * 10_001).encode(), {}, 413, "too_many_items"),
    ("too many lines", lines([job()]) * 10_001, LINES, 413, "too_many_items"),
    ("a job over two lines", b'{"task":"embed","payload":{"x":[1\n2]}}', LINES, 400, "not_json"),
    ("jobs that share a line", b'{"task":"embed","payload":{}},{"task":"embed","payload":{}}', LINES, 400, "not_json"),
    (
        "as many jobs as lines, at other places",
        b'{"task":"embed","payload":{}},{"task":"embed","payload":{"x":[1\n2]}}',
        LINES,
        400,
        "not_json",
    ),
    ("another type", lines([job()]), {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
    ("bad key", json.dumps([job()]).encode(), {"Idempotency-Key": ""}, 400, "bad_idempotency_key"),
]


@pytest.mark.parametrize(("body", "headers", "status", "code"), [pytest.param(*row[1:], id=row[0]) for row in BAD])
def test_a_bad_batch_is_refused_without_a_trace(
    api: Api, workers: DatabaseWorkers, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    before = workers.traces()

    answer = api("POST", "/v1/jobs/batch", body, headers)

    assert (answer.status, answer.code) == (status, code), answer.body
    assert workers.traces() == before


BAD_ITEMS = [
    ("null", b"null", 422, "not_object"),
    ("array", b"[]", 422, "not_object"),
    ("duplicate key", b'{"task":"embed","task":"embed","payload":{}}', 400, "duplicate_key"),
    ("stray byte", b'{"task":"embed","payload":{"x":"\xff"}}', 400, "not_utf8"),
    ("too large", b'{"task":"embed","payload":{"x":"%s"}}' % (b"x" * 204_800), 413, "too_large"),
]


@pytest.mark.parametrize("headers", [{}, LINES], ids=["array", "lines"])
@pytest.mark.parametrize(("item", "status", "code"), [pytest.param(*row[1:], id=row[0]) for row in BAD_ITEMS])
def test_the_first_bad_item_is_named_by_its_place(
    api: Api, workers: DatabaseWorkers, headers: dict[str, str], item: bytes, status: int, code: str
) -> None:
    before = workers.traces()
    items = [json.dumps(job()).encode()] * 120 + [item, item]
    body = b"\n".join(items) if headers else b"[%s]" % b",".join(items)

    answer = api("POST", "/v1/jobs/batch", body, headers)

    assert (answer.status, answer.code, answer.json["index"]) == (status, code, 120)
    assert workers.traces() == before
