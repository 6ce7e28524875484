"""What bad workers send, row by row: each is refused by name, and the job stands as it stood.

Refused input is a problem document (status and code). A report that cannot count any more is an answer: 200 with `ok`
false, whether to acknowledge, and why.
"""

from __future__ import annotations

import json
import socket
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.workerless import CONFIG, WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.http import Answer


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(CONFIG + "[limits]\nresult_bytes = 1048576\n") as made:
        yield made


Held = dict[str, Any]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


ABSENT: Any = "<left out>"


def without_absent(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not ABSENT}


# Bodies that are refused whoever sends them


class Bad(NamedTuple):
    row: str
    verb: str
    #: What is wrong about an otherwise good body.
    wrong: dict[str, Any]
    status: int
    code: str


ERROR = {"code": "boom"}

BAD_DELAYS: tuple[Any, ...] = (-1, 1e9, "5", None, True, [])

BAD: list[Bad] = [
    Bad("W10 result with NUL", "complete", {"result": "a\0b"}, 422, "nul"),
    Bad("W10 result key with NUL", "complete", {"result": {"a\0": 1}}, 422, "nul"),
    Bad("W10 result too deep", "complete", {"result": deep(40)}, 422, "result_too_deep"),
    Bad("W10 result with half a pair", "complete", {"result": "\ud800"}, 422, "surrogate"),
    Bad("W10 result too large", "complete", {"result": "x" * 1_048_576}, 413, "too_large"),
    Bad("W10 result far too large", "complete", {"result": "x" * 1_100_000}, 413, "body_too_large"),
    Bad("no result", "complete", {"result": ABSENT}, 422, "invalid"),
    Bad("unknown field", "complete", {"resutl": 1}, 422, "invalid"),
    Bad("no job", "complete", {"job_id": ABSENT}, 422, "invalid"),
    Bad("job is no id", "complete", {"job_id": "7"}, 422, "invalid"),
    Bad("attempt is no id", "complete", {"attempt_id": "'; DROP TABLE jobs"}, 422, "invalid"),
    Bad("no token", "complete", {"lease_token": ABSENT}, 422, "invalid"),
    Bad("token is no string", "complete", {"lease_token": None}, 422, "invalid"),
    Bad("message is no string", "complete", {"message_id": 5}, 422, "invalid"),
    Bad("no worker", "complete", {"worker_id": ABSENT}, 422, "invalid"),
    Bad("W12 retryable is a word", "fail", {"error": {**ERROR, "retryable": "yes"}}, 422, "invalid"),
    Bad("W12 retryable is a number", "fail", {"error": {**ERROR, "retryable": 1}}, 422, "invalid"),
    Bad("W12 retryable is null", "fail", {"error": {**ERROR, "retryable": None}}, 422, "invalid"),
    Bad("error is a string", "fail", {"error": "boom"}, 422, "invalid"),
    Bad("error without code", "fail", {"error": {"message": "x"}}, 422, "invalid"),
    Bad("error with another field", "fail", {"error": {**ERROR, "trace": "x"}}, 422, "invalid"),
    Bad("stack with NUL", "fail", {"error": {**ERROR, "stack": "\0"}}, 422, "nul"),
    Bad("no error", "fail", {"error": ABSENT}, 422, "invalid"),
    *(Bad(f"delay {delay_s!r}", "release", {"delay_s": delay_s}, 422, "invalid") for delay_s in BAD_DELAYS),
    Bad("W16 worker of 10 KB", "fail", {"worker_id": "w" * 10_240}, 422, "invalid"),
    Bad("W16 worker with newline", "complete", {"worker_id": "w\n1"}, 422, "invalid"),
    Bad("worker with an escape", "heartbeat", {"worker_id": "\x1b[31m"}, 422, "invalid"),
    Bad("worker without a name", "heartbeat", {"worker_id": ""}, 422, "invalid"),
    Bad("worker is a blank", "heartbeat", {"worker_id": " "}, 422, "invalid"),
    Bad("worker as if it spoke Redis", "heartbeat", {"worker_id": "redis:raw-1"}, 422, "invalid"),
    Bad("worker as if it were slots", "heartbeat", {"worker_id": "slots:board:1"}, 422, "invalid"),
    Bad("heartbeat for one and for many", "heartbeat", {"jobs": []}, 422, "invalid"),
    Bad("heartbeat without token", "heartbeat", {"lease_token": ABSENT}, 422, "invalid"),
    Bad("heartbeat with a version", "heartbeat", {"claim_version": 1}, 422, "invalid"),
]


