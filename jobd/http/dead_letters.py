"""`/v1/dlq`: jobs that ended in error, and running many of them again. Each runs again only once."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import UNSET

from jobd.http.body import read_json
from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.jobs import queue_full
from jobd.http.query import read_query
from jobd.lifecycle.enqueue import QueueFull
from jobd.lifecycle.read import list_dead_letters
from jobd.wire import gateway as wire
from jobd.wire.milliseconds import ms
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

FILTERS = (
    Parameter("queue", wire.Name, "Only jobs of this queue."),
    Parameter("task", wire.Name, "Only jobs of this task."),
    Parameter("limit", wire.Limit, "Largest number of dead letters in the answer; 50 without it."),
    Parameter("before", UUID, "Only jobs older than this: `next` of the page before."),
)
#: Dead letters in an answer when the query names no limit.
PAGE = 50
#: Largest body in bytes: a thousand ids and the other fields.
BODY_BYTES = 64 * 1024


async def get_dead_letters(call: Call) -> Response:
    query = read_query(call.request, FILTERS)
    most = query.pop("limit", PAGE)
    found = await list_dead_letters(call.services.database, most=most, **query)
    letters = [
        wire.DeadLetter(
            job_id=one.job_id,
            queue=one.queue,
            task=one.task,
            reason=one.reason,  # type: ignore[arg-type]  # the table has no other words
            at_ts=ms(one.at),
            redriven_to=one.redriven_to,
        )
        for one in found
    ]
    return json_answer(wire.DeadLetters(letters, found[-1].job_id if len(found) == most else None))


async def retry_dead_letters(call: Call) -> Response:
    asked = await read_json(call.request, wire.Redrive, BODY_BYTES)
    job_ids, more = await _chosen(call, asked)
    redriven = await call.services.engine.redrive(job_ids, again=False) if job_ids else {}
    if isinstance(redriven, QueueFull):
        raise await queue_full(call, redriven.queue)
    return json_answer(wire.RedriveAnswer([wire.Redriven(old, new) for old, new in redriven.items()], more))


async def _chosen(call: Call, asked: wire.Redrive) -> tuple[list[UUID], UUID | None]:
    """The letters to run again, and where to go on."""
    if asked.ids is not UNSET:
        if not (asked.queue is asked.task is asked.before is UNSET):
            raise ApiError("invalid", "ids go with no filter; send them alone, or queue and task without ids")
        return asked.ids, None
    letters = await list_dead_letters(
        call.services.database,
        most=asked.limit,
        before=None if asked.before is UNSET else asked.before,
        queue=None if asked.queue is UNSET else asked.queue,
        task=None if asked.task is UNSET else asked.task,
    )
    more = letters[-1].job_id if len(letters) == asked.limit else None
    return [one.job_id for one in letters if one.redriven_to is None], more


ENDPOINTS = (
    get(
        "/v1/dlq",
        "client",
        get_dead_letters,
        "Dead letters, newest first",
        answers={200: wire.DeadLetters},
        problems=("invalid",),
        parameters=FILTERS,
    ),
    post(
        "/v1/dlq/retry",
        "admin",
        retry_dead_letters,
        "Run dead letters again, each as a new job",
        answers={200: wire.RedriveAnswer},
        problems=("queue_full",),
        body=wire.Redrive,
    ),
)
