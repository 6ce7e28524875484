"""The worker API as a worker meets it: jobs come by long poll, leases are kept, every end is told once and kept."""

from __future__ import annotations

import http.client
import json
import re
import time
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.wait import wait_until
from tests.support.workerless import KEPT, InBackground, WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(workerless: WorkerlessDaemon) -> Iterator[None]:
    """No test leaves a job to the next."""
    yield
    for job_id, lease_token, attempt_id in workerless.rows("SELECT resource_id, lease_token, attempt_id FROM leases"):
        ids = {"job_id": str(job_id), "lease_token": str(lease_token), "attempt_id": str(attempt_id)}
        workerless.fail({"worker_id": "cleaner", **ids}, retryable=False)
    for (job_id,) in workerless.rows("SELECT id FROM jobs WHERE status = 'queued'"):
        workerless.api("POST", f"/v1/jobs/{job_id}/cancel")


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# Claim


def test_claim_answers_every_field_of_the_contract(workerless: WorkerlessDaemon) -> None:
    job_id = workerless.submit(task="embed", payload={"text": "hé", "n": [1, 2.5]}, max_attempts=5, timeout_s=90)

    claimed = workerless.claim("jobs:stream", max_wait_ms=9_000)

    assert (claimed["claimed"], claimed["job_id"]) == (True, job_id)
    assert {name: type(claimed[name]) for name in KEPT} == dict.fromkeys(KEPT, str)
    assert uuid.UUID(claimed["attempt_id"]) != uuid.UUID(claimed["lease_token"])
    assert claimed["stream"] == "jobs:stream"
    assert claimed["payload"] == {"text": "hé", "n": [1, 2.5]}
    assert (claimed["lease_ttl_seconds"], claimed["heartbeat_interval_seconds"]) == (60, 20)
    assert (claimed["task"], claimed["attempt"], claimed["max_attempts"]) == ("embed", 1, 5)
    assert (claimed["timeout_s"], claimed["enqueue_id"], claimed["max_wait_ms"]) == (90, 1, 9_000)
    assert workerless.read(job_id)["status"] == "running"


def test_claim_names_the_trace_of_a_job_that_has_one(workerless: WorkerlessDaemon) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"}
    workerless.api("POST", "/v1/jobs", {"task": "embed", "payload": {}}, trace)

    claimed = workerless.claim("jobs:stream", max_wait_ms=9_000)

    assert {name: claimed[name] for name in trace} == trace


def test_claim_of_a_job_that_came_by_its_message_names_the_message(workerless: WorkerlessDaemon) -> None:
    """Postgres is polled too: on a busy machine it may hand out a job before Redis does."""

    def message_id() -> str:
        held = workerless.running()
        workerless.complete(held)
        return str(held["message_id"])

    assert re.fullmatch(r"\d+-\d+", wait_until(message_id, "every job was handed out by Postgres"))


def test_claim_without_a_job_says_so_when_its_time_is_up(workerless: WorkerlessDaemon) -> None:
    assert workerless.claim(max_wait_ms=200) == {"claimed": False, "max_wait_ms": 200}


def test_claim_that_does_not_want_to_wait_finds_what_is_there(workerless: WorkerlessDaemon) -> None:
    job_id = workerless.submit()
    workerless.claim("jobs:stream:gpu", max_wait_ms=300)  # by then the job is in its stream

    assert workerless.claim(max_wait_ms=0)["job_id"] == job_id


def test_claim_waits_for_a_job_that_comes_later(workerless: WorkerlessDaemon) -> None:
    waiting = InBackground(workerless.claim, "jobs:stream:slow")

    job_id = workerless.submit(queue="slow")

    assert waiting.answer()["job_id"] == job_id


@pytest.mark.parametrize("max_wait_ms", [60_001, 10**9, 2**70])
def test_wait_beyond_a_minute_is_cut_and_the_worker_is_told(workerless: WorkerlessDaemon, max_wait_ms: int) -> None:
    workerless.submit()

    assert workerless.claim(max_wait_ms=max_wait_ms)["max_wait_ms"] == 60_000


def test_streams_are_served_in_the_order_of_the_claim(workerless: WorkerlessDaemon) -> None:
    jobs = {queue: workerless.submit(queue=queue) for queue in ("slow", "default", "gpu")}
    wanted = ["jobs:stream:gpu", "jobs:stream:slow", "jobs:stream:gpu", "jobs:stream", "jobs:stream:slow"]
    wait_until(lambda: workerless.rows("SELECT FROM outbox") == [], "jobs are not told", 10)
    workerless.claim("jobs:stream:gpu", max_wait_ms=0, worker_id="early")

    got = [workerless.claim(*wanted)["job_id"] for _ in range(2)]

    assert got == [jobs["slow"], jobs["default"]]


