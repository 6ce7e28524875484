"""`/v1/groups`: make, read, wait, list, seal, cancel, run again; and the graph of jobs around one.

To cancel a group also seals it. A call changes a bounded number of members; the caller goes on from `next`. Each such
call is recorded in the audit table, in the same commit.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import anyio
import msgspec
from msgspec import UNSET, Meta, Raw

from jobd.auth.table import audit
from jobd.engine.bulk import change_jobs
from jobd.http.answers import job_id_in, labels_in, ms_or_none, read_job
from jobd.http.body import JSON_TYPES, check_content_type, read_bytes, read_json
from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.events import HEARTBEAT_S, MEDIA_TYPE, EventStream, event_part
from jobd.http.hang_up import while_wanted
from jobd.http.job_graph import graph_around
from jobd.http.jobs import JOB_ID, MISSING, SUBMIT_PROBLEMS, queue_full
from jobd.http.query import read_query
from jobd.http.submit import body_limit, check_memory, new_job, sender_of
from jobd.lifecycle.depend import Dependency
from jobd.lifecycle.enqueue import QueueFull
from jobd.lifecycle.groups import NewGroup, list_groups, read_group
from jobd.lifecycle.search import JobFilter
from jobd.store.ids import new_id
from jobd.wire import gateway
from jobd.wire import groups as wire
from jobd.wire.json_check import check_json
from jobd.wire.milliseconds import ms
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from jobd.engine.bulk import Action
    from jobd.lifecycle.enqueue import NewJob
    from jobd.lifecycle.groups import Group
    from jobd.store.session import Session

#: Largest body in bytes of a call that changes members.
BODY_BYTES = 4 * 1024
#: Groups in an answer when the query names no limit.
PAGE = 50
#: Seconds between two looks at a group that is waited for, if its last member ends on another node.
POLL_S = 1.0
#: Least seconds between two events of a group: its counters may move hundreds of times a second.
QUIET_S = 0.1

GROUP_ID = Parameter("id", UUID, "The id of a group.", "path")
WAIT_S = Parameter(
    "wait_s",
    Annotated[float, Meta(ge=0, le=gateway.MAX_WAIT_S)],
    "Hold the answer until the group is finished, for at most this number of seconds.",
)
PAGES = (
    Parameter("limit", Annotated[int, Meta(ge=1, le=wire.MAX_GROUPS)], "Largest number of groups; 50 without it."),
    Parameter("before", UUID, "Only groups older than this: `next` of the page before."),
)
_decode = msgspec.json.Decoder(wire.GroupRequest).decode


def group_object(group: Group) -> wire.GroupObject:
    return wire.GroupObject(
        group_id=group.id,
        name=group.name,
        labels=labels_in(group.labels),
        owner=group.owner,
        sealed=group.sealed,
        members=group.members,
        pending=group.members - group.done - group.error - group.canceled,
        done=group.done,
        error=group.error,
        canceled=group.canceled,
        retried=group.retried,
        status=group.status,
        callback_id=group.callback_id,
        created_ts=ms(group.created_at),
        finished_ts=ms_or_none(group.finished_at),
    )


def group_id_in(call: Call) -> UUID:
    text = call.request.path_params["id"]
    with contextlib.suppress(ValueError):
        if len(text) == 36:
            return UUID(text)
    raise ApiError("no_such_group", f"{text[:64]!r} is no group id")


async def _found(call: Call, group_id: UUID) -> Group:
    """The group, if the caller may see it; raises ApiError `no_such_group`."""
    group = await read_group(call.services.database, group_id)
    if group is None or call.principal.sees not in (None, group.owner):
        raise ApiError("no_such_group", f"there is no group {group_id}, or it has finished and was deleted")
    return group


# -- make and read -----------------------------------------------------------------------------------------------------


async def create(call: Call) -> Response:
    services = call.services
    services.disk.check()
    asked = await _request(call, body_limit(services.config()))
    sender = sender_of(call)
    group_id = new_id() if asked.id is UNSET else asked.id
    group = NewGroup(
        id=group_id,
        name=None if asked.name is UNSET else asked.name,
        labels=None if asked.labels is UNSET or not asked.labels else msgspec.json.encode(asked.labels).decode(),
        owner=sender.owner,
        callback=None if asked.callback is UNSET else _callback(call, asked, group_id),
    )
    is_new = await services.engine.create_group(group)
    made = group_object(await _found(call, group_id))
    return json_answer(made, 201 if is_new else 200, {"Location": f"/v1/groups/{group_id}"})


async def _request(call: Call, limit: int) -> wire.GroupRequest:
    """The body; the callback in it stays as it was sent."""
    check_content_type(call.request, JSON_TYPES)
    body = await read_bytes(call.request, limit)
    if type(check_json(body, limit)) is not dict:
        raise ApiError("not_object", "a group must be a JSON object")
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        raise ApiError("invalid", str(error)) from None


def _callback(call: Call, asked: wire.GroupRequest, group_id: UUID) -> NewJob:
    assert isinstance(asked.callback, Raw)
    services = call.services
    raw = bytes(asked.callback)
    value = check_json(raw, body_limit(services.config()))
    for name in ("depends_on", "group", "ref"):
        if isinstance(value, dict) and value.get(name):
            raise ApiError(
                "invalid", f"the callback waits for its group and enters none; leave out `$.callback.{name}`"
            )
    job = new_job(new_id(), raw, services.config(), None, services.runners, sender_of(call))
    check_memory(job, services.memory, services.config())
    on_group = Dependency(on_id=group_id, is_group=True, on_any=asked.callback_on == "any", ref="group")
    return msgspec.structs.replace(job, depends_on=(on_group,), dedupe="none")


async def get_group(call: Call) -> Response:
    group_id = group_id_in(call)
    until = time.monotonic() + read_query(call.request, (WAIT_S,)).get("wait_s", 0.0)
    group = await _found(call, group_id)
    if until > time.monotonic():
        async with while_wanted(call.request.app.state.in_flight, call.request.receive):
            while not group.is_finished and (left_s := until - time.monotonic()) > 0:
                await call.services.engine.wait_for_settled(min(left_s, POLL_S))
                group = await _found(call, group_id)
    return json_answer(group_object(group))


async def get_groups(call: Call) -> Response:
    query = read_query(call.request, PAGES)
    most = query.get("limit", PAGE)
    owner = call.principal.sees
    found = await list_groups(call.services.database, most=most, before=query.get("before"), owner=owner)
    return json_answer(
        wire.GroupPage([group_object(group) for group in found], found[-1].id if len(found) == most else None)
    )


async def group_events(call: Call) -> Any:
    group = await _found(call, group_id_in(call))
    return EventStream(call.request, _events_of(call, group))


async def _events_of(call: Call, group: Group) -> AsyncIterator[bytes]:
    """The group at first and whenever it has changed, until it is finished."""
    yield event_part("group", group_object(group), retry=True)
    quiet_since = time.monotonic()
    while not group.is_finished:
        await call.services.engine.wait_for_settled(POLL_S)
        now = await read_group(call.services.database, group.id)
        if now is None:
            return
        if now != group:
            group, quiet_since = now, time.monotonic()
            yield event_part("group", group_object(group))
            await anyio.sleep(0.0 if group.is_finished else QUIET_S)
        elif time.monotonic() - quiet_since > HEARTBEAT_S:
            quiet_since = time.monotonic()
            yield b":\n\n"


async def get_graph(call: Call) -> Response:
    job = await read_job(call, job_id_in(call.request.path_params["id"]))
    return json_answer(await graph_around(call.services.database, job.id, owner=call.principal.sees))


# -- change ------------------------------------------------------------------------------------------------------------


async def seal(call: Call) -> Response:
    group_id = (await _found(call, group_id_in(call))).id
    await call.services.engine.seal_group(group_id)
    return json_answer(group_object(await _found(call, group_id)))


async def cancel_group(call: Call) -> Response:
    return await _change(call, "cancel")


async def retry_group(call: Call) -> Response:
    return await _change(call, "retry")


async def _change(call: Call, action: Action) -> Response:
    group_id = group_id_in(call)
    asked = await read_json(call.request, wire.GroupChange, BODY_BYTES)
    await _found(call, group_id)
    if action == "cancel":
        await call.services.engine.seal_group(group_id)

    async def record(session: Session, number: int) -> None:
        await audit(session, call.principal.name, f"groups.{action}", f"{number} members of group {group_id}")

    before = None if asked.before is UNSET else asked.before
    wanted = JobFilter(group=group_id, owner=call.principal.sees)
    batch = await change_jobs(call.services.engine, action, wanted, most=asked.limit, before=before, record=record)
    if isinstance(batch, QueueFull):
        raise await queue_full(call, batch.queue)
    return json_answer(gateway.BulkAnswer(batch.changed, batch.skipped, batch.next_before))


_MISSING = ("no_such_group",)
ENDPOINTS = (
    post(
        "/v1/groups",
        "client",
        create,
        "Make a group of jobs, with a job that runs when all of them are final",
        answers={201: wire.GroupObject, 200: wire.GroupObject},
        problems=(*SUBMIT_PROBLEMS, "invalid"),
        body=wire.GroupRequest,
        headers={"Location": "Where the group can be read."},
        own_jobs=True,
    ),
    get(
        "/v1/groups/{id}",
        "client",
        get_group,
        "Read a group, or wait until it is finished",
        answers={200: wire.GroupObject},
        problems=(*_MISSING, "invalid"),
        parameters=(GROUP_ID, WAIT_S),
        own_jobs=True,
    ),
    get(
        "/v1/groups",
        "client",
        get_groups,
        "List groups, newest first",
        answers={200: wire.GroupPage},
        problems=("invalid",),
        parameters=PAGES,
        own_jobs=True,
    ),
    get(
        "/v1/groups/{id}/events",
        "client",
        group_events,
        "Follow the counters of a group until it is finished",
        answers={200: None},
        problems=_MISSING,
        parameters=(GROUP_ID,),
        media_type=MEDIA_TYPE,
        own_jobs=True,
    ),
    post(
        "/v1/groups/{id}/seal",
        "client",
        seal,
        "Let no more jobs enter the group",
        answers={200: wire.GroupObject},
        problems=_MISSING,
        parameters=(GROUP_ID,),
        own_jobs=True,
    ),
    post(
        "/v1/groups/{id}/cancel",
        "client",
        cancel_group,
        "Seal a group and cancel its members, a batch a call",
        answers={200: gateway.BulkAnswer},
        problems=_MISSING,
        body=wire.GroupChange,
        parameters=(GROUP_ID,),
        own_jobs=True,
    ),
    post(
        "/v1/groups/{id}/retry",
        "client",
        retry_group,
        "Run the members that ended in error again, a batch a call",
        answers={200: gateway.BulkAnswer},
        problems=(*_MISSING, "queue_full"),
        body=wire.GroupChange,
        parameters=(GROUP_ID,),
        own_jobs=True,
    ),
    get(
        "/v1/jobs/{id}/graph",
        "client",
        get_graph,
        "Read the jobs and groups that a job waits for, and those that wait for it",
        answers={200: wire.JobGraph},
        problems=MISSING,
        parameters=(JOB_ID,),
        own_jobs=True,
    ),
)
