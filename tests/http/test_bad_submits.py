"""The catalogue of bad submits: each is refused with its status and code, and leaves no trace."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api


def job(**fields: Any) -> bytes:
    return json.dumps({"task": "embed", "payload": {}, **fields}).encode()


def with_payload(text: bytes) -> bytes:
    return b'{"task":"embed","payload":%s}' % text


def with_value(text: bytes) -> bytes:
    return with_payload(b'{"x":%s}' % text)


DEEP = b"[" * 100_000
KEYS = b"{" + b",".join(b'"%d":0' % n for n in range(20_000)) + b"}"
BOM = b"\xef\xbb\xbf"

SYNTAX: list[tuple[str, bytes, int, str]] = [
    ("J1 empty", b"", 400, "not_json"),
    ("J1 blank", b" \n", 400, "not_json"),
    ("J1 null", b"null", 422, "not_object"),
    ("J1 array", b"[]", 422, "not_object"),
    ("J1 string", b'"x"', 422, "not_object"),
    ("J1 number", b"1", 422, "not_object"),
    ("J1 payload null", with_payload(b"null"), 422, "not_object"),
    ("J1 payload array", with_payload(b"[{}]"), 422, "not_object"),
    ("J1 payload string", with_payload(b'"{}"'), 422, "not_object"),
    ("J2 cut short", job()[:-1], 400, "not_json"),
    ("J2 garbage behind", job() + b"x", 400, "not_json"),
    ("J2 two documents", job() + job(), 400, "not_json"),
    ("J2 single quotes", b"{'task':'embed'}", 400, "not_json"),
    ("J2 comma at the end", b'{"task":"embed","payload":{},}', 400, "not_json"),
    ("J2 comment", b'{"task":"embed","payload":{}/**/}', 400, "not_json"),
    ("J2 byte order mark", BOM + job(), 400, "bom"),
    ("J2 UTF-16", job().decode().encode("utf-16"), 400, "not_utf8"),
    ("J3 deep arrays", DEEP, 400, "too_deep"),
    ("J3 deep payload", with_value(DEEP), 400, "too_deep"),
    ("J3 one too deep", with_value(b"[" * 31 + b"]" * 31), 400, "too_deep"),
    ("J4 task twice", b'{"task":"embed","task":"chat","payload":{}}', 400, "duplicate_key"),
    ("J4 in the payload", with_payload(b'{"a":1,"a":2}'), 400, "duplicate_key"),
    ("J4 by escape", with_payload(b'{"a":1,"\\u0061":2}'), 400, "duplicate_key"),
    ("J5 NaN", with_value(b"NaN"), 400, "nan"),
    ("J5 Infinity", with_value(b"Infinity"), 400, "nan"),
    ("J5 -Infinity", with_value(b"-Infinity"), 400, "nan"),
    ("J6 1e400", with_value(b"1e400"), 422, "number_range"),
    ("J6 5 000 digits", with_value(b"9" * 5_000), 422, "number_range"),
    ("J6 in a field", job()[:-1] + b',"ttl_s":1e400}', 422, "number_range"),
    ("J7 nul in a value", with_value(b'"\\u0000"'), 422, "nul"),
    ("J7 nul in a key", with_payload(b'{"a\\u0000":1}'), 422, "nul"),
    ("J7 nul in the task", b'{"task":"\\u0000","payload":{}}', 422, "nul"),
    ("J7 bare control byte", with_value(b'"\x00"'), 400, "not_json"),
    ("J8 half a pair", with_value(b'"\\ud800"'), 422, "surrogate"),
    ("J8 pair in the wrong order", with_value(b'"\\udc00\\ud800"'), 422, "surrogate"),
    ("J9 stray byte", with_value(b'"\xff"'), 400, "not_utf8"),
    ("J9 overlong", with_value(b'"\xc0\xaf"'), 400, "not_utf8"),
    ("J9 cut character", with_value(b'"\xe2\x82"'), 400, "not_utf8"),
    ("J10 very many keys", with_payload(KEYS), 422, "too_many_keys"),
    ("J10 a key of 100 KB", with_payload(b'{"%s":1}' % (b"k" * 100_000)), 422, "key_too_long"),
    ("J22 payload too large", with_payload(b'{"a":"%s"}' % (b"x" * 204_800)), 413, "too_large"),
    ("J22 body too large", job(padding="x" * (204_800 + 131_072)), 413, "body_too_large"),
]

OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "ttl_s": (0, -1, 30 * 86_400 + 1),
    "priority": (1001, -1001),
    "max_attempts": (0, -1, 101),
    "timeout_s": (0, -1, 30 * 86_400 + 0.5),
    "delay_s": (-1, -0.5, 366 * 86_400 + 1),
    "expires_in_s": (0, -1, 366 * 86_400 + 1),
}
BAD_KEYS: tuple[Any, ...] = ("", "*", "x" * 201, 1, True, None, [], {})
BAD_EXPIRIES: tuple[Any, ...] = (
    *("9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00"),
    *("2026-01-01", "soon", "", 0, True, None, []),
)
MEANING: list[tuple[str, bytes, int, str]] = [
    ("J12 unknown task", job(task="fly"), 422, "unknown_task"),
    ("J12 unknown queue", job(queue="nowhere"), 422, "unknown_queue"),
    *[
        (f"J12 {field} {value[:9]!r}", job(**{field: value}), 422, "invalid")
        for field in ("task", "queue")
        for value in ("", "x" * 300, "embed\nx", "a:b", "*", "Embed", "é", " embed", "../x")
    ],
    ("J12 no task", b'{"payload":{}}', 422, "invalid"),
    ("J12 no payload", b'{"task":"embed"}', 422, "invalid"),
    ("J13 unknown field", job(prio=1), 422, "invalid"),
    ("J13 field in capitals", job(TTL_S=1), 422, "invalid"),
    ("J20 an id of one's own", job(job_id="0190a6e0-0000-7000-8000-000000000000"), 422, "invalid"),
    *[
        (f"J14 {field} = {value!r}", job(**{field: value}), 422, "invalid")
        for field, bad in OUT_OF_RANGE.items()
        for value in (*bad, 2**31, 2**63, 2**64, "5", True, None, [], {})
    ],
    *[(f"J14 {field} = 1.5", job(**{field: 1.5}), 422, "invalid") for field in ("ttl_s", "priority", "max_attempts")],
    *[
        (f"J15 {value!r}", job(run_after=value), 422, "invalid")
        for value in (
            *("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"),
            *("2026-01-01T00:00:00", "2026-01-01", "2016-12-31T23:59:60Z", "infinity", "now", "", 0, 1e12, True, None),
            *("2026-02-30T00:00:00Z", "2026-01-01T25:00:00Z", "2026-01-01T00:00:00+99:00"),
        )
    ],
    *[(f"expires_at {value!r}", job(expires_at=value), 422, "invalid") for value in BAD_EXPIRIES],
    *[(f"limit_key {str(value)[:9]!r}", job(limit_key=value), 422, "invalid") for value in BAD_KEYS],
    ("expires_at and expires_in_s", job(expires_at="2100-01-01T00:00:00Z", expires_in_s=1), 422, "invalid"),
    ("expires_in_s and run_after", job(run_after="2026-01-01T00:00:00Z", expires_in_s=1), 422, "invalid"),
    ("expires before its delay ends", job(delay_s=10, expires_in_s=10), 422, "invalid"),
    ("J15 both", job(run_after="2026-01-01T00:00:00Z", delay_s=1), 422, "invalid"),
    *[(f"dedupe {value!r}", job(dedupe=value), 422, "invalid") for value in ("all", "", True, None, 1)],
    ("dedupe without a canonical form", job(dedupe="active", payload={"n": 2**60 + 1}), 422, "not_canonical"),
]


@pytest.mark.parametrize(("body", "status", "code"), [pytest.param(*row[1:], id=row[0]) for row in SYNTAX + MEANING])
def test_a_bad_submit_is_refused_without_a_trace(
    api: Api, workers: DatabaseWorkers, body: bytes, status: int, code: str
) -> None:
    before = workers.traces()

    answer = api("POST", "/v1/jobs", body)

    assert (answer.status, answer.code) == (status, code), answer.body
    assert workers.traces() == before


@pytest.mark.parametrize(("body", "status", "code"), [pytest.param(*row[1:], id=row[0]) for row in MEANING])
def test_a_batch_with_a_bad_item_is_refused_whole_and_names_it(
    api: Api, workers: DatabaseWorkers, body: bytes, status: int, code: str
) -> None:
    before = workers.traces()

    answer = api("POST", "/v1/jobs/batch", b"[%s,%s,%s]" % (job(), body, body))

    assert (answer.status, answer.code, answer.json["index"]) == (status, code, 1), answer.body
    assert workers.traces() == before


HEADERS = [
    ("J16 empty key", {"Idempotency-Key": ""}, 400, "bad_idempotency_key"),
    ("J16 key of 256", {"Idempotency-Key": "k" * 256}, 400, "bad_idempotency_key"),
    ("J16 key with a space", {"Idempotency-Key": "a b"}, 400, "bad_idempotency_key"),
    ("J16 key with a tab", {"Idempotency-Key": "a\tb"}, 400, "bad_idempotency_key"),
    ("J16 key in Latin-1", {"Idempotency-Key": "\xe9"}, 400, "bad_idempotency_key"),
    ("H15 form", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    ("H15 text", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
    ("H15 UTF-16", {"Content-Type": "application/json; charset=utf-16"}, 415, "unsupported_media_type"),
    ("H15 no type", {"Content-Type": ""}, 415, "unsupported_media_type"),
    ("H15 lines", {"Content-Type": "application/x-ndjson"}, 415, "unsupported_media_type"),
    ("H15 gzip", {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
]


@pytest.mark.parametrize(("headers", "status", "code"), [pytest.param(*row[1:], id=row[0]) for row in HEADERS])
def test_a_submit_with_bad_headers_is_refused_without_a_trace(
    api: Api, workers: DatabaseWorkers, headers: dict[str, str], status: int, code: str
) -> None:
    before = workers.traces()

    answer = api("POST", "/v1/jobs", job(), headers)

    assert (answer.status, answer.code) == (status, code), answer.body
    assert workers.traces() == before


def test_a_key_that_is_sent_twice_is_refused_without_a_trace(api: Api, workers: DatabaseWorkers) -> None:
    before = workers.traces()
    connection = http.client.HTTPConnection(api.address, timeout=10)
    connection.putrequest("POST", "/v1/jobs")
    for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(job())))):
        connection.putheader(name, value)
    connection.putheader("Idempotency-Key", "same")
    connection.putheader("Idempotency-Key", "same")
    connection.endheaders(job())

    answer = connection.getresponse()

    assert (answer.status, json.loads(answer.read())["code"]) == (400, "bad_idempotency_key")
    connection.close()
    assert workers.traces() == before


def test_an_endless_chunked_body_is_cut_off(api: Api, workers: DatabaseWorkers) -> None:
    before = workers.traces()
    connection = http.client.HTTPConnection(api.address, timeout=10)
    connection.putrequest("POST", "/v1/jobs")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    for _ in range(21):  # and no end
        connection.send(b"%x\r\n%s\r\n" % (16_384, b" " * 16_384))

    answer = connection.getresponse()

    assert (answer.status, json.loads(answer.read())["code"]) == (413, "body_too_large")
    connection.close()
    assert workers.traces() == before


@pytest.mark.parametrize(
    ("code", "field", "known"),
    [("unknown_task", {"task": "fly"}, "chat, code, embed"), ("unknown_queue", {"queue": "far"}, "default, fast")],
)
def test_an_unknown_name_is_answered_with_the_known_ones(
    api: Api, code: str, field: dict[str, str], known: str
) -> None:
    answer = api("POST", "/v1/jobs", job(**field))

    assert answer.code == code
    assert known in answer.json["detail"]


@pytest.mark.parametrize(
    ("fields", "path"), [({"ttl_s": 0}, "$.ttl_s"), ({"delay_s": "x"}, "$.delay_s"), ({"prio": 1}, "prio")]
)
def test_a_refusal_names_the_field_and_tells_nothing_of_the_payload(
    api: Api, fields: dict[str, Any], path: str
) -> None:
    answer = api("POST", "/v1/jobs", job(payload={"password": "SECRET"}, **fields))

    assert path in answer.json["detail"]
    assert b"SECRET" not in answer.body