def test_two_claims_with_one_worker_id_get_two_jobs(workerless: WorkerlessDaemon) -> None:
    waiting = [InBackground(workerless.claim, worker_id="twin") for _ in range(2)]
    jobs = {workerless.submit(), workerless.submit()}

    claims = [claim.answer() for claim in waiting]

    assert {claimed["job_id"] for claimed in claims} == jobs
    assert [workerless.complete({"worker_id": "twin", **kept(claimed)})["ok"] for claimed in claims] == [True, True]


def test_worker_id_is_the_owner_of_the_attempt(workerless: WorkerlessDaemon) -> None:
    job_id = workerless.submit()

    workerless.claim(worker_id="gpu box 7/é")

    assert workerless.rows("SELECT owner_id FROM leases WHERE resource_id = $1", job_id) == [("gpu box 7/é",)]


def hang_up_while_waiting(workerless: WorkerlessDaemon, trailing: bytes = b"") -> http.client.HTTPConnection:
    body = json.dumps({"worker_id": "leaver", "streams": ["jobs:stream:gpu"], "max_wait_ms": 60_000})
    connection = http.client.HTTPConnection(workerless.daemon.address, timeout=10)
    connection.request("POST", "/internal/worker/claim", body, {"Content-Type": "application/json"})
    connection.sock.sendall(trailing)
    return connection


