"""`/v1/jobs/count`, `/cancel`, `/retry` and `/delete`: how many jobs fit a filter, and one change to all of them.

Every call that changes jobs is recorded in the audit table, in the same commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from jobd.auth.table import audit
from jobd.engine.bulk import CHANGEABLE, change_jobs, changeable
from jobd.http.body import read_json
from jobd.http.endpoint import Call, json_answer, post
from jobd.http.job_filter import job_filter
from jobd.http.jobs import queue_full
from jobd.lifecycle.enqueue import QueueFull
from jobd.lifecycle.prune import LEADER_KEY
from jobd.lifecycle.search import count_jobs
from jobd.store.leader import leading_once
from jobd.wire import gateway as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

    from jobd.engine.bulk import Action
    from jobd.store.session import Session

#: Largest body in bytes: all terms at their longest, escaped.
BODY_BYTES = 64 * 1024


async def post_count(call: Call) -> Response:
    asked = await read_json(call.request, wire.CountRequest, BODY_BYTES)
    wanted = job_filter(call, terms_of(asked))
    if asked.action is not UNSET:
        _check_status(asked, asked.action)
        wanted = changeable(wanted, asked.action)
    found = await count_jobs(call.services.database, wanted)
    return json_answer(wire.CountAnswer(found.count, found.is_exact))


async def cancel_jobs(call: Call) -> Response:
    return await _change(call, "cancel")


async def retry_jobs(call: Call) -> Response:
    return await _change(call, "retry")


async def delete_jobs(call: Call) -> Response:
    return await _change(call, "delete")


async def _change(call: Call, action: Action) -> Response:
    asked = await read_json(call.request, wire.BulkRequest, BODY_BYTES)
    terms = terms_of(asked)
    if not terms and not asked.all:
        raise ApiError("invalid", f'the filter is empty; to {action} every job, send {{"all": true}}')
    _check_status(asked, action)
    before = None if asked.before is UNSET else asked.before

    async def record(session: Session, number: int) -> None:
        written = msgspec.json.encode(terms).decode()
        await audit(session, call.principal.name, f"jobs.{action}", f"{number} jobs that fit {written}")

    wanted = job_filter(call, terms)
    batch = await change_jobs(call.services.engine, action, wanted, most=asked.limit, before=before, record=record)
    if isinstance(batch, QueueFull):
        raise await queue_full(call, batch.queue)
    if batch.result_refs:
        await _remove_files(call, batch.result_refs)
    return json_answer(wire.BulkAnswer(batch.changed, batch.skipped, batch.next_before))


async def _remove_files(call: Call, refs: list[str]) -> None:
    """Remove the results of deleted jobs; while a backup or the janitor is at work, they are left for it to sweep."""
    async with leading_once(call.services.database, LEADER_KEY) as session:
        if session is not None:
            await call.services.results.remove(refs)


def terms_of(asked: wire.Filter) -> dict[str, Any]:
    """The terms of the filter that were sent, by name. An object without labels is none: every job fits it."""
    values = {name: getattr(asked, name) for name in wire.Filter.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET and value != {}}


def _check_status(asked: wire.Filter, action: Action) -> None:
    """A filter that no job can fit is a mistake of the caller."""
    able = CHANGEABLE[action]
    if asked.status is not UNSET and asked.status not in able:
        raise ApiError("invalid", f"{action} changes no job that is {asked.status}; status may be {' or '.join(able)}")
    if "error" not in able and not (asked.error is asked.text is UNSET):
        raise ApiError(
            "invalid", f"error and text are about jobs that ended, which {action} does not change; leave them out"
        )


ENDPOINTS = (
    post(
        "/v1/jobs/count",
        "client",
        post_count,
        "Count the jobs that fit a filter",
        answers={200: wire.CountAnswer},
        body=wire.CountRequest,
        own_jobs=True,
    ),
    post(
        "/v1/jobs/cancel",
        "client",
        cancel_jobs,
        "Cancel the jobs that fit a filter, a batch a call",
        answers={200: wire.BulkAnswer},
        body=wire.BulkRequest,
        own_jobs=True,
    ),
    post(
        "/v1/jobs/retry",
        "client",
        retry_jobs,
        "Run the dead letters that fit a filter again, a batch a call",
        answers={200: wire.BulkAnswer},
        problems=("queue_full",),
        body=wire.BulkRequest,
        own_jobs=True,
    ),
    post(
        "/v1/jobs/delete",
        "client",
        delete_jobs,
        "Delete the finished jobs that fit a filter, a batch a call",
        answers={200: wire.BulkAnswer},
        body=wire.BulkRequest,
        own_jobs=True,
    ),
)
