"""What jobd answers, typed. Fields that a newer jobd adds are passed over, and words that may grow are any text.

What a job is about may be private: its payload, result, error and events are not shown by `repr`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from jobd.job.history import LAST_EVENTS
from jobd.job.status import FINAL_STATUSES
from jobd.wire import gateway as wire
from jobd.wire import schedules, tickets, workers

_FINAL = frozenset(status.value for status in FINAL_STATUSES)


def is_final(status: str) -> bool:
    return status in _FINAL


class Waiting(wire.Waiting, frozen=True, kw_only=True):
    reason: str  # type: ignore[assignment]  # a newer jobd may know more reasons
    paused: str | None = None  # type: ignore[assignment]  # likewise
    limit_key: str | None = None  # type: ignore[assignment]  # left out is None to a caller
    until_ts: int | None = None  # type: ignore[assignment]  # likewise
    needed_bytes: int | None = None  # type: ignore[assignment]  # likewise
    free_bytes: int | None = None
    detail: str | None = None  # type: ignore[assignment]  # likewise


class JobSummary(wire.JobSummary, frozen=True, kw_only=True):
    #: Only while queued.
    waiting: Waiting | None = None  # type: ignore[assignment]  # left out is None to a caller


class JobPage(wire.JobPage, frozen=True):
    jobs: list[JobSummary]  # type: ignore[assignment]  # likewise


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
    #: What the job depends on; empty in the answer to a submit of a batch.
    depends_on: list[wire.DependencyObject] = msgspec.field(default_factory=list)

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


class ScheduleEvent(schedules.ScheduleEventObject, frozen=True, kw_only=True):
    kind: str  # type: ignore[assignment]  # a newer jobd may know more kinds


class Schedule(schedules.ScheduleObject, frozen=True, kw_only=True):
    """A schedule as it stood when jobd answered; the payload of its jobs is not shown by `repr`."""

    origin: str  # type: ignore[assignment]  # a newer jobd may know more, here and in the next two
    overlap: str  # type: ignore[assignment]
    catch_up: str  # type: ignore[assignment]
    #: Newest first; empty where it is not the answer for this one.
    events: list[ScheduleEvent] = msgspec.field(default_factory=list)  # type: ignore[assignment]  # left out is empty

    def __repr__(self) -> str:
        return f"<Schedule {self.name} {self.cron or self.every}>"


class SchedulePage(schedules.SchedulePage, frozen=True):
    schedules: list[Schedule]  # type: ignore[assignment]  # those above


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


class ChatModel(msgspec.Struct, frozen=True, kw_only=True):
    #: As calls name it.
    id: str
    #: Seconds since 1970.
    created: int = 0
    owned_by: str = ""


class ChatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response of a model as it stood when jobd answered; what it is about is not shown by `repr`."""

    id: str
    #: `queued`, `in_progress`, `completed`, `incomplete`, `failed`, `cancelled`
    status: str
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    previous_response_id: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has ended; it then never changes."""
        return self.status not in ("queued", "in_progress")

    def __repr__(self) -> str:
        return f"<ChatResponse {self.id} {self.status}>"


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
