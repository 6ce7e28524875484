"""Postgres cannot do it now (full, locked, too slow, read-only): 503 with a time to come back, never 500."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from jobd.store.ids import new_id
from tests.http.test_events import claim, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Answer, Api

SEND_ERROR = """
CREATE FUNCTION send_error() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION USING ERRCODE = TG_ARGV[0], MESSAGE = 'could not extend file'; END $$
"""
#: disk full, out of memory, too many connections, lock timeout, statement timeout, read-only, serialization failure
CODES = ("53100", "53200", "53300", "55P03", "57014", "25006", "40001")


@contextlib.contextmanager
def writes_fail(workers: DatabaseWorkers, code: str) -> Iterator[None]:
    workers.rows(SEND_ERROR)
    workers.rows(f"CREATE TRIGGER fails BEFORE INSERT OR UPDATE ON jobs EXECUTE FUNCTION send_error('{code}')")
    try:
        yield
    finally:
        workers.rows("DROP FUNCTION send_error CASCADE")


def is_unavailable(answer: Answer) -> bool:
    return (answer.status, answer.code, answer.headers.get("retry-after")) == (503, "unavailable", "1")


@pytest.mark.parametrize("code", CODES)
def test_every_write_that_postgres_cannot_do_now_is_unavailable(api: Api, workers: DatabaseWorkers, code: str) -> None:
    waiting, held = submit(api), claim(api, submit(api))
    job = {"task": "chat", "payload": {}}

    with writes_fail(workers, code):
        answers = {
            "submit": api("POST", "/v1/jobs", job),
            "submit with a key": api("POST", "/v1/jobs", job, {"Idempotency-Key": str(new_id())}),
            "batch": api("POST", "/v1/jobs/batch", [job, job]),
            "cancel": api("POST", f"/v1/jobs/{waiting}/cancel"),
            "complete": api("POST", "/internal/worker/complete", {**held, "result": 1}),
            "fail": api("POST", "/internal/worker/fail", {**held, "error": {"code": "x", "message": "y"}}),
        }

    assert [what for what, answer in answers.items() if not is_unavailable(answer)] == []
    assert api("POST", "/internal/worker/complete", {**held, "result": 1}).json["ok"]  # the lease is as it was


def test_key_of_a_request_that_is_under_way_elsewhere_is_busy(api: Api, workers: DatabaseWorkers) -> None:
    key, job = str(new_id()), {"task": "chat", "payload": {}}
    first = api("POST", "/v1/jobs", job, {"Idempotency-Key": key})

    with workers.transaction("SELECT FROM idempotency_keys WHERE key = $1 FOR UPDATE", key):
        busy = api("POST", "/v1/jobs", job, {"Idempotency-Key": key})
        other = api("POST", "/v1/jobs", job, {"Idempotency-Key": str(new_id())})
    later = api("POST", "/v1/jobs", job, {"Idempotency-Key": key})

    assert (busy.status, busy.code, busy.headers["retry-after"]) == (503, "key_busy", "1")
    assert other.status == 202
    assert later.json["job_id"] == first.json["job_id"]
