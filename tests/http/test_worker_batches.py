"""Reports on many jobs in one call: each is answered as if it had come alone, and none suffers for another."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.test_bad_reports import deep
from tests.support.workerless import CONFIG, WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.http import Answer

Held = dict[str, Any]

VERBS = ("complete", "fail", "release")
#: What each verb needs beside the proof.
MORE: dict[str, dict[str, Any]] = {
    "complete": {"result": {"n": 1}},
    "fail": {"error": {"code": "boom", "retryable": False}},
    "release": {},
}
#: The answer to each verb when the report counts.
DONE: dict[str, dict[str, Any]] = {
    "complete": {"ok": True, "ack": True},
    "fail": {"ok": True, "ack": True, "requeued": False, "dlq": True},
    "release": {"ok": True, "ack": True, "requeued": True},
}
#: What the answers to a report that does not count have in common.
NOT_DONE: dict[str, dict[str, Any]] = {
    "complete": {"ok": False},
    "fail": {"ok": False, "requeued": False, "dlq": False},
    "release": {"ok": False, "requeued": False},
}


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(CONFIG + "[limits]\nresult_bytes = 300000\ninline_result_bytes = 1000\n") as made:
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


def held_jobs(workerless: WorkerlessDaemon, number: int) -> list[Held]:
    """What proves a hold on each of them, as the items of a batch carry it."""
    held = [workerless.running() for _ in range(number)]
    for proof in held:
        del proof["worker_id"]
    return held


def send(workerless: WorkerlessDaemon, verb: str, jobs: object, worker_id: object = "w-1") -> Answer:
    return workerless.post(f"{verb}/batch", {"worker_id": worker_id, "jobs": jobs})


def answers(workerless: WorkerlessDaemon, verb: str, jobs: list[dict[str, Any]]) -> list[Any]:
    answer = send(workerless, verb, jobs)
    assert answer.status == 200, answer
    assert list(answer.json) == ["jobs"]
    assert len(answer.json["jobs"]) == len(jobs)
    told: list[Any] = answer.json["jobs"]
    return told


# -- reports that count ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_each_report_of_a_batch_counts(workerless: WorkerlessDaemon, verb: str) -> None:
    held = held_jobs(workerless, 3)

    told = answers(workerless, verb, [{**proof, **MORE[verb]} for proof in held])

    assert told == [DONE[verb]] * 3
    outcome = {"complete": "done", "fail": "failed", "release": "released"}[verb]
    assert [workerless.outcomes_of(proof["job_id"]) for proof in held] == [[(1, outcome)]] * 3


def test_results_are_stored_as_they_were_sent(workerless: WorkerlessDaemon) -> None:
    results: list[Any] = [None, 0, 'é"\\', [], {"b": [1, {"a": None}], "a": 2.5}, deep(31)]
    held = held_jobs(workerless, len(results))

    told = answers(
        workerless, "complete", [{**proof, "result": value} for proof, value in zip(held, results, strict=True)]
    )

    assert told == [DONE["complete"]] * len(results)
    assert [workerless.read(proof["job_id"])["result"] for proof in held] == results


def test_large_result_of_a_batch_goes_to_a_file(workerless: WorkerlessDaemon) -> None:
    small, large = held_jobs(workerless, 2)

    told = answers(workerless, "complete", [{**small, "result": 1}, {**large, "result": "x" * 280_000}])

    assert told == [DONE["complete"]] * 2
    assert workerless.read(large["job_id"])["result_ref"] is not None
    assert workerless.api("GET", f"/v1/jobs/{large['job_id']}/result").json == "x" * 280_000


def test_failure_that_is_tried_again_says_when(workerless: WorkerlessDaemon) -> None:
    again, never = held_jobs(workerless, 2)

    first, last = answers(
        workerless,
        "fail",
        [{**again, "error": {"code": "x"}}, {**never, "error": {"code": "y", "message": "no", "retryable": False}}],
    )

    assert first.pop("retry_at")
    assert first == {"ok": True, "ack": True, "requeued": True, "dlq": False}
    assert last == DONE["fail"]
    assert workerless.read(never["job_id"])["error"]["message"] == "no"


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_job_that_was_to_be_canceled_is(workerless: WorkerlessDaemon, verb: str) -> None:
    (proof,) = held_jobs(workerless, 1)
    workerless.api("POST", f"/v1/jobs/{proof['job_id']}/cancel")

    (told,) = answers(workerless, verb, [{**proof, **MORE[verb]}])

    assert (told["ok"], told["requeued"], told["reason"]) == (True, False, "canceled")
    assert workerless.read(proof["job_id"])["status"] == "canceled"


def test_long_error_of_a_batch_is_cut_and_its_passwords_are_not_kept(workerless: WorkerlessDaemon) -> None:
    (proof,) = held_jobs(workerless, 1)
    error = {"code": "x", "message": "é" * 5000, "stack": "postgresql://me:hunter2@db/x", "retryable": False}

    answers(workerless, "fail", [{**proof, "error": error}])

    kept = workerless.read(proof["job_id"])["error"]
    assert kept["message"] == "é" * 2048
    assert "hunter2" not in str(workerless.state_of(proof["job_id"]))


# -- the same again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_batch_sent_again_is_answered_the_same_and_changes_nothing(workerless: WorkerlessDaemon, verb: str) -> None:
    jobs = [{**proof, **MORE[verb]} for proof in held_jobs(workerless, 2)]
    first = answers(workerless, verb, jobs)
    before = [ended(workerless, job["job_id"]) for job in jobs]

    again = answers(workerless, verb, jobs)

    assert again == [{**told, "replay": True} for told in first]
    assert [ended(workerless, job["job_id"]) for job in jobs] == before


def ended(workerless: WorkerlessDaemon, job_id: str) -> object:
    """All but the job's place in the queue, which the relay gives to it by and by."""
    job = workerless.rows("SELECT status, version, attempt_count, result::text FROM jobs WHERE id = $1", job_id)
    return job, workerless.state_of(job_id)[1:]


