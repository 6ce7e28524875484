from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.tickets.decide import decide
from jobd.tickets.edit import edit
from jobd.wire.tickets import EditTicket
from tests.tickets.factories import CONFIG, code_of, new_ticket, ticket_in, traces

if TYPE_CHECKING:
    from jobd.store.postgres import Database


def changes(**fields: Any) -> EditTicket:
    return msgspec.json.decode(msgspec.json.encode(fields), type=EditTicket)


async def test_what_is_not_mentioned_stays(db: Database) -> None:
    ticket = await new_ticket(db, acceptance_criteria="none", max_runs=2)

    edited = await edit(db.pool, ticket.ticket_id, changes(title="Count the dogs", payload={"n": 2}), config=CONFIG)

    assert (edited.title, bytes(edited.payload), edited.version) == ("Count the dogs", b'{"n": 2}', 2)
    assert (edited.acceptance_criteria, edited.max_runs, edited.budget_ms) == ("none", 2, 600_000)


async def test_another_task_brings_its_own_budget_unless_one_was_named(db: Database) -> None:
    plain, named = await new_ticket(db), await new_ticket(db, budget_ms=7)

    first = await edit(db.pool, plain.ticket_id, changes(task="other"), config=CONFIG)
    second = await edit(db.pool, named.ticket_id, changes(task="other"), config=CONFIG)

    assert (first.budget_ms, second.budget_ms) == (30_000, 7)


@pytest.mark.parametrize("status", ["TODO", "IN_PROGRESS", "BLOCKED", "DONE"])
async def test_only_a_new_ticket_can_be_edited(db: Database, status: str) -> None:
    ticket = await ticket_in(db, status)
    before = await traces(db)

    assert await code_of(edit(db.pool, ticket.ticket_id, changes(title="x"), config=CONFIG)) == "not_new"
    assert await traces(db) == before


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"task": "nothing"}, "unknown_task"),
        ({"gates": [{"type": "schema", "schema": {"type": 3}}]}, "bad_schema"),
        ({"payload": 3}, "not_object"),
        ({"blocked_on": ["00000000-0000-0000-0000-000000000007"]}, "unknown_blocker"),
    ],
    ids=["task", "schema", "payload", "blocker"],
)
async def test_an_edit_that_could_not_run_is_refused(db: Database, fields: dict[str, Any], code: str) -> None:
    ticket = await new_ticket(db)
    before = await traces(db)

    assert await code_of(edit(db.pool, ticket.ticket_id, changes(**fields), config=CONFIG)) == code
    assert await traces(db) == before


async def test_tickets_cannot_be_made_to_wait_for_each_other(db: Database) -> None:
    first = await new_ticket(db)
    second = await new_ticket(db, blocked_on=[str(first.ticket_id)])
    three = await new_ticket(db, blocked_on=[str(second.ticket_id)])

    around = changes(blocked_on=[str(three.ticket_id)])
    itself = changes(blocked_on=[str(first.ticket_id)])

    assert await code_of(edit(db.pool, first.ticket_id, around, config=CONFIG)) == "blocker_cycle"
    assert await code_of(edit(db.pool, first.ticket_id, itself, config=CONFIG)) == "blocker_cycle"


async def test_an_edit_that_comes_after_the_approval_is_refused(db: Database) -> None:
    ticket = await new_ticket(db)
    await decide(db.pool, "APPROVE", ticket.ticket_id, by="bob")

    assert await code_of(edit(db.pool, ticket.ticket_id, changes(title="x"), config=CONFIG)) == "not_new"
