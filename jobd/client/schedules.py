"""Calls about schedules. Written as in `calls`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from typing_extensions import TypedDict, Unpack

from jobd.client.answers import Schedule, SchedulePage
from jobd.client.calls import payload_json
from jobd.client.retrying import answered
from jobd.client.sansio import ApiRequest
from jobd.wire import schedules as wire
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from jobd.client.calls import Payload
    from jobd.client.sansio import CallSettings, Flow


class ScheduleOptions(TypedDict, total=False):
    """When a schedule is due, its jobs and its policies; see docs/schedules.md. What is left out has its default."""

    #: Five fields or a name such as @daily; or `every`, an interval such as 15m.
    cron: str
    every: str
    #: In which `cron` is read, such as Europe/Berlin; without it UTC.
    timezone: str
    #: Each must have a time zone.
    start: datetime | None
    end: datetime | None
    jitter_s: float
    queue: str | None
    timeout_s: float | None
    max_attempts: int | None
    priority: int
    labels: Mapping[str, str]
    overlap: wire.Overlap
    catch_up: wire.CatchUp
    catch_up_window_s: int
    pause_after_failures: int


class ScheduleEdit(ScheduleOptions, total=False):
    """What is to be changed; None takes `start`, `end`, `queue`, `timeout_s` or `max_attempts` away."""

    task: str
    payload: Payload


def create_schedule(
    settings: CallSettings,
    name: str,
    task: str,
    payload: Payload | None = None,
    *,
    paused: bool = False,
    **options: Unpack[ScheduleOptions],
) -> Flow[Schedule]:
    """Make a schedule. Raises Conflict if there is one of this name.

    Options: `cron` or `every`, timezone, start, end, jitter_s, queue, priority, labels, timeout_s, max_attempts,
    overlap, catch_up, catch_up_window_s, pause_after_failures. `{{scheduled_at}}` in a string of the payload becomes
    the time of the occurrence.
    """
    body = {"name": name, "task": task, "paused": paused, **_sent(payload), **options}
    request = ApiRequest(
        what=f"schedule {name}",
        method="POST",
        path="/v1/schedules",
        body=msgspec.json.encode(body),
        is_repeatable=False,  # it would meet what an earlier try has made
    )
    return answered(settings, request, Schedule)


def edit_schedule(settings: CallSettings, name: str, **changes: Unpack[ScheduleEdit]) -> Flow[Schedule]:
    """Change what is given. Raises Conflict for a schedule of the configuration."""
    fields: dict[str, Any] = {**changes}
    body = {**fields, **_sent(fields.pop("payload", None))}
    request = ApiRequest(what=f"schedule {name}", method="PATCH", path=_path(name), body=msgspec.json.encode(body))
    return answered(settings, request, Schedule)


def _sent(payload: Payload | None) -> dict[str, Any]:
    return {} if payload is None else {"payload": payload_json(payload)}


def delete_schedule(settings: CallSettings, name: str) -> Flow[wire.DeletedSchedule]:
    """Delete it; its jobs stay. Raises NotFound if there is none, Conflict for one of the configuration."""
    request = ApiRequest(what=f"schedule {name}", method="DELETE", path=_path(name), is_repeatable=False)
    return answered(settings, request, wire.DeletedSchedule)


def pause_schedule(settings: CallSettings, name: str) -> Flow[Schedule]:
    """Start no more jobs of it."""
    return answered(settings, _post(name, "pause"), Schedule)


def resume_schedule(settings: CallSettings, name: str) -> Flow[Schedule]:
    """Go on, with the first occurrence from now."""
    return answered(settings, _post(name, "resume"), Schedule)


def run_schedule(settings: CallSettings, name: str) -> Flow[UUID]:
    """Make a job of it now; the id of that job."""
    headers = {"Idempotency-Key": secrets.token_urlsafe(18)}
    answer = yield from answered(settings, _post(name, "run", headers=headers), wire.RunScheduleAnswer)
    return answer.job_id


def backfill_schedule(settings: CallSettings, name: str, since: datetime, until: datetime) -> Flow[wire.BackfillAnswer]:
    """Make jobs of the occurrences between these times, at most 100, that have none."""
    body = msgspec.json.encode({"from_ts": ms(since), "to_ts": ms(until)})
    return answered(settings, _post(name, "backfill", body), wire.BackfillAnswer)


def schedule(settings: CallSettings, name: str) -> Flow[Schedule]:
    """The schedule, and its newest events."""
    return answered(settings, ApiRequest(what=f"schedule {name}", path=_path(name)), Schedule)


def schedules(settings: CallSettings, *, limit: int | None = None, after: str | None = None) -> Flow[SchedulePage]:
    """One page of schedules, by name; its `next`, sent as `after`, leads to the following one."""
    given = {"limit": limit, "after": after}
    query = {name: str(value) for name, value in given.items() if value is not None}
    return answered(settings, ApiRequest(what="list of schedules", path="/v1/schedules", query=query), SchedulePage)


def schedule_next(settings: CallSettings, name: str, *, n: int = 5) -> Flow[wire.NextTimes]:
    """The next `n` times, also in the zone of the schedule."""
    request = ApiRequest(what=f"schedule {name}", path=f"{_path(name)}/next", query={"n": str(n)})
    return answered(settings, request, wire.NextTimes)


def _post(name: str, verb: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> ApiRequest:
    path = f"{_path(name)}/{verb}"
    return ApiRequest(what=f"schedule {name}", method="POST", path=path, body=body, headers=headers or {})


def _path(name: str) -> str:
    return f"/v1/schedules/{quote(name, safe='')}"