@pytest.mark.parametrize("verb", VERBS)
def test_report_that_is_twice_in_a_batch_counts_once(workerless: WorkerlessDaemon, verb: str) -> None:
    (proof,) = held_jobs(workerless, 1)

    told = answers(workerless, verb, [{**proof, **MORE[verb]}] * 2)

    assert told == [DONE[verb], {**DONE[verb], "replay": True}]
    assert len(workerless.outcomes_of(proof["job_id"])) == 1


def test_second_result_for_one_attempt_conflicts_with_the_first(workerless: WorkerlessDaemon) -> None:
    (proof,) = held_jobs(workerless, 1)

    told = answers(workerless, "complete", [{**proof, "result": 1}, {**proof, "result": 2}])

    assert told == [DONE["complete"], {"ok": False, "ack": True, "reason": "conflicting_outcome"}]
    assert workerless.read(proof["job_id"])["result"] == 1


def test_batch_may_repeat_what_single_calls_have_reported(workerless: WorkerlessDaemon) -> None:
    alone, fresh = held_jobs(workerless, 2)
    workerless.complete({"worker_id": "w-1", **alone}, {"b": 1, "a": 2})

    told = answers(workerless, "complete", [{**alone, "result": {"a": 2, "b": 1}}, {**fresh, "result": None}])

    assert told == [{**DONE["complete"], "replay": True}, DONE["complete"]]


# -- mixed batches ---------------------------------------------------------------------------------------------------

