"""Tickets by both clients: written once, decided about, listed, followed. Nobody works on them here."""

from __future__ import annotations

import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.client import Conflict, NotFound, Refused, Unreachable
from tests.support.proxy import proxy

if TYPE_CHECKING:
    from jobd import Client
    from jobd.client import Ticket
    from tests.client.conftest import Connect
    from tests.support.daemon import Jobd

NOBODY = "01a1e32b-6742-7000-927b-55333af42aa0"


def new(client: Client, **fields: Any) -> Ticket:
    return client.create_ticket("Count the cats", "embed", {"n": 1}, **{"created_by": "ann", **fields})


def test_a_ticket_is_as_it_was_written(client: Client) -> None:
    blocker = new(client)

    ticket = new(
        client,
        acceptance_criteria=["it counts", "it is quick"],
        gates=[{"type": "minimum", "pointer": "/score", "value": 0.5}],
        blocked_on=[blocker.ticket_id],
        budget_ms=5000,
        max_runs=2,
        repo_ref="main",
    )

    assert (ticket.status, ticket.created_by, ticket.payload) == ("NEW", "ann", {"n": 1})
    assert ticket.gates == [{"type": "minimum", "pointer": "/score", "value": 0.5}]
    assert (ticket.blocked_on, ticket.budget_ms, ticket.max_runs) == ([blocker.ticket_id], 5000, 2)
    assert client.ticket(ticket.ticket_id) == ticket
    assert "cats" not in repr(ticket)


def test_an_edit_names_what_it_changes(client: Client) -> None:
    ticket = new(client, repo_ref="main")

    edited = client.edit_ticket(ticket.ticket_id, title="Count the dogs", payload={"n": 2}, repo_ref=None)

    assert (edited.title, edited.payload, edited.repo_ref, edited.version) == ("Count the dogs", {"n": 2}, None, 2)


def test_decisions_move_the_ticket_and_stand_in_its_trail(client: Client) -> None:
    ticket_id = new(client).ticket_id

    moved = [
        client.reject(ticket_id, by="bob", why="too large").status,
        client.unblock(ticket_id, by="bob", why="it is smaller now").status,
        client.approve(ticket_id, by="carol").status,
    ]
    trail = client.trail(ticket_id)

    assert moved == ["BLOCKED", "NEW", "TODO"]
    assert [(decision["kind"], decision["decided_by"], decision["why"]) for decision in trail.decisions] == [
        ("REJECT", "bob", "too large"),
        ("UNBLOCK", "bob", "it is smaller now"),
        ("APPROVE", "carol", ""),
    ]
    assert (trail.ticket.approved_by, trail.workorders) == ("carol", [])


def test_what_cannot_be_decided_is_a_conflict_with_its_code(client: Client) -> None:
    ticket_id = new(client).ticket_id
    client.approve(ticket_id, by="bob")

    with pytest.raises(Conflict) as again:
        client.approve(ticket_id, by="bob")
    with pytest.raises(Conflict) as reopened:
        client.reopen(ticket_id, by="bob")
    with pytest.raises(Conflict) as signed:
        client.sign_off(ticket_id, by="bob", accept=False)
    with pytest.raises(Conflict) as edited:
        client.edit_ticket(ticket_id, title="Count the dogs")
    with pytest.raises(Refused) as nameless:
        client.unblock(ticket_id)
    with pytest.raises(NotFound) as unknown:
        client.approve(NOBODY, by="bob")

    codes = [refusal.value.code for refusal in (again, reopened, signed, edited, nameless, unknown)]
    assert codes == ["illegal_transition"] * 2 + ["no_sign_off", "not_new", "invalid", "unknown_ticket"]


def test_pages_follow_each_other(client: Client) -> None:
    person = f"eve-{uuid.uuid4()}"
    made = [new(client, created_by=person).ticket_id for _ in range(3)]

    first = client.tickets(created_by=person, limit=2)
    second = client.tickets(created_by=person, limit=2, before=first.next)

    assert [entry.ticket_id for entry in (*first.tickets, *second.tickets)] == made[::-1]
    assert client.tickets(created_by=person, status="DONE").tickets == []


def test_events_come_once_and_in_order_through_cut_lines(client: Client, connect: Connect, daemon: Jobd) -> None:
    ticket_id = new(client).ticket_id
    with proxy(lambda: daemon.address) as line, connect(line.url) as follower:
        with closing(follower.ticket_events(ticket_id)) as events:
            seen = [next(events)]

            for verb in ("reject", "unblock", "approve"):
                line.hang_up()
                getattr(client, verb)(ticket_id, by="bob")
                seen.append(next(events))

    assert [event.id for event in seen] == ["1", "2", "3", "4"]
    assert [event.data["status"] for event in seen] == ["NEW", "BLOCKED", "NEW", "TODO"]


def test_events_begin_behind_the_one_that_is_known(client: Client) -> None:
    ticket_id = new(client).ticket_id
    client.reject(ticket_id, by="bob")

    with closing(client.ticket_events(ticket_id, "1")) as events:
        assert next(events).data["status"] == "BLOCKED"


def test_a_lost_answer_is_asked_for_again_and_makes_one_ticket(connect: Connect, daemon: Jobd) -> None:
    person = f"eve-{uuid.uuid4()}"
    with proxy(lambda: daemon.address, 0) as line, connect(line.url) as client:
        ticket = new(client, created_by=person)

        assert line.cuts == 1
        assert [ticket.ticket_id for ticket in client.tickets(created_by=person).tickets] == [ticket.ticket_id]


def test_a_decision_with_a_lost_answer_is_not_made_twice(client: Client, connect: Connect, daemon: Jobd) -> None:
    ticket_id = new(client).ticket_id

    with proxy(lambda: daemon.address, 0) as line, connect(line.url) as unlucky:
        with pytest.raises(Unreachable):
            unlucky.approve(ticket_id, by="bob")

    assert client.ticket(ticket_id).status == "TODO"


def test_a_payload_is_sent_as_it_is(client: Client) -> None:
    ticket = client.create_ticket("Count", "embed", msgspec.Raw(b'{"n": 1.50}'), created_by="ann")

    assert ticket.payload == {"n": 1.5}
