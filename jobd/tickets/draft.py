"""A draft: what a ticket is to say, checked before it is written. PURE: no clock, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.tickets.errors import TicketRefused
from jobd.tickets.gates import check_gates
from jobd.tickets.render import filled_bytes, places
from jobd.wire import tickets as wire

if TYPE_CHECKING:
    from jobd.config.model import Config


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    acceptance_criteria: str | list[str]
    task: str
    #: A JSON object as text, checked by `jobd.wire.json_check`.
    payload: str
    gates: list[wire.Gate]
    blocked_on: list[UUID]
    budget_ms: int
    max_runs: int
    repo_ref: str | None
    base_branch: str | None

    def columns(self) -> tuple[object, ...]:
        """The parameters of create_ticket and edit_if_new, in their order."""
        return (
            self.title,
            msgspec.json.encode(self.acceptance_criteria).decode(),
            self.blocked_on,
            self.repo_ref,
            self.base_branch,
            self.task,
            self.payload,
            msgspec.json.encode(self.gates).decode(),
            self.budget_ms,
            self.max_runs,
        )


def budget_of(task: str, config: Config) -> int:
    """The budget in ms of a ticket that names none: the task's time limit; raises TicketRefused (unknown_task)."""
    if task not in config.tasks:
        raise TicketRefused("unknown_task", f"there is no task {task}; this jobd has {', '.join(sorted(config.tasks))}")
    return int(config.tasks[task].timeout_s * 1000)


def check_draft(draft: Draft, config: Config) -> None:
    """Refuse what could never run; raises TicketRefused."""
    budget_of(draft.task, config)
    check_gates(draft.gates, config.tickets.gates)
    if draft.payload.lstrip()[:1] != "{":
        raise TicketRefused("not_object", "payload must be a JSON object")
    words = places(
        ticket_id=UUID(int=0),
        todo_no=1,
        title=draft.title,
        criteria=draft.acceptance_criteria,
        repo_ref=draft.repo_ref,
        base_branch=draft.base_branch,
    )
    size, limit = filled_bytes(draft.payload, words), config.limits.payload_bytes
    if size > limit:
        raise TicketRefused(
            "too_large", f"payload has {size} bytes when it is filled in, the limit is {limit} (limits.payload_bytes)"
        )