@pytest.fixture(scope="module")
def held(workerless: WorkerlessDaemon) -> Held:
    """One job for the whole table: no row may hurt it."""
    return workerless.running(queue="slow")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.row)
def test_bad_report_is_refused_by_name_and_changes_nothing(workerless: WorkerlessDaemon, held: Held, bad: Bad) -> None:
    good: dict[str, Any] = {
        "complete": {**held, "result": {}},
        "fail": {**held, "error": ERROR},
        "release": held,
        "heartbeat": {name: held[name] for name in ("worker_id", "job_id", "lease_token")},
    }[bad.verb]
    before = workerless.state_of(held["job_id"])

    answer = workerless.post(bad.verb, without_absent({**good, **bad.wrong}))

    assert (answer.status, answer.code) == (bad.status, bad.code), answer.body
    assert "ack" not in answer.json
    assert workerless.state_of(held["job_id"]) == before
    assert held["lease_token"] not in answer.body.decode()


def test_job_is_still_held_after_all_that_and_can_be_failed(workerless: WorkerlessDaemon) -> None:
    held = workerless.running(queue="slow")
    assert workerless.post("complete", {**held, "result": "a\0b"}).code == "nul"

    failed = workerless.fail(held, code="result_unfit", retryable=False)

    assert (failed["ok"], failed["dlq"]) == (True, True)


def test_result_of_50_mb_is_refused_before_it_is_read(workerless: WorkerlessDaemon, held: Held) -> None:
    before = workerless.state_of(held["job_id"])

    answer = send_and_stop_early(workerless, json.dumps({**held, "result": ""}).encode(), 50_000_000)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer
    assert workerless.state_of(held["job_id"]) == before


