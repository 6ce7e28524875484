"""The rules by themselves: no database, no clock."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

import jobd.tickets
from jobd.tickets import diagram
from jobd.tickets.machine import (
    BLOCKED,
    DONE,
    IN_PROGRESS,
    NEW,
    TODO,
    TRANSITIONS,
    AwaitSignOff,
    Fail,
    Judged,
    Moved,
    NotScheduled,
    Pass,
    Refused,
    Scheduled,
    TicketStatus,
    TicketView,
    decide_approve,
    decide_edit,
    decide_gates,
    decide_judge,
    decide_reject,
    decide_reopen,
    decide_schedule,
    decide_sign_off,
    decide_unblock,
)

ID = UUID(int=1)
PURE = ("machine.py", "gates.py", "render.py", "draft.py", "errors.py")
#: What these can reach the world with.
IMPURE = {"anyio", "asyncio", "asyncpg", "datetime", "os", "random", "subprocess", "time"}


def view(status: TicketStatus, **fields: Any) -> TicketView:
    return TicketView(**{"ticket_id": ID, "status": status, "created_by": "ann", "approved_by": "bob", **fields})


def targets(event: str) -> dict[TicketStatus, set[TicketStatus]]:
    found: dict[TicketStatus, set[TicketStatus]] = {}
    for row in TRANSITIONS:
        if row.event == event and row.source is not None:
            found.setdefault(row.source, set()).add(row.target)
    return found


DECIDE: dict[str, Any] = {
    "edit": decide_edit,
    "approve": lambda ticket: decide_approve(ticket, "bob", four_eyes=False),
    "reject": decide_reject,
    "unblock": decide_unblock,
    "reopen": lambda ticket: decide_reopen(ticket, "bob", four_eyes=False),
}


@pytest.mark.parametrize("status", TicketStatus)
@pytest.mark.parametrize("event", DECIDE)
def test_a_decision_moves_a_ticket_exactly_as_the_table_says(event: str, status: TicketStatus) -> None:
    decision = DECIDE[event](view(status))

    if status in targets(event):
        assert isinstance(decision, Moved)
        assert decision.status in targets(event)[status]
    else:
        assert isinstance(decision, Refused)
        assert status.value in decision.message
        assert str(ID) in decision.message


def test_every_status_can_be_reached_and_left() -> None:
    assert {row.target for row in TRANSITIONS} == set(TicketStatus)
    assert {row.source for row in TRANSITIONS} == {None, *TicketStatus}


def test_only_people_lead_from_new_to_todo() -> None:
    ways = [row for row in TRANSITIONS if (row.source, row.target) == (NEW, TODO)]

    assert [row.event for row in ways] == ["approve"]
    assert ways[0].guard.startswith("by a person")


@pytest.mark.parametrize("decide", [decide_approve, decide_reopen], ids=["approve", "reopen"])
def test_the_author_is_refused_only_with_four_eyes(decide: Any) -> None:
    ticket = view(NEW if decide is decide_approve else DONE)

    assert decide(ticket, "ann", four_eyes=False) == Moved(TODO)
    assert decide(ticket, "bob", four_eyes=True) == Moved(TODO)
    assert decide(ticket, "ann", four_eyes=True).code == "four_eyes"
    assert decide(msgspec.structs.replace(ticket, edited_by=["bob"]), "bob", four_eyes=True).code == "four_eyes"


@pytest.mark.parametrize(
    ("step", "by", "accept", "code"),
    [
        ("SIGN_OFF", "bob", True, None),
        ("SIGN_OFF", "ann", False, None),
        ("SIGN_OFF", "ann", True, "four_eyes"),
        ("GATE", "bob", True, "no_sign_off"),
        ("RUN", "bob", True, "no_sign_off"),
    ],
)
def test_a_sign_off_counts_while_it_is_waited_for(step: Any, by: str, accept: bool, code: str | None) -> None:
    decision = decide_sign_off(view(IN_PROGRESS, step=step), by, four_eyes=True, accept=accept)

    assert (decision.code if isinstance(decision, Refused) else None) == code


def test_who_unblocks_a_rejected_ticket_does_not_approve_it() -> None:
    assert decide_unblock(view(BLOCKED, approved_by=None)) == Moved(NEW)
    assert decide_unblock(view(BLOCKED)) == Moved(TODO)


@pytest.mark.parametrize(
    ("ticket", "unfinished", "is_current", "reason"),
    [
        (None, [], True, "MISSING_TICKET"),
        (view(TODO), [], True, "SCHEDULED"),
        (view(TODO), [], False, "NON_EXECUTABLE_STATUS"),
        (view(TODO), [ID], True, "BLOCKED"),
        *((view(status), [], True, "NON_EXECUTABLE_STATUS") for status in (NEW, IN_PROGRESS, BLOCKED, DONE)),
    ],
)
def test_an_event_ends_with_its_reason(
    ticket: TicketView | None, unfinished: list[UUID], is_current: bool, reason: str
) -> None:
    decision = decide_schedule(ticket, unfinished, is_current=is_current)

    assert decision.reason == reason
    assert isinstance(decision, Scheduled) == (reason == "SCHEDULED")
    if reason == "BLOCKED":
        assert isinstance(decision, NotScheduled)
        assert str(ID) in (decision.blocked_reason or "")
        assert 1 <= len(decision.actions) <= 3


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], Pass("no gates")),
        ([Pass("")], Pass("all gates pass")),
        ([Pass(""), AwaitSignOff()], AwaitSignOff()),
        ([AwaitSignOff(), Fail("no")], Fail("no")),
        ([Fail("first"), Fail("second")], Fail("first")),
    ],
)
def test_one_failure_is_a_failure_and_a_person_is_asked_last(verdicts: list[Any], expected: object) -> None:
    assert decide_gates(verdicts) == expected


@pytest.mark.parametrize(
    ("verdict", "outcome", "runs", "status", "pause"),
    [
        (Pass("x"), "DONE", 1, DONE, "RUN_COMPLETE"),
        (Fail("x"), "DONE", 1, TODO, "GATE_FAILED"),
        (Fail("x"), "DONE", 2, BLOCKED, "GATE_FAILED"),
        (Fail("x"), "ERROR", 1, TODO, "GATE_FAILED"),
        (Fail("x"), "CANCELED", 2, BLOCKED, "GATE_FAILED"),
        (Fail("x"), "BUDGET_EXHAUSTED", 1, BLOCKED, "BUDGET_EXHAUSTED"),
    ],
)
def test_a_run_leads_somewhere_and_says_what_to_do_next(
    verdict: Pass | Fail, outcome: Any, runs: int, status: TicketStatus, pause: str
) -> None:
    judged: Judged = decide_judge(view(IN_PROGRESS, run_count=runs, max_runs=2), outcome, verdict)

    assert (judged.status, judged.pause_reason) == (status, pause)
    assert status in targets("judge")[IN_PROGRESS]
    assert (judged.blocked_reason is not None) == (status is BLOCKED)
    assert 1 <= len(judged.actions) <= 3


@pytest.mark.parametrize("name", PURE)
def test_what_decides_has_nothing_at_hand_to_reach_the_world(name: str) -> None:
    tree = ast.parse((Path(jobd.tickets.__path__[0]) / name).read_text())
    names = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    } | {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert not names & IMPURE
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


def test_the_page_of_states_is_made_from_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "ticket-states.md"

    assert page.read_text() == diagram.render(), "run: python -m jobd.tickets.diagram > docs/ticket-states.md"
