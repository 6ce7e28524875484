"""`/v1/dlq`: jobs that ended in error, and running many of them again. Each runs again only once."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import UNSET

from jobd.http.body import read_json
from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.jobs import queue_full
from jobd.http.query import read_query
from jobd.lifecycle.dead_letter_groups import group_dead_letters
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
    page = await list_dead_letters(call.services.database, most=most, owner=call.principal.sees, **query)
    letters = [
        wire.DeadLetter(
            job_id=letter.job_id,
            queue=letter.queue,
            task=letter.task,
            reason=letter.reason,  # type: ignore[arg-type]  # the table has no other words
            at_ts=ms(letter.at),
            redriven_to=letter.redriven_to,
        )
        for letter in page.letters
    ]
    return json_answer(wire.DeadLetters(letters, page.next_before))


async def get_dead_letter_groups(call: Call) -> Response:
    read_query(call.request, ())
    found = await group_dead_letters(call.services.database)
    groups = [
        wire.DeadLetterGroup(
            error=group.code,
            task=group.task,
            count=group.number,
            open=group.open,
            first_ts=ms(group.first_at),
            last_ts=ms(group.last_at),
            example_id=group.example_id,
            message=group.message,
        )
        for group in found.groups
    ]
    return json_answer(wire.DeadLetterGroups(groups, found.is_whole))


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
    page = await list_dead_letters(
        call.services.database,
        most=asked.limit,
        before=None if asked.before is UNSET else asked.before,
        queue=None if asked.queue is UNSET else asked.queue,
        task=None if asked.task is UNSET else asked.task,
    )
    return [letter.job_id for letter in page.letters if letter.redriven_to is None], page.next_before


ENDPOINTS = (
    get(
        "/v1/dlq",
        "client",
        get_dead_letters,
        "Dead letters, newest first",
        answers={200: wire.DeadLetters},
        problems=("invalid",),
        parameters=FILTERS,
        own_jobs=True,
    ),
    get(
        "/v1/dlq/groups",
        "client",
        get_dead_letter_groups,
        "Dead letters by error and task",
        answers={200: wire.DeadLetterGroups},
        problems=("invalid",),
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
