"""Payloads that Postgres or another parser would choke on: refused by name before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from jobd.lifecycle.enqueue import Created, enqueue
from jobd.wire.json_check import BadPayload, check_payload
from tests.support.factories import new_job

if TYPE_CHECKING:
    from jobd.store.postgres import Database

LIMIT = 204_800

BAD = [
    (b'{"a": "\\u0000"}', "nul"),
    (b'{"\\u0000": 1}', "nul"),
    (b'{"a": "\\ud800"}', "surrogate"),
    (b'{"a": NaN}', "nan"),
    (b'{"a": Infinity}', "nan"),
    (b'{"a": 1e400}', "number_range"),
    (b'{"a": ' + b"9" * 5000 + b"}", "number_range"),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep"),
    (b'{"a": "' + b"x" * LIMIT + b'"}', "too_large"),
    (b'{"a": 1, "a": 2}', "duplicate_key"),
    (b"[]", "not_object"),
    (b"null", "not_object"),
    (b'"x"', "not_object"),
    (b"1", "not_object"),
    (b"", "not_json"),
    (b'{"a": 1', "not_json"),
    (b'{"a": 1} {}', "not_json"),
    (b'\xef\xbb\xbf{"a": 1}', "bom"),
    (b'{"a": "\xff"}', "not_utf8"),
]


@pytest.mark.parametrize(("raw", "code"), BAD, ids=[f"{n}-{code}" for n, (_, code) in enumerate(BAD)])
async def test_bad_payload_has_a_name_and_writes_nothing(db: Database, raw: bytes, code: str) -> None:
    with pytest.raises(BadPayload) as refused:
        check_payload(raw, LIMIT)

    assert refused.value.code == code
    assert await db.pool.fetchval("SELECT count(*) FROM jobs") == 0


@pytest.mark.parametrize("text", ['{"a": "\\u0000"}', '{"a": "\\ud800"}', '{"a": NaN}', "[1]", "{", "null"])
async def test_bad_text_that_gets_through_undoes_its_whole_batch(db: Database, text: str) -> None:
    batch = [new_job(), new_job(payload=text), new_job()]

    with pytest.raises(asyncpg.PostgresError):
        await enqueue(db, batch)

    for table in ("jobs", "outbox", "queue_counts"):
        assert await db.pool.fetchval(f"SELECT count(*) FROM {table}") == 0


async def test_awkward_but_good_payloads_are_stored_as_they_are(db: Database) -> None:
    good = [b'{"__proto__": 1, "constructor": {}, "$ref": "#"}', '{"text": "\\ud83d\\ude00 grüße \\u202e"}'.encode()]
    jobs = [new_job(payload=raw.decode()) for raw in good if check_payload(raw, LIMIT)]

    assert await enqueue(db, jobs) == [Created(job.id) for job in jobs]