#: What makes a report one that cannot count, and why.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("token of another", {"lease_token": str(uuid.UUID(int=7))}, "superseded"),
    ("token that is none", {"lease_token": "nonsense"}, "superseded"),
    ("attempt of another", {"attempt_id": str(uuid.UUID(int=7))}, "superseded"),
    ("unknown job", {"job_id": str(uuid.UUID(int=7))}, "unknown_job"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_reports_that_cannot_count_are_refused_among_those_that_do(workerless: WorkerlessDaemon, verb: str) -> None:
    first, *others, last = held_jobs(workerless, 2 + len(REFUSED))
    before = [workerless.state_of(proof["job_id"]) for proof in others]
    wrong = [{**proof, **changed} for proof, (_, changed, _) in zip(others, REFUSED, strict=True)]

    told = answers(workerless, verb, [{**proof, **MORE[verb]} for proof in (first, *wrong, last)])

    reasons = [{**NOT_DONE[verb], "ack": True, "reason": reason} for _, _, reason in REFUSED]
    assert told == [DONE[verb], *reasons, DONE[verb]]
    assert [workerless.state_of(proof["job_id"]) for proof in others] == before


def test_job_that_was_reaped_and_one_that_is_done_are_told_apart(workerless: WorkerlessDaemon) -> None:
    reaped, done, canceled = held_jobs(workerless, 3)
    workerless.complete({"worker_id": "w-1", **done}, 1)
    workerless.api("POST", f"/v1/jobs/{canceled['job_id']}/cancel")
    workerless.fail({"worker_id": "w-1", **canceled})
    workerless.expire(reaped)
    workerless.reap()

    told = answers(workerless, "complete", [{**proof, "result": 2} for proof in (reaped, done, canceled)])

    reasons = [(one["ok"], one["ack"], one["reason"]) for one in told]
    assert reasons == [(False, True, "superseded"), *[(False, True, "conflicting_outcome")] * 2]


#: What single calls refuse with a problem document, and with which.
BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("complete", {"result": "a\0b"}, 422, "nul"),
    ("complete", {"result": {"a\0": 1}}, 422, "nul"),
    ("complete", {"result": deep(32)}, 422, "result_too_deep"),
    ("complete", {"result": "x" * 300_000}, 413, "too_large"),
    ("complete", {"job_id": "7"}, 422, "invalid"),
    ("complete", {"attempt_id": None}, 422, "invalid"),
    ("complete", {"resutl": 1}, 422, "invalid"),
    ("complete", {"worker_id": "w-1"}, 422, "invalid"),
    ("complete", {"message_id": 5}, 422, "invalid"),
    ("complete", {"lease_token": "x" * 129}, 422, "invalid"),
    ("fail", {"error": "boom"}, 422, "invalid"),
    ("fail", {"error": {"message": "no code"}}, 422, "invalid"),
    ("fail", {"error": {"code": "x", "retryable": "yes"}}, 422, "invalid"),
    ("fail", {"error": {"code": "x", "stack": "\0"}}, 422, "nul"),
    ("release", {"result": 1}, 422, "invalid"),
    ("release", {"job_id": "7"}, 422, "invalid"),
]


@pytest.mark.parametrize(("verb", "wrong", "status", "code"), BAD, ids=lambda value: str(value)[:40])
def test_bad_report_is_refused_by_name_and_the_others_count(
    workerless: WorkerlessDaemon, verb: str, wrong: dict[str, Any], status: int, code: str
) -> None:
    first, bad, last = held_jobs(workerless, 3)
    before = workerless.state_of(bad["job_id"])
    jobs = [{**proof, **MORE[verb]} for proof in (first, bad, last)]

    told = answers(workerless, verb, [jobs[0], {**jobs[1], **wrong}, jobs[2]])

    assert [told[0], told[2]] == [DONE[verb]] * 2
    problem = told[1].pop("problem")
    assert told[1] == {**NOT_DONE[verb], "ack": False}
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["detail"]
    assert bad["lease_token"] not in problem["detail"]
    assert workerless.state_of(bad["job_id"]) == before
    assert answers(workerless, verb, [jobs[1]]) == [DONE[verb]], "the job is still held"


@pytest.mark.parametrize(
    ("field", "text"),
    [("result", '{"a": 1, "a": 2}'), ("result", '1, "result": 2'), ("job_id", '"x", "job_id": "y"')],
    ids=["in the result", "result", "job_id"],
)
def test_report_with_a_doubled_key_is_refused_alone(workerless: WorkerlessDaemon, field: str, text: str) -> None:
    good, bad = held_jobs(workerless, 2)
    body = json.dumps({"worker_id": "w-1", "jobs": [{**good, "result": 1}, {**bad, "result": 1, field: "HERE"}]})

    answer = workerless.post("complete/batch", body.replace('"HERE"', text).encode())

    assert answer.status == 200, answer
    done, refused = answer.json["jobs"]
    assert done == DONE["complete"]
    assert (refused["ok"], refused["problem"]["code"]) == (False, "duplicate_key")


