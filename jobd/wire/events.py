"""Events that an HTTP worker emits for a job that it holds: progress, tokens, log lines, or its own types."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

#: Events of one job in one call; a worker that has more sends them in turn.
MAX_EVENTS = 200
#: Jobs whose events one request may carry.
MAX_TELLINGS = 100

EventType: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-z0-9_.-]{1,64}\Z", description="1 to 64 of a-z 0-9 _ . -")]


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: `progress`, `token`, `log` or any other name; those that jobd uses itself are refused.
    type: EventType
    #: Step of the work, for people.
    step: Annotated[str, Meta(max_length=200)] = ""
    #: A JSON object, up to 16 KB.
    data: dict[str, Any] = {}
    #: When, in ms since 1970, by the worker's clock; left out: when it arrives.
    ts: Annotated[int, Meta(ge=0, lt=1 << 53)] | None = None


class EventsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    worker_id: Annotated[str, Meta(min_length=1, max_length=128)]
    job_id: Annotated[str, Meta(max_length=64)]
    lease_token: Annotated[str, Meta(max_length=128)]
    events: Annotated[list[WorkerEvent], Meta(min_length=1, max_length=MAX_EVENTS)]
    #: How many events of this attempt were sent before; with it, a call that is sent again is kept once.
    offset: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None


class EventsAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    ok: bool
    #: The id of the newest event of the attempt.
    last_event_id: str | None = None
    #: `lease_lost`: stop, the job is no longer this worker's; `out_of_step`: send again from `offset`
    reason: str | None = None
    offset: int | None = None


class JobEvents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The events of one of several jobs; the fields are those of a call for one job."""

    job_id: Annotated[str, Meta(max_length=64)]
    lease_token: Annotated[str, Meta(max_length=128)]
    events: Annotated[list[WorkerEvent], Meta(min_length=1, max_length=MAX_EVENTS)]
    offset: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None


class EventsBatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    worker_id: Annotated[str, Meta(min_length=1, max_length=128)]
    jobs: Annotated[list[JobEvents], Meta(min_length=1, max_length=MAX_TELLINGS)]


class EventsBatchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: In the order of the request.
    jobs: list[EventsAnswer]
