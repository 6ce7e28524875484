"""Schedules in the client contract: the fields of requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from jobd.config.model import DAY_S, NAME_PATTERN
from jobd.wire.gateway import ClientRequest, LabelValue, Moment, Name, SentLabelName

#: The schedule that made a job.
SCHEDULE_LABEL = "jobd.schedule"
#: The occurrence that the job is for, in ms since 1970.
SCHEDULED_FOR_LABEL = "jobd.scheduled_for"
#: Most labels that a schedule gives to its jobs, beside those two.
MAX_SCHEDULE_LABELS = 14
#: Most schedules of one page.
MAX_SCHEDULES = 200

#: The `$` of Python would also let a line end pass.
ScheduleName: TypeAlias = Annotated[str, Meta(pattern=rf"^{NAME_PATTERN}$(?!\n)")]
Overlap: TypeAlias = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]
CatchUp: TypeAlias = Literal["one", "none", "all"]
ScheduleLabels: TypeAlias = Annotated[dict[SentLabelName, LabelValue], Meta(max_length=MAX_SCHEDULE_LABELS)]
Cron: TypeAlias = Annotated[str, Meta(max_length=200)]
Every: TypeAlias = Annotated[str, Meta(max_length=40)]
Zone: TypeAlias = Annotated[str, Meta(max_length=64)]
Instant: TypeAlias = Annotated[datetime, Meta(tz=True)]
Jitter: TypeAlias = Annotated[float, Meta(ge=0, le=3600)]
Priority: TypeAlias = Annotated[int, Meta(ge=-1000, le=1000)]
Timeout: TypeAlias = Annotated[float, Meta(gt=0, le=30 * DAY_S)]
Attempts: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
CatchUpWindow: TypeAlias = Annotated[int, Meta(ge=1, le=366 * DAY_S)]
Failures: TypeAlias = Annotated[int, Meta(ge=0, le=1000)]
NumberOfTimes: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
ScheduleLimit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_SCHEDULES)]


class CreateSchedule(ClientRequest, frozen=True, kw_only=True):
    name: ScheduleName
    #: Five fields (minute, hour, day of month, month, day of week) or a name such as @daily; or `every`.
    cron: Cron = ""
    #: An interval such as 90s, 15m, 6h, 1d or 1h30m, counted from `start`, or else from 1970 in UTC.
    every: Every = ""
    #: A name of the IANA time zone database, in which `cron` is read.
    timezone: Zone = "UTC"
    #: RFC 3339 with a zone. No occurrence is earlier than `start`, none later than `end`.
    start: Instant | None = None
    end: Instant | None = None
    #: Each occurrence is due up to this number of seconds later, always the same number for the same one.
    jitter_s: Jitter = 0.0
    task: Name
    #: Of each job; `{{scheduled_at}}` in a string is replaced by the time of the occurrence.
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    #: Null, and so for the next two: those of the task.
    queue: Name | None = None
    timeout_s: Timeout | None = None
    max_attempts: Attempts | None = None
    priority: Priority = 0
    labels: ScheduleLabels = msgspec.field(default_factory=dict)
    #: What becomes of an occurrence while jobs of the schedule have not ended: it is skipped, waits (at most one, or up
    #: to 100), cancels them, or starts all the same.
    overlap: Overlap = "skip"
    #: Which late occurrences start after an outage, a sleep or a step of the clock: the latest, none, the newest 100.
    catch_up: CatchUp = "one"
    #: Occurrences that are later than this number of seconds are missed.
    catch_up_window_s: CatchUpWindow = DAY_S
    #: The schedule is paused when this number of its jobs in a row have ended in error. 0: never.
    pause_after_failures: Failures = 0
    paused: bool = False


class EditSchedule(ClientRequest, frozen=True, kw_only=True):
    """What is left out stays; null takes `start`, `end`, `queue`, `timeout_s` or `max_attempts` away."""

    cron: Cron | UnsetType = UNSET
    every: Every | UnsetType = UNSET
    timezone: Zone | UnsetType = UNSET
    start: Instant | UnsetType | None = UNSET
    end: Instant | UnsetType | None = UNSET
    jitter_s: Jitter | UnsetType = UNSET
    task: Name | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    queue: Name | UnsetType | None = UNSET
    timeout_s: Timeout | UnsetType | None = UNSET
    max_attempts: Attempts | UnsetType | None = UNSET
    priority: Priority | UnsetType = UNSET
    labels: ScheduleLabels | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    catch_up: CatchUp | UnsetType = UNSET
    catch_up_window_s: CatchUpWindow | UnsetType = UNSET
    pause_after_failures: Failures | UnsetType = UNSET


class ScheduleEventObject(msgspec.Struct, frozen=True, kw_only=True):
    at_ts: int
    #: `missed`: never becomes a job; `skipped`: left out because others had not ended; `delayed`: no job could be made
    #: yet; `paused`: by jobd itself.
    kind: Literal["missed", "skipped", "delayed", "paused"]
    #: The occurrence, or the first and the last of several.
    first_for_ts: int | None
    last_for_ts: int | None
    #: How many occurrences.
    number: int
    #: For people: why.
    detail: str


class ScheduleObject(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: `config`: it is changed by the configuration only.
    origin: Literal["config", "api"]
    cron: str
    every: str
    timezone: str
    start: datetime | None
    end: datetime | None
    jitter_s: float
    task: str
    payload: dict[str, Any]
    queue: str | None
    timeout_s: float | None
    max_attempts: int | None
    priority: int
    labels: dict[str, str]
    overlap: Overlap
    catch_up: CatchUp
    catch_up_window_s: int
    pause_after_failures: int
    paused: bool
    #: Why, if jobd paused it.
    paused_why: str | None
    #: The next occurrence; null: there is none any more, or the clock is not right yet.
    next_ts: int | None
    #: When it becomes a job: later by its jitter.
    due_ts: int | None
    #: The next five, in ms since 1970.
    upcoming_ts: list[int]
    #: Occurrences that wait for the end of others.
    buffered_ts: list[int]
    #: Its jobs that have not been seen to end, oldest first.
    open_jobs: list[UUID]
    #: Jobs in a row that ended in error.
    failures: int
    #: Occurrences that became jobs, were skipped, and were missed, since it was made.
    started_count: int
    skipped_count: int
    missed_count: int
    #: Name of the token that made it; null: the configuration, or a caller without a token.
    created_by: str | None
    created_ts: int
    updated_ts: int
    #: What happened beside its jobs, newest first, up to 20; only in the answer for one schedule.
    events: list[ScheduleEventObject] | UnsetType = UNSET


class SchedulePage(msgspec.Struct, frozen=True):
    #: By name.
    schedules: list[ScheduleObject]
    #: Send it as `after` for the next page; null: this was the last.
    next: str | None


class Occurrence(msgspec.Struct, frozen=True):
    at_ts: int
    #: The same in the schedule's zone, as RFC 3339.
    local: str


class NextTimes(msgspec.Struct, frozen=True):
    timezone: str
    occurrences: list[Occurrence]


class RunScheduleAnswer(msgspec.Struct, frozen=True):
    job_id: UUID


class Backfill(ClientRequest, frozen=True, kw_only=True):
    #: The first and the last instant, in milliseconds since 1970; at most 100 occurrences.
    from_ts: Moment
    to_ts: Moment


class BackfillAnswer(msgspec.Struct, frozen=True):
    #: Jobs that were made.
    started: list[UUID]
    #: Occurrences that wait for the end of others, and become jobs one by one.
    buffered: int
    #: Occurrences that had a job already.
    existing: int


class DeletedSchedule(msgspec.Struct, frozen=True):
    name: str
