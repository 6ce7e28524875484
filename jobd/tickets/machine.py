"""The ticket state machine: what is known goes in, a decision comes out.

Nothing here guards the tables: every statement has its own WHERE for that. This is where the rules can be read, printed
and tried out, and tests compare the statements with it. In every history:

- Only a person moves a ticket from NEW to TODO, and the ticket remembers who it was.
- A ticket is in progress exactly while it has a work order that is not judged yet.
- A ticket that failed runs again by itself until `max_runs` is reached; what comes after that is for a person to say.
- A rejected ticket has to be approved again after the rejection was taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct


class TicketStatus(str, Enum):
    NEW = "NEW"
    TODO = "TODO"
    IN_PROGRESS = "IN_PROGRESS"
    BLOCKED = "BLOCKED"
    DONE = "DONE"


NEW = TicketStatus.NEW
TODO = TicketStatus.TODO
IN_PROGRESS = TicketStatus.IN_PROGRESS
BLOCKED = TicketStatus.BLOCKED
DONE = TicketStatus.DONE

Step = Literal["RUN", "GATE", "SIGN_OFF"]
EventReason = Literal["SCHEDULED", "MISSING_TICKET", "NON_EXECUTABLE_STATUS", "BLOCKED"]
Outcome = Literal["DONE", "ERROR", "CANCELED", "BUDGET_EXHAUSTED"]
PauseReason = Literal["RUN_COMPLETE", "GATE_FAILED", "BUDGET_EXHAUSTED", "BLOCKED"]


class Transition(Struct, frozen=True):
    #: None: the ticket is new
    source: TicketStatus | None
    event: str
    guard: str
    target: TicketStatus


#: Every change that a ticket may undergo.
TRANSITIONS: Final = (
    Transition(None, "create", "", NEW),
    Transition(NEW, "edit", "", NEW),
    Transition(NEW, "approve", "by a person; with four_eyes, by another than its authors", TODO),
    Transition(NEW, "reject", "by a person", BLOCKED),
    Transition(TODO, "reject", "by a person, before it is scheduled", BLOCKED),
    Transition(BLOCKED, "reject", "by a person; it was not rejected before", BLOCKED),
    Transition(TODO, "mark_ready", "there is no TICKET_READY for this time yet", TODO),
    Transition(TODO, "schedule", "every ticket in blocked_on is DONE", IN_PROGRESS),
    Transition(TODO, "schedule", "a ticket in blocked_on is not DONE", BLOCKED),
    Transition(IN_PROGRESS, "execute", "its job has ended", IN_PROGRESS),
    Transition(IN_PROGRESS, "await_sign_off", "all other gates pass", IN_PROGRESS),
    Transition(IN_PROGRESS, "sign_off", "by a person, while one is waited for", IN_PROGRESS),
    Transition(IN_PROGRESS, "judge", "all gates pass", DONE),
    Transition(IN_PROGRESS, "judge", "a gate fails, runs left", TODO),
    Transition(IN_PROGRESS, "judge", "a gate fails, no runs left; or the budget is used up", BLOCKED),
    Transition(BLOCKED, "return", "it waited for tickets that are all DONE now", TODO),
    Transition(BLOCKED, "unblock", "by a person; it was approved", TODO),
    Transition(BLOCKED, "unblock", "by a person; it was rejected", NEW),
    Transition(DONE, "reopen", "by a person; with four_eyes, by another than its authors", TODO),
)


class TicketView(Struct, frozen=True, kw_only=True):
    """The fields of a ticket that decisions read."""

    ticket_id: UUID
    status: TicketStatus
    created_by: str
    edited_by: Sequence[str] = ()
    approved_by: str | None = None
    step: Step | None = None
    run_count: int = 0
    max_runs: int = 1
    version: int = 1


class Moved(Struct, frozen=True):
    status: TicketStatus


class Refused(Struct, frozen=True):
    #: Stable, for programs.
    code: str
    message: str


# -- what people decide ------------------------------------------------------------------------------------------------


def decide_version(ticket: TicketView, seen: int | None) -> Refused | None:
    """Refuses a decision about an earlier version of the ticket; `seen` None: the decision names no version."""
    if seen is None or seen == ticket.version:
        return None
    return Refused(
        "version_moved",
        f"ticket {ticket.ticket_id} has changed: its version is {ticket.version}, and {seen} was decided about; look at"
        " it again",
    )


def decide_edit(ticket: TicketView) -> Moved | Refused:
    if ticket.status is not NEW:
        return Refused(
            "not_new", f"ticket {ticket.ticket_id} is {ticket.status.value}; only a NEW ticket can be edited"
        )
    return Moved(NEW)


def decide_approve(ticket: TicketView, by: str, *, four_eyes: bool) -> Moved | Refused:
    if ticket.status is not NEW:
        return _illegal(ticket, "approved", "a NEW ticket")
    return _by_another(ticket, by, "approve") if four_eyes else Moved(TODO)


def decide_reject(ticket: TicketView) -> Moved | Refused:
    if ticket.status is BLOCKED and ticket.approved_by is None:
        return Refused("illegal_transition", f"ticket {ticket.ticket_id} is BLOCKED: it was rejected before")
    if ticket.status not in (NEW, TODO, BLOCKED):
        return _illegal(ticket, "rejected", "a NEW, TODO or BLOCKED ticket")
    return Moved(BLOCKED)


def decide_unblock(ticket: TicketView) -> Moved | Refused:
    if ticket.status is not BLOCKED:
        return _illegal(ticket, "unblocked", "a BLOCKED ticket")
    return Moved(NEW if ticket.approved_by is None else TODO)


def decide_reopen(ticket: TicketView, by: str, *, four_eyes: bool) -> Moved | Refused:
    if ticket.status is not DONE:
        return _illegal(ticket, "reopened", "a DONE ticket")
    return _by_another(ticket, by, "reopen") if four_eyes else Moved(TODO)


def decide_sign_off(ticket: TicketView, by: str, *, four_eyes: bool, accept: bool) -> Moved | Refused:
    if ticket.step != "SIGN_OFF":
        where = ticket.status.value if ticket.step is None else f"{ticket.status.value}, step {ticket.step}"
        return Refused("no_sign_off", f"ticket {ticket.ticket_id} is {where} and waits for no sign-off")
    if four_eyes and accept and _is_author(ticket, by):
        return _by_another(ticket, by, "sign off")
    return Moved(IN_PROGRESS)


def _illegal(ticket: TicketView, done: str, what: str) -> Refused:
    return Refused(
        "illegal_transition", f"ticket {ticket.ticket_id} is {ticket.status.value}; only {what} can be {done}"
    )


def _by_another(ticket: TicketView, by: str, verb: str) -> Moved | Refused:
    if _is_author(ticket, by):
        return Refused(
            "four_eyes",
            f"{by} wrote ticket {ticket.ticket_id} and may not {verb} it; ask somebody else (tickets.four_eyes)",
        )
    return Moved(TODO)


def _is_author(ticket: TicketView, by: str) -> bool:
    return by == ticket.created_by or by in ticket.edited_by


# -- what the pollers decide -------------------------------------------------------------------------------------------


class Scheduled(Struct, frozen=True):
    reason: EventReason = "SCHEDULED"


class NotScheduled(Struct, frozen=True, kw_only=True):
    reason: EventReason
    #: Of a ticket that becomes BLOCKED.
    blocked_reason: str | None = None
    actions: tuple[str, ...] = ()


def decide_schedule(
    ticket: TicketView | None, unfinished: Sequence[UUID], *, is_current: bool = True
) -> Scheduled | NotScheduled:
    """How a TICKET_READY event ends; `unfinished` are the tickets in `blocked_on` that are not DONE.

    Not `is_current`: the event is of an earlier time that the ticket became TODO.
    """
    if ticket is None:
        return NotScheduled(reason="MISSING_TICKET")
    if ticket.status is not TODO or not is_current:
        return NotScheduled(reason="NON_EXECUTABLE_STATUS")
    if unfinished:
        waits_for = ", ".join(map(str, unfinished[:3])) + (" and others" if len(unfinished) > 3 else "")
        return NotScheduled(
            reason="BLOCKED",
            blocked_reason=f"waits for {waits_for}",
            actions=(f"finish {waits_for}: it then goes on by itself", "unblock it to look again"),
        )
    return Scheduled()


class Pass(Struct, frozen=True):
    reason: str


class Fail(Struct, frozen=True):
    reason: str


class AwaitSignOff(Struct, frozen=True):
    """All other gates pass, and a person has to sign off."""


GateVerdict = Pass | Fail | AwaitSignOff


class Judged(Struct, frozen=True, kw_only=True):
    gate_result: Literal["PASS", "FAIL"]
    gate_reason: str
    status: TicketStatus
    blocked_reason: str | None
    pause_reason: PauseReason
    #: One to three, the most useful first.
    actions: tuple[str, ...]


def decide_gates(verdicts: Sequence[GateVerdict]) -> GateVerdict:
    """The first failure fails the output, also while a person is still to sign off."""
    for verdict in verdicts:
        if isinstance(verdict, Fail):
            return verdict
    if any(isinstance(verdict, AwaitSignOff) for verdict in verdicts):
        return AwaitSignOff()
    return Pass("all gates pass" if verdicts else "no gates")


def decide_judge(ticket: TicketView, outcome: Outcome, verdict: Pass | Fail) -> Judged:
    """Where a ticket goes after a run; `run_count` includes this one."""
    if isinstance(verdict, Pass):
        return Judged(
            gate_result="PASS",
            gate_reason=verdict.reason,
            status=DONE,
            blocked_reason=None,
            pause_reason="RUN_COMPLETE",
            actions=("use the output", "reopen it if the output is not what was wanted"),
        )
    if outcome == "BUDGET_EXHAUSTED":
        return Judged(
            gate_result="FAIL",
            gate_reason=verdict.reason,
            status=BLOCKED,
            blocked_reason=verdict.reason,
            pause_reason="BUDGET_EXHAUSTED",
            actions=("make the ticket smaller, as a new one with a larger budget_ms", "unblock it to run it again"),
        )
    again = ticket.run_count < ticket.max_runs
    return Judged(
        gate_result="FAIL",
        gate_reason=verdict.reason,
        status=TODO if again else BLOCKED,
        blocked_reason=None if again else verdict.reason,
        pause_reason="GATE_FAILED",
        actions=(
            ("wait: it runs again by itself", "look at the output")
            if again
            else ("look at the output and gate_reason", "unblock it to run it again", "write a better ticket")
        ),
    )
