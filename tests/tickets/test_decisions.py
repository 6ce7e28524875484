"""What people decide: each verb moves a ticket from where it applies, and is refused everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import anyio
import pytest

from jobd.store.ids import new_id
from jobd.tickets.decide import decide
from jobd.tickets.errors import TicketRefused
from jobd.tickets.machine import TRANSITIONS
from jobd.tickets.read import read_ticket
from jobd.tickets.trail import read_log, read_trail
from tests.tickets.factories import code_of, new_ticket, ticket_in, todo_ticket, traces

if TYPE_CHECKING:
    from jobd.store.postgres import Database
    from jobd.wire.tickets import DecisionKind

#: By the machine's word for it.
VERBS: dict[str, DecisionKind] = {
    "approve": "APPROVE",
    "reject": "REJECT",
    "unblock": "UNBLOCK",
    "reopen": "REOPEN",
    "sign_off": "SIGN_OFF",
}
STATUSES = ("NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE")
LEGAL = {(row.source.value, row.event): row.target.value for row in reversed(TRANSITIONS) if row.source is not None}


async def await_sign_off(db: Database, ticket_id: UUID) -> None:
    """If it is in progress."""
    await db.pool.execute(
        "UPDATE tickets SET step = 'SIGN_OFF', version = version + 1 WHERE ticket_id = $1 AND status = 'IN_PROGRESS'",
        ticket_id,
    )


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("verb", [name for name in VERBS if name != "sign_off"])
async def test_a_verb_does_what_the_machine_says_of_it(db: Database, verb: str, status: str) -> None:
    ticket = await ticket_in(db, status)
    before = await traces(db)

    if (status, verb) in LEGAL:
        moved = await decide(db.pool, VERBS[verb], ticket.ticket_id, by="bob", why="so")
        assert moved.status == LEGAL[status, verb]
        assert moved.version == ticket.version + 1
    else:
        assert await code_of(decide(db.pool, VERBS[verb], ticket.ticket_id, by="bob")) == "illegal_transition"
        assert await traces(db) == before


@pytest.mark.parametrize("verb", VERBS)
async def test_nobody_decides_about_a_ticket_that_is_not_there(db: Database, verb: str) -> None:
    assert await code_of(decide(db.pool, VERBS[verb], new_id(), by="bob")) == "unknown_ticket"


async def test_a_decision_is_kept_with_name_and_reason(db: Database) -> None:
    ticket = await new_ticket(db)

    await decide(db.pool, "APPROVE", ticket.ticket_id, by="bob", why="clear enough")

    (decision,) = (await read_trail(db, ticket.ticket_id)).decisions
    assert (decision.kind, decision.decided_by, decision.why) == ("APPROVE", "bob", "clear enough")
    assert (decision.from_status, decision.to_status, decision.work_order_id) == ("NEW", "TODO", None)


async def test_approving_twice_is_refused_and_names_where_the_ticket_stands(db: Database) -> None:
    ticket = await todo_ticket(db)

    with pytest.raises(TicketRefused, match=f"ticket {ticket.ticket_id} is TODO; only a NEW ticket can be approved"):
        await decide(db.pool, "APPROVE", ticket.ticket_id, by="bob")


async def test_of_many_who_approve_at_once_one_does(db: Database) -> None:
    ticket = await new_ticket(db)
    codes: list[str | None] = []

    async def try_it(name: str) -> None:
        codes.append(await code_of(decide(db.pool, "APPROVE", ticket.ticket_id, by=name)))

    async with anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(try_it, f"p{n}")

    assert sorted(codes, key=str) == [None, *["illegal_transition"] * 7]
    assert len((await read_trail(db, ticket.ticket_id)).decisions) == 1


@pytest.mark.parametrize(("verb", "status"), [("approve", "NEW"), ("reopen", "DONE")])
async def test_with_four_eyes_the_author_is_refused_and_another_is_not(db: Database, verb: str, status: str) -> None:
    ticket = await ticket_in(db, status, created_by="ann")
    before = await traces(db)

    refused = await code_of(decide(db.pool, VERBS[verb], ticket.ticket_id, by="ann", four_eyes=True))
    unchanged = await traces(db) == before
    moved = await decide(db.pool, VERBS[verb], ticket.ticket_id, by="bob", four_eyes=True)

    assert (refused, unchanged) == ("four_eyes", True)
    assert moved.status == "TODO"


@pytest.mark.parametrize(("verb", "status"), [("approve", "NEW"), ("reopen", "DONE"), ("sign_off", "IN_PROGRESS")])
async def test_with_four_eyes_whoever_edited_the_ticket_is_refused(db: Database, verb: str, status: str) -> None:
    ticket = await ticket_in(db, status, created_by="ann", edited_by="bob")
    await await_sign_off(db, ticket.ticket_id)

    refused = await code_of(decide(db.pool, VERBS[verb], ticket.ticket_id, by="bob", four_eyes=True))
    allowed = await code_of(decide(db.pool, VERBS[verb], ticket.ticket_id, by="dan", four_eyes=True))

    assert (refused, allowed) == ("four_eyes", None)


async def test_with_four_eyes_an_author_may_still_refuse_the_output(db: Database) -> None:
    ticket = await ticket_in(db, "IN_PROGRESS", created_by="ann")
    await await_sign_off(db, ticket.ticket_id)

    signed_off = await code_of(decide(db.pool, "SIGN_OFF", ticket.ticket_id, by="ann", four_eyes=True))
    refused = await decide(db.pool, "REFUSE", ticket.ticket_id, by="ann", four_eyes=True)

    assert (signed_off, refused.status, refused.step) == ("four_eyes", "IN_PROGRESS", "GATE")


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        *(("approve", "NEW"), ("reject", "TODO"), ("unblock", "BLOCKED"), ("reopen", "DONE")),
        ("sign_off", "IN_PROGRESS"),
    ],
)
async def test_decision_counts_only_for_the_version_that_it_names(db: Database, verb: str, status: str) -> None:
    ticket = await ticket_in(db, status, edited_by="ann")
    await await_sign_off(db, ticket.ticket_id)
    version = (await read_ticket(db.pool, ticket.ticket_id)).version
    before = await traces(db)

    late = await code_of(decide(db.pool, VERBS[verb], ticket.ticket_id, by="bob", version=version - 1))
    unchanged = await traces(db) == before
    informed = await code_of(decide(db.pool, VERBS[verb], ticket.ticket_id, by="bob", version=version))

    assert (late, unchanged, informed) == ("version_moved", True, None)


async def test_a_rejected_ticket_says_why_and_needs_approval_again(db: Database) -> None:
    ticket = await todo_ticket(db)

    rejected = await decide(db.pool, "REJECT", ticket.ticket_id, by="cid", why="too vague")
    back = await decide(db.pool, "UNBLOCK", ticket.ticket_id, by="dan")

    assert (rejected.status, rejected.blocked_reason) == ("BLOCKED", "rejected by cid: too vague")
    assert rejected.approved_by is None
    assert (back.status, back.blocked_reason) == ("NEW", None)


async def test_a_rejected_ticket_is_not_rejected_again(db: Database) -> None:
    ticket = await new_ticket(db)
    await decide(db.pool, "REJECT", ticket.ticket_id, by="cid")
    before = await traces(db)

    with pytest.raises(TicketRefused, match="it was rejected before"):
        await decide(db.pool, "REJECT", ticket.ticket_id, by="cid")

    assert await traces(db) == before


async def test_a_sign_off_that_nobody_waits_for_is_refused(db: Database) -> None:
    ticket = await ticket_in(db, "IN_PROGRESS")
    before = await traces(db)

    with pytest.raises(TicketRefused, match="IN_PROGRESS, step RUN and waits for no sign-off") as refused:
        await decide(db.pool, "SIGN_OFF", ticket.ticket_id, by="bob")

    assert refused.value.code == "no_sign_off"
    assert await traces(db) == before


async def test_every_change_is_a_line_of_the_log_in_order(db: Database) -> None:
    ticket = await new_ticket(db)
    await decide(db.pool, "APPROVE", ticket.ticket_id, by="bob")
    await decide(db.pool, "REJECT", ticket.ticket_id, by="bob")

    lines = (await read_log(db.pool, {ticket.ticket_id: 0}))[ticket.ticket_id]
    later = (await read_log(db.pool, {ticket.ticket_id: 2, UUID(int=1): 0}))[ticket.ticket_id]

    assert [(line.version, line.type) for line in lines] == [(1, "created"), (2, "status"), (3, "status")]
    assert b'"was": "NEW"' in bytes(lines[1].data)
    assert later == lines[2:]
    assert (await read_ticket(db.pool, ticket.ticket_id)).version == 3
