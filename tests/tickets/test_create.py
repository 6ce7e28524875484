from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from jobd.lifecycle.enqueue import IdempotencyKey
from jobd.store.ids import new_id
from jobd.tickets import create_once as module
from jobd.tickets.create import create
from jobd.tickets.read import read_ticket
from jobd.wire.tickets import CreateTicket
from tests.tickets.factories import CONFIG, asked, code_of, new_ticket, traces

if TYPE_CHECKING:
    from jobd.store.postgres import Database

GATES = [
    {"type": "schema", "schema": {"type": "object"}},
    {"type": "minimum", "pointer": "/score", "value": 0.8},
    {"type": "sign_off"},
    {"type": "command", "name": "agree"},
]


async def test_a_ticket_is_new_and_says_what_was_asked(db: Database) -> None:
    blocker = await new_ticket(db)

    made = await new_ticket(
        db,
        acceptance_criteria=["there are numbers", "they are right"],
        gates=GATES,
        blocked_on=[str(blocker.ticket_id)],
        budget_ms=5000,
        max_runs=3,
        repo_ref="git@example:cats",
        base_branch="main",
    )

    assert (made.status, made.step, made.approved_by, made.version, made.created_by) == ("NEW", None, None, 1, "ann")
    assert made.acceptance_criteria == ["there are numbers", "they are right"]
    assert msgspec.to_builtins(made.gates) == GATES
    assert (made.blocked_on, made.budget_ms, made.max_runs) == ([blocker.ticket_id], 5000, 3)
    assert (made.repo_ref, made.base_branch, bytes(made.payload)) == ("git@example:cats", "main", b'{"n": 1}')
    assert await read_ticket(db.pool, made.ticket_id) == made


async def test_without_a_budget_a_ticket_has_its_tasks_timeout(db: Database) -> None:
    assert (await new_ticket(db, task="other")).budget_ms == 30_000


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"task": "nothing"}, "unknown_task"),
        ({"gates": [{"type": "command", "name": "rm"}]}, "unknown_gate"),
        ({"gates": [{"type": "schema", "schema": {"type": "cat"}}]}, "bad_schema"),
        ({"gates": [{"type": "schema", "schema": {"$ref": "http://127.0.0.1:9/x"}}]}, "bad_schema"),
        ({"gates": [{"type": "schema", "schema": {"pattern": "("}}]}, "bad_schema"),
        ({"gates": [{"type": "schema", "schema": {"const": "x" * 70_000}}]}, "bad_schema"),
        ({"gates": [{"type": "minimum", "pointer": "score", "value": 1}]}, "bad_gate"),
        ({"gates": [{"type": "minimum", "pointer": "/a~2", "value": 1}]}, "bad_gate"),
        ({"gates": [{"type": "sign_off"}, {"type": "sign_off"}]}, "bad_gate"),
        ({"blocked_on": [str(UUID(int=7))]}, "unknown_blocker"),
        ({"payload": [1]}, "not_object"),
        ({"payload": {"text": "x" * 210_000}}, "too_large"),
        ({"payload": {"text": "{{prompt}}" * 200}, "acceptance_criteria": "y" * 19_000}, "too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_ticket_that_could_not_run_is_refused(db: Database, fields: dict[str, Any], code: str) -> None:
    before = await traces(db)

    refused = await code_of(create(db.pool, asked(**fields), created_by="ann", config=CONFIG))

    assert refused == code
    assert await traces(db) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"title": ""},
        {"title": None},
        {"status": "DONE"},
        {"gates": [{"type": "magic"}]},
        {"gates": [{"type": "minimum", "pointer": "/a"}]},
        {"gates": [{"type": "command", "argv": ["/bin/sh"]}]},
        {"gates": [{"type": "command", "name": "agree", "argv": ["/bin/sh"]}]},
        {"gates": [{"type": "sign_off"}] * 21},
        {"budget_ms": 0},
        {"budget_ms": 10**12},
        {"max_runs": 0},
        {"blocked_on": ["nobody"]},
        {"created_by": ""},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_not_decoded(fields: dict[str, Any]) -> None:
    body = msgspec.json.encode({"title": "t", "task": "work", "payload": {}, **fields})

    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=CreateTicket)


async def test_ticket_whose_key_another_request_holds_is_refused_for_a_moment(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEY_WAIT_MS", 50)
    key = IdempotencyKey("ann", f"key-{new_id()}", b"hash", 600)
    async with db.pool.acquire() as other, other.transaction():
        first = await other.fetchval(
            "INSERT INTO idempotency_keys (principal, key, job_id, body_hash, expires_at)"
            " VALUES ('ann', $1, $2, 'x', now()) RETURNING key",
            key.key,
            new_id(),
        )

        busy = await code_of(module.create_once(db, asked(), key, created_by="ann", config=CONFIG))
        await other.execute("DELETE FROM idempotency_keys WHERE key = $1", first)
    free = await module.create_once(db, asked(), key, created_by="ann", config=CONFIG)
    again = await module.create_once(db, asked(), key, created_by="ann", config=CONFIG)

    assert busy == "key_busy"
    assert again == free
