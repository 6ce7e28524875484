"""Tickets and their artifacts as the API shows them and as they are published as JSON schemas.

Every artifact that is stored validates against its published schema (`jobd.tickets.schemas`). Times are RFC 3339 in
UTC, by the clock of the database. Requests refuse what they do not know; a field that is absent has its default, and
null is a mistake.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from jobd.config.model import DAY_S
from jobd.wire.gateway import ClientRequest, Name, Object

#: Most gates of a ticket.
MAX_GATES = 20
#: Most tickets that one ticket waits for.
MAX_BLOCKERS = 100
#: Most tickets of one page.
MAX_PAGE = 100

TicketStatus: TypeAlias = Literal["NEW", "TODO", "IN_PROGRESS", "BLOCKED", "DONE"]
Step: TypeAlias = Literal["RUN", "GATE", "SIGN_OFF"]
#: Not blank.
Title: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500, pattern=r"\S")]
LongText: TypeAlias = Annotated[str, Meta(max_length=20_000)]
Criteria: TypeAlias = LongText | Annotated[list[LongText], Meta(max_length=100)]
Person: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"\S")]
Ref: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500, pattern=r"\S")]
BudgetMs: TypeAlias = Annotated[int, Meta(ge=1, le=30 * DAY_S * 1000)]
MaxRuns: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
Version: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 31)]
Blockers: TypeAlias = Annotated[list[UUID], Meta(max_length=MAX_BLOCKERS)]


# -- gates -------------------------------------------------------------------------------------------------------------


class SchemaGate(ClientRequest, frozen=True, kw_only=True, tag_field="type", tag="schema"):
    """The output must be valid against a JSON schema. References lead nowhere outside of it."""

    schema: dict[str, Any] | bool


class MinimumGate(ClientRequest, frozen=True, kw_only=True, tag_field="type", tag="minimum"):
    """A number in the output must not be smaller."""

    #: Where it stands: a JSON pointer such as `/score`; empty: the output itself.
    pointer: Annotated[str, Meta(max_length=1000)]
    value: float


class SignOffGate(ClientRequest, frozen=True, kw_only=True, tag_field="type", tag="sign_off"):
    """A person must agree."""


class CommandGate(ClientRequest, frozen=True, kw_only=True, tag_field="type", tag="command"):
    """A program of the configuration must exit with 0; it gets the output on stdin."""

    name: Name


Gate: TypeAlias = SchemaGate | MinimumGate | SignOffGate | CommandGate
Gates: TypeAlias = Annotated[list[Gate], Meta(max_length=MAX_GATES)]


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["schema", "minimum", "sign_off", "command"]
    result: Literal["PASS", "FAIL"]
    reason: str


# -- requests ----------------------------------------------------------------------------------------------------------


class CreateTicket(ClientRequest, frozen=True, kw_only=True):
    title: Title
    #: Text, or a list of texts.
    acceptance_criteria: Criteria = ""
    #: The configured task that does it.
    task: Name
    #: Its payload; `{{title}}`, `{{acceptance_criteria}}`, `{{prompt}}`, `{{ticket_id}}`, `{{branch_name}}`,
    #: `{{repo_ref}}` and `{{base_branch}}` in its strings are filled in.
    payload: Object
    #: What the output has to pass.
    gates: Gates = msgspec.field(default_factory=list)
    #: Tickets that have to be DONE first.
    blocked_on: Blockers = msgspec.field(default_factory=list)
    #: Time from the submission of its job until it has to be done. Without it: the task's `timeout_s`.
    budget_ms: BudgetMs | UnsetType = UNSET
    #: Runs until a failed gate blocks the ticket; before that it runs again by itself.
    max_runs: MaxRuns = 1
    repo_ref: Ref | None = None
    base_branch: Ref | None = None
    #: Without it: the name of the caller's token.
    created_by: Person | UnsetType = UNSET


class EditTicket(ClientRequest, frozen=True, kw_only=True):
    """What is absent stays."""

    title: Title | UnsetType = UNSET
    acceptance_criteria: Criteria | UnsetType = UNSET
    task: Name | UnsetType = UNSET
    payload: Object | UnsetType = UNSET
    gates: Gates | UnsetType = UNSET
    blocked_on: Blockers | UnsetType = UNSET
    budget_ms: BudgetMs | UnsetType = UNSET
    max_runs: MaxRuns | UnsetType = UNSET
    repo_ref: Ref | UnsetType | None = UNSET
    base_branch: Ref | UnsetType | None = UNSET
    #: Who edits; without it, the name of the caller's token. With `four_eyes` one of both is needed.
    edited_by: Person | UnsetType = UNSET


class Decide(ClientRequest, frozen=True, kw_only=True):
    #: Who decides; without it, the name of the caller's token. Another name than the token's takes the scope `admin`.
    by: Person | UnsetType = UNSET
    why: LongText = ""
    #: The version of the ticket that was read: nothing is decided if it has changed since.
    version: Version | UnsetType = UNSET


class SignOff(ClientRequest, frozen=True, kw_only=True):
    by: Person | UnsetType = UNSET
    why: LongText = ""
    version: Version | UnsetType = UNSET
    #: False: the output is not accepted, and the gate fails.
    accept: bool = True


# -- artifacts ---------------------------------------------------------------------------------------------------------


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    ticket_id: UUID
    title: str
    acceptance_criteria: str | list[str]
    status: TicketStatus
    #: What an IN_PROGRESS ticket waits for: its job, its gates, a person; else null.
    step: Step | None
    #: Why it is BLOCKED; else null.
    blocked_reason: str | None
    blocked_on: list[UUID]
    repo_ref: str | None
    base_branch: str | None
    task: str
    payload: Object
    gates: list[Gate]
    budget_ms: int
    max_runs: int
    #: Runs since a person last decided about it.
    run_count: int
    created_by: str
    #: Who has changed it, each once; with `four_eyes` they count as authors.
    edited_by: list[str]
    #: Null until a person let it become TODO.
    approved_by: str | None
    #: Grows by one with every change.
    version: int
    created_at: datetime
    updated_at: datetime


class Event(msgspec.Struct, frozen=True, kw_only=True):
    event_id: UUID
    type: Literal["TICKET_READY"]
    ticket_id: UUID
    #: How often the ticket had become TODO.
    todo_no: int
    processed: bool
    #: Null until it is processed.
    reason: Literal["SCHEDULED", "MISSING_TICKET", "NON_EXECUTABLE_STATUS", "BLOCKED"] | None
    created_at: datetime
    processed_at: datetime | None


class ContextSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    snapshot_id: UUID
    ticket_id: UUID
    title: str
    acceptance_criteria: str | list[str]
    full_prompt_text: str
    repo_ref: str | None
    base_branch: str | None
    #: Null unless `repo_ref` is a commit.
    repo_commit_sha: str | None
    task: str
    #: With everything filled in.
    payload: Object
    gates: list[Gate]
    created_at: datetime


class Workorder(msgspec.Struct, frozen=True, kw_only=True):
    work_order_id: UUID
    event_id: UUID
    ticket_id: UUID
    #: The configured task.
    #: The configured task that carries the work order out; the name of the field is that of the public ticket contract.
    diazotroph_type: str
    context_snapshot_id: UUID
    branch_name: str
    budget_ms: int
    status: Literal["CREATED", "EXECUTED"]
    #: The job that carries it out; it is there once a runner has submitted it.
    job_id: UUID
    created_at: datetime
    executed_at: datetime | None


class OutputBundle(msgspec.Struct, frozen=True, kw_only=True):
    output_id: UUID
    work_order_id: UUID
    ticket_id: UUID
    job_id: UUID
    outcome: Literal["DONE", "ERROR", "CANCELED", "BUDGET_EXHAUSTED"]
    #: The result of the job.
    output: Any
    #: The file of a result that is too large to be kept here.
    output_ref: str | None
    error: dict[str, Any] | None
    created_at: datetime


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    run_id: UUID
    work_order_id: UUID
    ticket_id: UUID
    output_id: UUID
    gate_result: Literal["PASS", "FAIL"]
    gate_reason: str
    gate_results: list[GateResult]
    #: Where the ticket went.
    ticket_status: Literal["DONE", "BLOCKED", "TODO"]
    created_at: datetime


class PauseState(msgspec.Struct, frozen=True, kw_only=True):
    pause_id: UUID
    ticket_id: UUID
    work_order_id: UUID | None
    event_id: UUID | None
    reason: Literal["RUN_COMPLETE", "GATE_FAILED", "BUDGET_EXHAUSTED", "BLOCKED"]
    #: What a person could do next, the most useful first.
    prioritized_actions: Annotated[list[str], Meta(min_length=1, max_length=3)]
    created_at: datetime


DecisionKind: TypeAlias = Literal["APPROVE", "REJECT", "UNBLOCK", "REOPEN", "SIGN_OFF", "REFUSE"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    decision_id: UUID
    ticket_id: UUID
    kind: DecisionKind
    decided_by: str
    why: str
    from_status: TicketStatus
    to_status: TicketStatus
    #: Of a sign-off, or its refusal.
    work_order_id: UUID | None
    decided_at: datetime


class Trail(msgspec.Struct, frozen=True, kw_only=True):
    """The whole history of a ticket, each list oldest first."""

    ticket: Ticket
    events: list[Event]
    context_snapshots: list[ContextSnapshot]
    workorders: list[Workorder]
    output_bundles: list[OutputBundle]
    run_records: list[RunRecord]
    pause_states: list[PauseState]
    decisions: list[Decision]


class TicketPage(msgspec.Struct, frozen=True):
    #: Newest first.
    tickets: list[Ticket]
    #: Send it as `before` for the next page; null: this was the last.
    next: UUID | None
    #: Whether approve, reopen and sign-off take another person than those who wrote or edited the ticket.
    four_eyes: bool = False


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a ticket; `version` is its cursor."""

    ticket_id: UUID
    version: int
    #: `status`: it moved; `step`: what it waits for has changed; `ready`: TICKET_READY was written
    type: Literal["created", "edited", "status", "step", "ready"]
    #: `{status, was, step, blocked_reason}`
    data: Object
    at: datetime
