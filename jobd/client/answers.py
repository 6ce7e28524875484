"""What jobd answers, typed. Fields that a newer jobd adds are passed over, and words that may grow are any text.

What a job is about may be private: its payload, result, error and events are not shown by `repr`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jobd.job.history import LAST_EVENTS
from jobd.job.status import FINAL_STATUSES
from jobd.wire import gateway as wire
from jobd.wire import tickets, workers

_FINAL = frozenset(status.value for status in FINAL_STATUSES)


def is_final(status: str) -> bool:
    return status in _FINAL


class Waiting(wire.Waiting, frozen=True, kw_only=True):
    reason: str  # type: ignore[assignment]  # a newer jobd may know more reasons


class Attempt(wire.Attempt, frozen=True, kw_only=True):
    outcome: str | None  # type: ignore[assignment]  # a newer jobd may know more outcomes
    error: Any

    def __repr__(self) -> str:
        return f"<Attempt {self.number} {self.outcome or 'open'}>"


class Job(wire.JobObject, frozen=True, kw_only=True):
    """A job as it stood when jobd answered. The field names are those of the HTTP API; times are ms since 1970."""

    payload: Any
    result: Any = None
    error: Any = None
    #: Only while queued, and not in the answer to a submit.
    waiting: Waiting | None = None  # type: ignore[assignment]  # left out is None to a caller
    #: Oldest first; empty in the answer to a submit.
    attempts: list[Attempt] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # likewise
    existing: bool = False

    @property
    def is_final(self) -> bool:
        """Whether it has ended: done, error or canceled. A final job never changes."""
        return is_final(self.status)

    def __repr__(self) -> str:
        return f"<Job {self.job_id} {self.task} {self.status}>"


class Worker(workers.Worker, frozen=True, kw_only=True):
    kind: str  # type: ignore[assignment]  # a newer jobd may know more kinds


class Workers(workers.Workers, frozen=True, kw_only=True):
    workers: list[Worker]  # type: ignore[assignment]  # likewise


class DeadLetter(wire.DeadLetter, frozen=True, kw_only=True):
    reason: str  # type: ignore[assignment]  # a newer jobd may know more reasons


class DeadLetters(wire.DeadLetters, frozen=True):
    letters: list[DeadLetter]  # type: ignore[assignment]  # likewise


class Ticket(tickets.Ticket, frozen=True, kw_only=True):
    """A ticket as it stood when jobd answered; what it is about is not shown by `repr`."""

    status: str  # type: ignore[assignment]  # a newer jobd may know more statuses
    step: str | None  # type: ignore[assignment]  # likewise
    payload: Any
    gates: list[dict[str, Any]]  # type: ignore[assignment]  # and more gates
    edited_by: list[str] = msgspec.field(default_factory=list)  # an older jobd does not say

    def __repr__(self) -> str:
        return f"<Ticket {self.ticket_id} {self.task} {self.status}>"


class TicketPage(tickets.TicketPage, frozen=True):
    tickets: list[Ticket]  # type: ignore[assignment]  # those above


class Trail(msgspec.Struct, frozen=True, kw_only=True):
    """The whole history of a ticket, each list oldest first; `/v1/schemas` describes what is in them."""

    ticket: Ticket
    events: list[dict[str, Any]]
    context_snapshots: list[dict[str, Any]]
    workorders: list[dict[str, Any]]
    output_bundles: list[dict[str, Any]]
    run_records: list[dict[str, Any]]
    pause_states: list[dict[str, Any]]
    decisions: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"<Trail of ticket {self.ticket.ticket_id}>"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    #: Where it stands among the events of its job or ticket: `events(job, after=id)` goes on behind it.
    id: str
    #: `queued`, `running`, `done`, `error`, `canceled`, `gap`, or what the worker calls it: `token`, `progress`, `log`;
    #: of a ticket: `created`, `edited`, `status`, `step`, `ready`
    type: str
    #: In ms since 1970.
    ts: int
    #: Where in the work it happened.
    step: str
    data: Any

    @property
    def is_last(self) -> bool:
        """Whether the job ended with it."""
        return self.type in LAST_EVENTS

    def __repr__(self) -> str:
        return f"<Event {self.id} {self.type}>"