def send_and_stop_early(workerless: WorkerlessDaemon, start: bytes, length: int) -> bytes:
    """Announce a long body, send what fits into two megabytes of it, and hear the answer."""
    host, _, port = workerless.daemon.address.rpartition(":")
    head = (
        "POST /internal/worker/complete HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(head.encode() + start[:-2])
        try:
            for _ in range(32):
                line.sendall(b"x" * 65_536)
        except OSError:
            pass  # it has stopped listening, as it should
        answer = b""
        while b"}" not in answer:
            part = line.recv(65_536)
            if not part:
                break
            answer += part
        return answer


# Claims


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"max_wait_ms": -1}, "invalid"),
        ({"max_wait_ms": 1.5}, "invalid"),
        ({"max_wait_ms": "5"}, "invalid"),
        ({"max_wait_ms": True}, "invalid"),
        ({"streams": []}, "invalid"),
        ({"streams": [f"jobs:stream:q{n}" for n in range(1000)]}, "invalid"),
        ({"streams": "jobs:stream"}, "invalid"),
        ({"streams": [None]}, "invalid"),
        ({"streams": ["jobs:stream", "jobs:stream:nowhere"]}, "unknown_stream"),
        ({"streams": ["default"]}, "unknown_stream"),
        ({"streams": ["jobs:stream:default"]}, "unknown_stream"),
        ({"streams": ["jobs:stream:"]}, "unknown_stream"),
        ({"streams": ["jobs:stream:*"]}, "unknown_stream"),
        ({"streams": ["jobs:dlq"]}, "unknown_stream"),
        ({"streams": [""]}, "unknown_stream"),
        ({"streams": ABSENT}, "invalid"),
        ({"worker_id": ABSENT}, "invalid"),
        ({"worker_id": "w" * 129}, "invalid"),
        ({"worker_id": "a\nb"}, "invalid"),
        ({"worker_id": "a\u202eb"}, "invalid"),
        ({"worker_id": "redis:x"}, "invalid"),
        ({"queue": "default"}, "invalid"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_claim_is_refused_and_takes_no_job(workerless: WorkerlessDaemon, wrong: dict[str, Any], code: str) -> None:
    job_id = workerless.submit(queue="gpu")
    before = workerless.state_of(job_id)[1:]

    answer = workerless.post(
        "claim",
        without_absent({"worker_id": "w-1", "streams": ["jobs:stream:gpu"], "max_wait_ms": 5_000, **wrong}),
    )

    assert (answer.status, answer.code) == (422, code), answer.body
    assert workerless.state_of(job_id)[1:] == before
    assert workerless.read(job_id)["status"] == "queued"


# Heartbeats of those who do not hold the job


def test_heartbeat_without_the_lease_is_told_that_it_is_lost(workerless: WorkerlessDaemon) -> None:
    running, done, requeued = (workerless.running() for _ in range(3))
    workerless.complete(done, 1)
    workerless.fail(requeued, retryable=True)
    unknown = {**running, "job_id": str(uuid.uuid4())}
    wrong = [{**running, "lease_token": token} for token in (str(uuid.uuid4()), "", "x", done["lease_token"])]

    answers = [workerless.beat(one) for one in (done, requeued, unknown, *wrong)]

    assert {(one["ok"], one["reason"], one["lease_expires_at"]) for one in answers} == {(False, "lease_lost", None)}
    assert workerless.beat(running)["ok"]
    clear(workerless)


@pytest.mark.parametrize("jobs", [[], [{}], [{"job_id": "01a1e32b-6742-7000-927b-55333af42aa0"}], "x", [None]], ids=str)
def test_bad_list_of_heartbeats_is_refused(workerless: WorkerlessDaemon, jobs: object) -> None:
    answer = workerless.post("heartbeat", {"worker_id": "w-1", "jobs": jobs})

    assert (answer.status, answer.code) == (422, "invalid")


# Reports that come too late, twice, or from somebody else


def other_token(workerless: WorkerlessDaemon, held: Held) -> Held:
    return {**held, "lease_token": workerless.running()["lease_token"]}


def completed(workerless: WorkerlessDaemon, held: Held) -> Held:
    assert workerless.complete(held, {"first": True})["ok"]
    return held


def failed(workerless: WorkerlessDaemon, held: Held) -> Held:
    assert workerless.fail(held, retryable=False)["ok"]
    return held


def reaped(workerless: WorkerlessDaemon, held: Held) -> Held:
    workerless.expire(held)
    workerless.reap()
    return held


def taken_over(workerless: WorkerlessDaemon, held: Held) -> Held:
    reaped(workerless, held)
    assert workerless.claim("jobs:stream:slow")["job_id"] == held["job_id"]
    return held


def canceled(workerless: WorkerlessDaemon, held: Held) -> Held:
    workerless.api("POST", f"/v1/jobs/{held['job_id']}/cancel")
    return reaped(workerless, held)


def canceled_and_failed(workerless: WorkerlessDaemon, held: Held) -> Held:
    workerless.api("POST", f"/v1/jobs/{held['job_id']}/cancel")
    assert workerless.fail(held)["reason"] == "canceled"
    return held


class Late(NamedTuple):
    row: str
    #: What happened before, and with which proof the report then comes.
    before: Callable[[WorkerlessDaemon, Held], Held]
    reason: str
    verbs: tuple[str, ...] = ("complete", "fail")


LATE: list[Late] = [
    Late("W1 wrong token", lambda workerless, held: {**held, "lease_token": str(uuid.uuid4())}, "superseded"),
    Late("W1 empty token", lambda workerless, held: {**held, "lease_token": ""}, "superseded"),
    Late("W1 token that is none", lambda workerless, held: {**held, "lease_token": "secret"}, "superseded"),
    Late("W1 token of another job", other_token, "superseded"),
    Late("W2 wrong attempt", lambda workerless, held: {**held, "attempt_id": str(uuid.uuid4())}, "superseded"),
    Late("W2 token for attempt", lambda workerless, held: {**held, "attempt_id": held["lease_token"]}, "superseded"),
    Late("W4 W5 after another outcome", completed, "conflicting_outcome"),
    Late("W5 after fail", failed, "conflicting_outcome"),
    Late("W6 after reap", reaped, "superseded"),
    Late("W6 after another took over", taken_over, "superseded"),
    Late("W7 canceled and reaped", canceled, "canceled"),
    Late("W7 canceled by its own fail", canceled_and_failed, "conflicting_outcome"),
    Late("W8 unknown job", lambda workerless, held: {**held, "job_id": str(uuid.uuid4())}, "unknown_job"),
]
CASES = [pytest.param(late, verb, id=f"{late.row}: {verb}") for late in LATE for verb in late.verbs]


@pytest.mark.parametrize(("late", "verb"), CASES)
def test_report_that_cannot_count_is_answered_and_changes_nothing(
    workerless: WorkerlessDaemon, late: Late, verb: str
) -> None:
    held = workerless.running(queue="slow")
    shown = late.before(workerless, held)
    before = settled(workerless, held)

    answer = report(workerless, verb, shown)

    assert answer.status == 200, answer.body
    refused = {"ok": False, "ack": True, "reason": late.reason}
    assert answer.json == (refused if verb == "complete" else {**refused, "requeued": False, "dlq": False})
    assert settled(workerless, held) == before
    clear(workerless)


def report(workerless: WorkerlessDaemon, verb: str, held: Held) -> Answer:
    """Another outcome than any that was told before."""
    if verb == "complete":
        return workerless.post("complete", {**held, "result": {"late": True}})
    return workerless.post("fail", {**held, "error": {"code": "late", "retryable": True}})


def settled(workerless: WorkerlessDaemon, held: Held) -> object:
    """All about the job but its place in the queue, which the relay gives to it by and by."""
    job = workerless.rows(
        "SELECT status, version, attempt_count, result::text, error::text FROM jobs WHERE id = $1", held["job_id"]
    )
    return job, workerless.state_of(held["job_id"])[1:]


def clear(workerless: WorkerlessDaemon) -> None:
    """Nothing is left in the queue for the next row."""
    for (job_id,) in workerless.rows("SELECT id FROM jobs WHERE status = 'queued'"):
        workerless.api("POST", f"/v1/jobs/{job_id}/cancel")


# Whatever the verb


@pytest.mark.parametrize("verb", ["claim", "heartbeat", "complete", "fail"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "not_json"),
        (b"{", 400, "not_json"),
        (b"null", 422, "not_object"),
        (b"[]", 422, "not_object"),
        (b"\xef\xbb\xbf{}", 400, "bom"),
        (b'{"worker_id": "\xff"}', 400, "not_utf8"),
        (b'{"worker_id": "a", "worker_id": "b"}', 400, "duplicate_key"),
        (b'{"worker_id": NaN}', 400, "nan"),
        (b"{}", 422, "invalid"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_body_that_is_no_report_is_refused(
    workerless: WorkerlessDaemon, verb: str, body: bytes, status: int, code: str
) -> None:
    answer = workerless.api("POST", f"/internal/worker/{verb}", body)

    assert (answer.status, answer.code) == (status, code)


def test_no_token_is_found_in_the_log(workerless: WorkerlessDaemon) -> None:
    workerless.complete(workerless.running())
    workerless.running()
    tokens = [
        str(token)
        for (token,) in workerless.rows("SELECT lease_token FROM attempts UNION SELECT lease_token FROM leases")
    ]
    log = workerless.daemon.log_file.read_text()

    assert tokens
    assert [token for token in tokens if token in log] == []