def test_batch_of_bad_reports_only_is_answered_report_by_report(workerless: WorkerlessDaemon) -> None:
    jobs = [{**proof, "result": "a\0b"} for proof in held_jobs(workerless, 2)]

    told = answers(workerless, "complete", jobs)

    assert [one["problem"]["code"] for one in told] == ["nul", "nul"]


def test_large_batch_with_a_bad_report_is_read_as_carefully(workerless: WorkerlessDaemon) -> None:
    """More than is parsed in the event loop."""
    held = held_jobs(workerless, 3)
    results: list[Any] = ["x" * 200_000, "a\0b", "y" * 200_000]

    told = answers(
        workerless, "complete", [{**proof, "result": value} for proof, value in zip(held, results, strict=True)]
    )

    assert [one["ok"] for one in told] == [True, False, True]
    assert told[1]["problem"]["code"] == "nul"


# -- batches that are refused as a whole -----------------------------------------------------------------------------


def nobody(verb: str) -> dict[str, Any]:
    return {**dict.fromkeys(("job_id", "attempt_id", "lease_token"), str(uuid.UUID(int=7))), **MORE[verb]}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"worker_id": "w-1"}, 422, "invalid"),
        ({"worker_id": "w-1", "jobs": []}, 422, "invalid"),
        ({"worker_id": "w-1", "jobs": {}}, 422, "invalid"),
        ({"worker_id": "w\n1", "jobs": [{}]}, 422, "invalid"),
        ({"worker_id": "", "jobs": [{}]}, 422, "invalid"),
        ({"worker_id": "redis:raw", "jobs": [{}]}, 422, "invalid"),
        ({"jobs": [{}]}, 422, "invalid"),
        ({"worker_id": "w-1", "jobs": [{}], "more": 1}, 422, "invalid"),
        ([], 422, "not_object"),
        (b"{", 400, "not_json"),
        (b'{"worker_id": "w", "worker_id": "w", "jobs": [{}]}', 400, "duplicate_key"),
        (b'{"worker_id": "w", "jobs": [{"result": NaN}]}', 400, "nan"),
        (b'{"worker_id": "w", "jobs": [{"result": "\\ud800"}]}', 422, "surrogate"),
        (b'{"worker_id": "w", "jobs": [{"result": ' + b"[" * 5000 + b"]" * 5000 + b"}]}", 400, "too_deep"),
        (b'{"worker_id": "\xff", "jobs": [{}]}', 400, "not_utf8"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_batch_that_is_none_is_refused_by_name(
    workerless: WorkerlessDaemon, verb: str, body: object, status: int, code: str
) -> None:
    answer = workerless.post(f"{verb}/batch", body)

    assert (answer.status, answer.code) == (status, code), answer.body


@pytest.mark.parametrize("verb", VERBS)
def test_batch_of_a_thousand_is_taken_and_one_more_is_not(workerless: WorkerlessDaemon, verb: str) -> None:
    many = [nobody(verb)] * 1_000

    told = answers(workerless, verb, many)

    assert {one["reason"] for one in told} == {"unknown_job"}
    assert send(workerless, verb, [*many, nobody(verb)]).code == "invalid"


@pytest.mark.parametrize("verb", VERBS)
def test_body_beyond_its_limit_is_refused_before_it_is_read(workerless: WorkerlessDaemon, verb: str) -> None:
    answer = send(workerless, verb, [{**nobody(verb), "stream": "x" * (4 << 20)}])

    assert (answer.status, answer.code) == (413, "body_too_large")


@pytest.mark.parametrize("verb", VERBS)
def test_body_must_say_that_it_is_json(workerless: WorkerlessDaemon, verb: str) -> None:
    body = {"worker_id": "w-1", "jobs": [nobody(verb)]}

    answer = workerless.api("POST", f"/internal/worker/{verb}/batch", body, {"Content-Type": "text/plain"})

    assert (answer.status, answer.code) == (415, "unsupported_media_type")
