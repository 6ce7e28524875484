"""`/v1/schedules`: make, change, read, pause, resume, run now, backfill, and the next times.

Writing takes the scope `client`: a schedule does nothing that its maker could not do by submitting jobs. Those of the
configuration can be paused, resumed, run and backfilled here, and changed there only.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from jobd.config.model import NAME_PATTERN
from jobd.http.answers import ms_or_none
from jobd.http.body import read_json
from jobd.http.endpoint import Call, Parameter, delete, get, json_answer, patch, post
from jobd.http.jobs import IDEMPOTENCY_KEY, key_busy, key_mismatch, queue_full
from jobd.http.query import read_query
from jobd.http.submit import body_limit, check_payload, idempotency_key, key_in, task_and_queue
from jobd.lifecycle.enqueue import Created, Existing, KeyMismatch, QueueFull
from jobd.occurrences.cron import zone
from jobd.occurrences.timing import SOME_TIME, BadTiming
from jobd.occurrences.walk import A_MOMENT, occurrences_after
from jobd.schedules import change, extra
from jobd.schedules.definition import Definition, definition_of
from jobd.schedules.fire import look
from jobd.schedules.job import largest_payload_bytes, places
from jobd.schedules.table import list_schedules, read_events, read_schedule
from jobd.tickets.render import filled
from jobd.wire import schedules as wire
from jobd.wire.gateway import Name
from jobd.wire.milliseconds import moment, ms
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.responses import Response

    from jobd.schedules.extra import Started
    from jobd.schedules.table import ScheduleNote, ScheduleRow

#: Schedules in an answer when the query names no limit.
PAGE = 100
#: Occurrences ahead that an object shows.
UPCOMING = 5
#: Events in the answer for one schedule.
EVENTS = 20
#: Largest body of a backfill in bytes.
BODY_BYTES = 4096

NAME = Parameter("name", Name, "The name of a schedule.", "path")
LISTED = (
    Parameter("limit", wire.ScheduleLimit, "Largest number of schedules in the answer; 100 without it."),
    Parameter("after", Name, "Only schedules behind this name: `next` of the page before."),
)
NUMBER = Parameter("n", wire.NumberOfTimes, "How many; 5 without it.")
KEY = IDEMPOTENCY_KEY._replace(meaning="Sent again within 24 hours, it leads to the same job.")


# -- change ------------------------------------------------------------------------------------------------------------


async def create_schedule(call: Call) -> Response:
    call.services.disk.check()
    asked = await read_json(call.request, wire.CreateSchedule, body_limit(call.services.config()))
    row = await change.create(
        call.services.database,
        asked.name,
        checked(call, definition_of(asked)),
        actor=call.principal.name,
        created_by=call.principal.name if call.principal.has_token else None,
        is_paused=asked.paused,
    )
    return await _changed(call, row, 201)


async def edit_schedule(call: Call) -> Response:
    asked = await read_json(call.request, wire.EditSchedule, body_limit(call.services.config()))
    sent = {name: value for name, value in msgspec.structs.asdict(asked).items() if value is not UNSET}
    if sent.keys() >= {"cron"} and sent["cron"]:
        sent.setdefault("every", "")
    elif sent.keys() >= {"every"} and sent["every"]:
        sent.setdefault("cron", "")

    def edited(definition: Definition) -> Definition:
        return checked(call, msgspec.structs.replace(definition, **sent))

    row = await change.edit(call.services.database, _name(call), edited, actor=call.principal.name)
    return await _changed(call, row)


def checked(call: Call, definition: Definition) -> Definition:
    """The definition, if jobs can be made of it here; raises ApiError."""
    services = call.services
    config = services.config()
    try:
        definition.timing()
    except BadTiming as error:
        raise ApiError("invalid", f"{error.field}: {error} - at `$.{error.field}`") from None
    task_and_queue(definition.task, definition.queue, config)
    size, limit = largest_payload_bytes(definition), config.limits.payload_bytes
    if size > limit:
        raise ApiError("too_large", f"payload has {size} bytes once filled in, the limit is {limit}")
    check_payload(definition.task, filled(definition.payload, places(definition, SOME_TIME)), services.runners)
    return definition


async def delete_schedule(call: Call) -> Response:
    await change.delete(call.services.database, _name(call), actor=call.principal.name)
    return json_answer(wire.DeletedSchedule(_name(call)))


async def pause_schedule(call: Call) -> Response:
    return await _changed(call, await change.pause(call.services.database, _name(call), actor=call.principal.name))


async def resume_schedule(call: Call) -> Response:
    return await _changed(call, await change.resume(call.services.database, _name(call), actor=call.principal.name))


async def _changed(call: Call, row: ScheduleRow, status: int = 200) -> Response:
    """The schedule as it is now; the service plans by it at once."""
    call.services.schedules.wakeup.set()
    seen = await look(call.services.database)
    headers = {"Location": f"/v1/schedules/{row.name}"} if status == 201 else None
    return json_answer(schedule_object(row, seen.now), status, headers)


def _name(call: Call) -> str:
    name: str = call.request.path_params["name"]
    if not re.fullmatch(NAME_PATTERN, name):
        raise change.unknown(name)
    return name


# -- jobs beside its time ----------------------------------------------------------------------------------------------


async def run_schedule(call: Call) -> Response:
    services, name = call.services, _name(call)
    services.disk.check()
    key = key_in(call)
    once = None if key is None else idempotency_key(call, key, f"/v1/schedules/{name}/run", b"")
    try:
        started = await extra.run_now(services.database, name, services.config(), actor=call.principal.name, key=once)
    except extra.NotStarted as refused:
        raise await _refused(call, refused) from None
    (job_id,) = _made(call, started)
    return json_answer(wire.RunScheduleAnswer(job_id), 202, {"Location": f"/v1/jobs/{job_id}"})


async def backfill_schedule(call: Call) -> Response:
    services = call.services
    services.disk.check()
    asked = await read_json(call.request, wire.Backfill, BODY_BYTES)
    if asked.to_ts < asked.from_ts:
        raise ApiError("invalid", "to_ts must not be earlier than from_ts - at `$.to_ts`")
    try:
        filled_up = await extra.backfill(
            services.database,
            _name(call),
            services.config(),
            since=moment(asked.from_ts),
            until=moment(asked.to_ts),
            actor=call.principal.name,
        )
    except extra.NotStarted as refused:
        raise await _refused(call, refused) from None
    made = _made(call, filled_up.started)
    return json_answer(wire.BackfillAnswer(made, filled_up.buffered, filled_up.existing), 202)


def _made(call: Call, started: Started) -> list[Any]:
    """The ids of the jobs; the slots and the service of schedules are woken for them."""
    call.services.engine.enqueued(started.jobs, started.answers)
    call.services.schedules.wakeup.set()
    return [answer.job_id for answer in started.answers if isinstance(answer, (Created, Existing))]


async def _refused(call: Call, refused: extra.NotStarted) -> ApiError:
    if isinstance(refused.answer, QueueFull):
        return await queue_full(call, refused.answer.queue)
    return key_mismatch() if isinstance(refused.answer, KeyMismatch) else key_busy()


# -- read --------------------------------------------------------------------------------------------------------------


async def get_schedules(call: Call) -> Response:
    query = read_query(call.request, LISTED)
    most = query.get("limit", PAGE)
    rows = await list_schedules(call.services.database, most=most, after=query.get("after", ""))
    seen = await look(call.services.database)
    objects = [schedule_object(row, seen.now) for row in rows]
    return json_answer(wire.SchedulePage(objects, rows[-1].name if len(rows) == most else None))


async def get_schedule(call: Call) -> Response:
    read_query(call.request, ())
    row = await _read(call)
    events = await read_events(call.services.database, row.name, most=EVENTS)
    seen = await look(call.services.database)
    shown = schedule_object(row, seen.now)
    return json_answer(msgspec.structs.replace(shown, events=[_event_object(event) for event in events]))


async def get_next(call: Call) -> Response:
    number = read_query(call.request, (NUMBER,)).get("n", UPCOMING)
    row = await _read(call)
    seen = await look(call.services.database)
    where = zone(row.definition.timezone)
    occurrences = [
        wire.Occurrence(ms(at), at.astimezone(where).isoformat(timespec="seconds"))
        for at in upcoming(row, seen.now, number)
    ]
    return json_answer(wire.NextTimes(row.definition.timezone, occurrences))


async def _read(call: Call) -> ScheduleRow:
    row = await read_schedule(call.services.database, _name(call))
    if row is None:
        raise change.unknown(_name(call))
    return row


def upcoming(row: ScheduleRow, now: datetime, number: int) -> list[datetime]:
    """The next occurrences, from the one that is planned or, of a paused schedule, from now."""
    is_planned = row.occurrence is not None and not row.is_paused
    after = row.occurrence - A_MOMENT if is_planned and row.occurrence is not None else now
    return list(islice(occurrences_after(row.definition.timing(), after), number))


def schedule_object(row: ScheduleRow, now: datetime) -> wire.ScheduleObject:
    return wire.ScheduleObject(
        name=row.name,
        origin=row.origin,
        **msgspec.structs.asdict(row.definition),
        paused=row.is_paused,
        paused_why=row.paused_why,
        next_ts=ms_or_none(row.occurrence),
        due_ts=None if row.occurrence is None else ms_or_none(row.next_at),
        upcoming_ts=[ms(at) for at in upcoming(row, now, UPCOMING)],
        buffered_ts=[ms(at) for at in row.buffered],
        open_jobs=list(row.open_jobs),
        failures=row.failures,
        started_count=row.started,
        skipped_count=row.skipped,
        missed_count=row.missed,
        created_by=row.created_by,
        created_ts=ms(row.created_at),
        updated_ts=ms(row.updated_at),
    )


def _event_object(event: ScheduleNote) -> wire.ScheduleEventObject:
    return wire.ScheduleEventObject(
        at_ts=ms(event.at),
        kind=event.kind,
        first_for_ts=ms_or_none(event.first_for),
        last_for_ts=ms_or_none(event.last_for),
        number=event.number,
        detail=event.detail,
    )


DEFINED = ("unknown_task", "unknown_queue", "wrong_queue", "invalid_payload", "too_large")
STARTED = ("unknown_schedule", "schedule_blocked", "queue_full", "key_busy", "disk_low")
CHANGED = ("unknown_schedule", "schedule_configured")

ENDPOINTS = (
    get(
        "/v1/schedules",
        "client",
        get_schedules,
        "List schedules, by name",
        answers={200: wire.SchedulePage},
        problems=("invalid",),
        parameters=LISTED,
    ),
    post(
        "/v1/schedules",
        "client",
        create_schedule,
        "Make a schedule",
        answers={201: wire.ScheduleObject},
        problems=(*DEFINED, "schedule_exists", "disk_low"),
        body=wire.CreateSchedule,
        headers={"Location": "Where the schedule can be read."},
    ),
    get(
        "/v1/schedules/{name}",
        "client",
        get_schedule,
        "Read a schedule, and what happened to it",
        answers={200: wire.ScheduleObject},
        problems=("unknown_schedule", "invalid"),
        parameters=(NAME,),
    ),
    patch(
        "/v1/schedules/{name}",
        "client",
        edit_schedule,
        "Change a schedule",
        answers={200: wire.ScheduleObject},
        problems=(*CHANGED, *DEFINED),
        body=wire.EditSchedule,
        parameters=(NAME,),
    ),
    delete(
        "/v1/schedules/{name}",
        "client",
        delete_schedule,
        "Delete a schedule; its jobs stay",
        answers={200: wire.DeletedSchedule},
        problems=CHANGED,
        parameters=(NAME,),
    ),
    post(
        "/v1/schedules/{name}/pause",
        "client",
        pause_schedule,
        "Start no more jobs of a schedule",
        answers={200: wire.ScheduleObject},
        problems=("unknown_schedule",),
        parameters=(NAME,),
    ),
    post(
        "/v1/schedules/{name}/resume",
        "client",
        resume_schedule,
        "Go on with a paused schedule, from now",
        answers={200: wire.ScheduleObject},
        problems=("unknown_schedule",),
        parameters=(NAME,),
    ),
    post(
        "/v1/schedules/{name}/run",
        "client",
        run_schedule,
        "Make a job of a schedule now",
        answers={202: wire.RunScheduleAnswer},
        problems=(*STARTED, "bad_idempotency_key", "idempotency_mismatch"),
        parameters=(NAME, KEY),
        headers={"Location": "Where the job can be read."},
    ),
    post(
        "/v1/schedules/{name}/backfill",
        "client",
        backfill_schedule,
        "Make jobs of past occurrences that have none",
        answers={202: wire.BackfillAnswer},
        problems=(*STARTED, "backfill_too_large", "idempotency_mismatch"),
        body=wire.Backfill,
        parameters=(NAME,),
    ),
    get(
        "/v1/schedules/{name}/next",
        "client",
        get_next,
        "The next times of a schedule",
        answers={200: wire.NextTimes},
        problems=("unknown_schedule", "invalid"),
        parameters=(NAME, NUMBER),
    ),
)