@pytest.mark.parametrize(
    "trailing", [b"", b"\r\n", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["", "line end", "request"]
)
def test_worker_that_hung_up_is_not_given_a_job(workerless: WorkerlessDaemon, trailing: bytes) -> None:
    """Whatever it sent behind its claim."""
    leaver = hang_up_while_waiting(workerless, trailing)
    workerless.claim("jobs:stream:gpu", max_wait_ms=200)  # behind the leaver in the same line
    leaver.close()
    workerless.claim("jobs:stream:gpu", max_wait_ms=200)

    job_id = workerless.submit(queue="gpu")
    claimed = workerless.claim("jobs:stream:gpu")

    assert (claimed["job_id"], claimed["attempt"]) == (job_id, 1)


def test_job_leased_just_as_its_worker_hangs_up_is_given_back_uncharged(workerless: WorkerlessDaemon) -> None:
    leaver = hang_up_while_waiting(workerless)
    with workerless.locked("leases"):
        job_id = workerless.submit(queue="gpu", max_attempts=1)
        workerless.until_someone_waits_for_a_lock()
        leaver.close()
        workerless.claim("jobs:stream:slow", max_wait_ms=200)  # long enough for the hang-up to be heard

    claimed = workerless.claim("jobs:stream:gpu")

    assert (claimed["job_id"], claimed["attempt"]) == (job_id, 2)
    assert workerless.outcomes_of(job_id) == [(1, "released")]
    assert workerless.rows("SELECT attempt_count FROM jobs WHERE id = $1", job_id) == [(1,)]


def claim_many(
    workerless: WorkerlessDaemon, max_jobs: int, stream: str = "jobs:stream:slow", max_wait_ms: int = 10_000
) -> Any:
    body = {"worker_id": "w-1", "streams": [stream], "max_wait_ms": max_wait_ms, "max_jobs": max_jobs}
    return workerless.post("claim", body).json


def test_claim_of_many_brings_what_is_there_and_no_more_than_asked_for(workerless: WorkerlessDaemon) -> None:
    jobs = {workerless.submit(queue="slow", payload={"n": n}) for n in range(3)}
    wait_until(lambda: workerless.rows("SELECT FROM outbox") == [], "jobs are not told", 10)

    answers = [claim_many(workerless, 2), claim_many(workerless, 2)]

    fields = ["claimed", "max_wait_ms", "claimed_after_ms", "jobs"]
    assert [(answer["claimed"], list(answer)) for answer in answers] == [(True, fields)] * 2
    claimed = [job for answer in answers for job in answer["jobs"]]
    assert {job["job_id"] for job in claimed} == jobs
    assert max(len(answer["jobs"]) for answer in answers) == 2
    assert [workerless.complete({"worker_id": "w-1", **kept(job)})["ok"] for job in claimed] == [True] * 3


def test_claim_of_many_has_the_fields_of_a_claim_of_one(workerless: WorkerlessDaemon) -> None:
    workerless.submit(queue="slow")
    workerless.submit(queue="slow")

    one = workerless.claim("jobs:stream:slow")
    (other,) = claim_many(workerless, 5)["jobs"]

    assert one.keys() - other.keys() == {"claimed", "max_wait_ms", "claimed_after_ms"}
    assert other.keys() <= one.keys()


def test_claim_says_how_long_after_its_arrival_the_job_was_claimed(workerless: WorkerlessDaemon) -> None:
    began = time.monotonic()
    waiting = InBackground(workerless.claim, "jobs:stream:slow", max_wait_ms=10_000)
    time.sleep(1.0)  # long enough for the claim to arrive
    workerless.submit(queue="slow")

    claimed = waiting.answer()

    assert 100 < claimed["claimed_after_ms"] <= (time.monotonic() - began) * 1000


def test_claim_of_many_without_a_job_says_so(workerless: WorkerlessDaemon) -> None:
    assert claim_many(workerless, 3, max_wait_ms=0) == {"claimed": False, "max_wait_ms": 0, "jobs": []}


@pytest.mark.parametrize("max_jobs", [0, -1, 501, "2", None, 1.5])
def test_claim_of_a_number_that_cannot_be_is_refused(workerless: WorkerlessDaemon, max_jobs: Any) -> None:
    body = {"worker_id": "w-1", "streams": ["jobs:stream"], "max_jobs": max_jobs}

    assert workerless.post("claim", body).code == "invalid"


# Heartbeat


def test_heartbeat_extends_the_lease(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    ((before,),) = workerless.rows("SELECT lease_expires_at FROM leases WHERE resource_id = $1", held["job_id"])

    beat = workerless.beat(held)

    assert (beat["ok"], beat["cancel"], beat["quiet"], beat["lease_ttl_seconds"]) == (True, False, False, 60)
    assert "reason" not in beat
    assert instant(beat["lease_expires_at"]) > before > datetime.now(timezone.utc)


def test_heartbeat_tells_to_cancel_and_the_fail_that_follows_ends_the_job_canceled(
    workerless: WorkerlessDaemon,
) -> None:
    held = workerless.running()
    workerless.api("POST", f"/v1/jobs/{held['job_id']}/cancel")

    beat = workerless.beat(held)
    failed = workerless.fail(held)
    again = workerless.fail(held)

    assert (beat["ok"], beat["cancel"]) == (True, True)
    assert failed == {"ok": True, "ack": True, "requeued": False, "dlq": False, "reason": "canceled"}
    assert again == {**failed, "replay": True}
    assert workerless.read(held["job_id"])["status"] == "canceled"


def test_heartbeats_of_many_jobs_are_answered_in_order(workerless: WorkerlessDaemon) -> None:
    held = [workerless.running() for _ in range(3)]
    jobs = [{"job_id": one["job_id"], "lease_token": one["lease_token"]} for one in held]
    jobs[1]["lease_token"] = jobs[0]["lease_token"]

    answer = workerless.post("heartbeat", {"worker_id": "w-1", "jobs": jobs}).json

    assert list(answer) == ["jobs"]
    assert [one["job_id"] for one in answer["jobs"]] == [one["job_id"] for one in held]
    assert [(one["ok"], one.get("reason")) for one in answer["jobs"]] == [
        (True, None),
        (False, "lease_lost"),
        (True, None),
    ]


# Complete


@pytest.mark.parametrize(
    "result",
    [{"rows": [1, {"a": None}], "file": "s3://x"}, None, 0, -1.5, "text", "", True, [], {}, 2**64 + 1],
    ids=repr,
)
def test_any_json_value_is_a_result(workerless: WorkerlessDaemon, result: Any) -> None:
    held = workerless.running()

    answer = workerless.complete(held, result)

    assert answer == {"ok": True, "ack": True}
    job = workerless.read(held["job_id"])
    assert (job["status"], job["result"]) == ("done", result)


def test_complete_told_twice_changes_nothing_the_second_time(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    workerless.complete(held, {"a": 1, "b": [2]})
    before = workerless.state_of(held["job_id"])

    again = workerless.complete(held, {"b": [2], "a": 1})

    assert again == {"ok": True, "ack": True, "replay": True}
    assert workerless.state_of(held["job_id"]) == before


def test_stream_and_message_may_be_left_out(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    del held["stream"], held["message_id"]

    assert workerless.complete(held, {}) == {"ok": True, "ack": True}


def test_lease_that_expired_and_was_not_taken_over_still_completes(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    workerless.expire(held)

    assert workerless.complete(held, {}) == {"ok": True, "ack": True}


# Fail


def test_failure_is_tried_again_and_then_a_dead_letter(workerless: WorkerlessDaemon) -> None:
    held = workerless.running(max_attempts=2)

    first = workerless.fail(held, message="no luck", stack="line 1")
    last = workerless.fail({"worker_id": "w-1", **kept(workerless.claim())}, message="no luck again")

    retry_at = instant(first.pop("retry_at"))
    assert first == {"ok": True, "ack": True, "requeued": True, "dlq": False}
    assert retry_at.tzinfo is not None
    assert last == {"ok": True, "ack": True, "requeued": False, "dlq": True}
    job = workerless.read(held["job_id"])
    assert (job["status"], job["error"]["code"], job["error"]["message"]) == ("error", "boom", "no luck again")
    assert workerless.outcomes_of(held["job_id"]) == [(1, "failed"), (2, "failed")]


def test_failure_that_no_retry_can_help_is_a_dead_letter_at_once(workerless: WorkerlessDaemon) -> None:
    held = workerless.running(max_attempts=9)

    failed = workerless.fail(held, retryable=False)

    assert failed == {"ok": True, "ack": True, "requeued": False, "dlq": True}


@pytest.mark.parametrize("retryable", [True, False])
def test_fail_told_twice_is_answered_the_same(workerless: WorkerlessDaemon, retryable: bool) -> None:
    held = workerless.running()
    workerless.fail(held, message="x", retryable=retryable)
    before = told_of(workerless, held)

    again = workerless.fail(held, message="x", retryable=retryable)

    assert again == {"ok": True, "ack": True, "requeued": retryable, "dlq": not retryable, "replay": True}
    assert told_of(workerless, held) == before


def told_of(workerless: WorkerlessDaemon, held: dict[str, Any]) -> object:
    """All but the job's place in the queue, which the relay gives to it by and by."""
    job = workerless.rows("SELECT status, version, attempt_count, error::text FROM jobs WHERE id = $1", held["job_id"])
    return job, workerless.state_of(held["job_id"])[1:]


def test_error_is_stored_as_it_was_sent_with_what_it_left_out(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()

    workerless.fail(held, message="é" * 10, retryable=False)

    error = workerless.read(held["job_id"])["error"]
    assert error == {"code": "boom", "message": "é" * 10, "stack": None, "retryable": False}


def test_long_errors_are_cut_between_characters(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()

    workerless.fail(held, message="x" + "é" * 5000, stack="\N{GRINNING FACE}" * 800_000, retryable=False)

    error = workerless.read(held["job_id"])["error"]
    assert error["message"] == "x" + "é" * 2047
    assert error["stack"] == "\N{GRINNING FACE}" * 4096


def test_passwords_of_urls_in_errors_are_not_kept(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    secret = "cannot reach postgresql://me:hunter2@db/x"

    workerless.fail(held, message=secret, stack=f"Traceback\n{secret}", retryable=False)

    assert "hunter2" not in json.dumps(workerless.read(held["job_id"]))
    assert "hunter2" not in str(workerless.state_of(held["job_id"]))


# Release


def test_job_that_is_handed_back_is_queued_again_and_not_charged(workerless: WorkerlessDaemon) -> None:
    held = workerless.running(max_attempts=1)

    answer = workerless.post("release", held).json
    again = workerless.post("release", held).json

    assert answer == {"ok": True, "ack": True, "requeued": True}
    assert again == {**answer, "replay": True}
    assert workerless.outcomes_of(held["job_id"]) == [(1, "released")]
    assert workerless.rows("SELECT attempt_count FROM jobs WHERE id = $1", held["job_id"]) == [(0,)]
    assert workerless.claim()["job_id"] == held["job_id"]


def test_job_that_was_to_be_canceled_is_when_it_is_handed_back(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    workerless.api("POST", f"/v1/jobs/{held['job_id']}/cancel")

    answer = workerless.post("release", held).json
    again = workerless.post("release", held).json

    assert answer == {"ok": True, "ack": True, "requeued": False, "reason": "canceled"}
    assert again == {**answer, "replay": True}
    assert workerless.read(held["job_id"])["status"] == "canceled"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"lease_token": str(uuid.UUID(int=7))}, "superseded"),
        ({"lease_token": "nonsense"}, "superseded"),
        ({"attempt_id": str(uuid.UUID(int=7))}, "superseded"),
        ({"job_id": str(uuid.UUID(int=7))}, "unknown_job"),
    ],
    ids=str,
)
def test_job_of_another_is_not_handed_back(workerless: WorkerlessDaemon, wrong: dict[str, str], reason: str) -> None:
    held = workerless.running()
    before = workerless.state_of(held["job_id"])

    answer = workerless.post("release", {**held, **wrong}).json

    assert answer == {"ok": False, "ack": True, "requeued": False, "reason": reason}
    assert workerless.state_of(held["job_id"]) == before


def test_finished_job_is_not_handed_back(workerless: WorkerlessDaemon) -> None:
    held = workerless.running()
    workerless.complete(held, 1)

    answer = workerless.post("release", held).json

    assert (answer["ok"], answer["reason"]) == (False, "conflicting_outcome")
    assert workerless.read(held["job_id"])["status"] == "done"


def kept(claimed: Any) -> dict[str, Any]:
    return {name: claimed[name] for name in KEPT}
