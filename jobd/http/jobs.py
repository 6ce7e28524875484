"""`/v1/jobs`: submit, read, wait, list, cancel, run again. `POST /v1/jobs` is the call that has to be fast.

A job that was just made is answered from what was sent and the time of its commit, without reading it back.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from msgspec import UNSET, Meta, Raw
from starlette.background import BackgroundTask

from jobd.http.answers import (
    check_seen,
    job_id_in,
    job_object,
    job_summary,
    labels_in,
    missing,
    ms_or_none,
    read_job,
    whole_object,
)
from jobd.http.body import JSON_TYPES, check_content_type, read_bytes
from jobd.http.dependencies import link_problem
from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.job_filter import job_filter
from jobd.http.query import read_query
from jobd.http.submit import body_limit, check_memory, idempotency_key, key_in, new_job, sender_of
from jobd.http.wait import read_when_final, wait_for_end
from jobd.job.model import AlreadyFinal, Canceled, CancelRequested
from jobd.job.status import FINAL_STATUSES
from jobd.lifecycle.depend import LinkRefused
from jobd.lifecycle.enqueue import Created, Existing, KeyBusy, KeyMismatch, QueueFull
from jobd.lifecycle.search import list_by_spec, search_jobs
from jobd.store.ids import new_id
from jobd.wire import gateway as wire
from jobd.wire.milliseconds import ms
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.responses import Response

    from jobd.lifecycle.enqueue import NewJob

IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    Annotated[str, Meta(min_length=1, max_length=255, pattern="^[!-~]+$")],
    "Sent again with the same body within 24 hours, it leads to the same job.",
    "header",
)
TRACE_HEADERS = (
    Parameter("traceparent", str, "The trace that the jobs belong to (W3C Trace Context).", "header"),
    Parameter("tracestate", str, "Goes with traceparent.", "header"),
)
JOB_ID = Parameter("id", UUID, "The id of a job.", "path")
WAIT_S = Parameter(
    "wait_s",
    Annotated[float, Meta(ge=0, le=wire.MAX_WAIT_S)],
    "Hold the answer until the job is final, for at most this number of seconds.",
)
FILTERS = (
    Parameter("status", wire.Status, "Only jobs with this status."),
    Parameter("task", wire.Name, "Only jobs of this task."),
    Parameter("queue", wire.Name, "Only jobs of this queue."),
    Parameter("error", wire.ErrorCode, "Only jobs that ended in an error with this code."),
    Parameter(
        "text", wire.SearchText, "Only jobs that ended in an error with this in its message, in any case of letters."
    ),
    Parameter(
        "label",
        wire.LabelTerms,
        "Only jobs with this label, as `name:value`; sent again, with that one too.",
        "query",
        True,
    ),
    Parameter("owner", wire.SearchText, "Only jobs that the token of this name has sent."),
    Parameter("schedule", wire.Name, "Only jobs that this schedule has made."),
    Parameter("group", UUID, "Only members of this group."),
    Parameter("since_ts", wire.Moment, "Only jobs made at this time or later, in milliseconds since 1970."),
    Parameter("until_ts", wire.Moment, "Only jobs made before this time, in milliseconds since 1970."),
    Parameter("spec_hash", wire.Hex, "Only jobs that do exactly this; goes with no other filter."),
    Parameter("limit", wire.Limit, "Largest number of jobs in the answer; 50 without it."),
    Parameter("before", UUID, "Only jobs older than this: `next` of the page before."),
)
#: Jobs in an answer when the query names no limit.
PAGE = 50


# -- submit ------------------------------------------------------------------------------------------------------------


async def submit_job(call: Call) -> Response:
    services = call.services
    config = services.config()
    wait_s = _wait_s(call) if call.request.scope["query_string"] else 0.0
    check_content_type(call.request, JSON_TYPES)
    services.disk.check()
    key = key_in(call)
    body = await read_bytes(call.request, body_limit(config))
    booked = None if key is None else idempotency_key(call, key, "/v1/jobs", body)
    job = new_job(new_id(), body, config, booked, services.runners, sender_of(call))
    check_memory(job, services.memory, config)
    made = await (_enqueue_and_wait(call, job, wait_s) if wait_s else _enqueue(call, job))
    status = 200 if wait_s and made.status in FINAL_STATUSES else 202
    response = json_answer(made, status, {"Location": f"/v1/jobs/{made.job_id}"})
    if key is not None:
        services.mirror.copy_later(key, made.job_id, made.ttl_s)
    if services.drain.is_old():
        response.background = BackgroundTask(services.drain.sample)
    return response


def _wait_s(call: Call) -> float:
    if "wait_s" not in call.request.query_params:
        return 0.0
    wait_s: float = read_query(call.request, (WAIT_S,))["wait_s"]
    return wait_s


async def _enqueue(call: Call, job: NewJob) -> wire.JobObject:
    accepted = await accepted_job(call, job)
    if isinstance(accepted, Created) and accepted.created_at is not None and not job.depends_on:
        return created_object(job, accepted.created_at)
    return await _found_object(call, accepted)


async def _enqueue_and_wait(call: Call, job: NewJob, wait_s: float) -> wire.JobObject:
    tailer = call.services.tailer
    with tailer.waiting(job.id, is_made=False) as waiter:
        accepted = await accepted_job(call, job)
        if isinstance(accepted, Created):
            tailer.made(waiter)
            await wait_for_end(call.request, waiter, wait_s)
            return await _found_object(call, accepted)
    return await _found_object(call, accepted, wait_s)


async def accepted_job(call: Call, job: NewJob) -> Created | Existing:
    answer = await call.services.engine.enqueue(job)
    if isinstance(answer, KeyBusy):
        raise key_busy()
    if isinstance(answer, KeyMismatch):
        raise key_mismatch()
    if isinstance(answer, QueueFull):
        raise await queue_full(call, answer.queue)
    if isinstance(answer, LinkRefused):
        raise link_problem(answer)
    return answer


async def _found_object(call: Call, accepted: Created | Existing, wait_s: float = 0.0) -> wire.JobObject:
    whole = await read_when_final(call, accepted.job_id, wait_s)
    return await whole_object(call.services.etas, whole, existing=isinstance(accepted, Existing))


def created_object(job: NewJob, created_at: datetime) -> wire.JobObject:
    run_after = max(job.run_after or created_at, created_at) + timedelta(seconds=job.delay_s)
    created_ts = ms(created_at)
    return wire.JobObject(
        job_id=job.id,
        task=job.task,
        payload=Raw(job.payload.encode()),
        status="queued",
        created_ts=created_ts,
        updated_ts=created_ts,
        ttl_s=job.ttl_s,
        queue=job.queue,
        priority=job.priority,
        run_after_ts=ms(run_after),
        max_attempts=job.max_attempts,
        timeout_s=job.timeout_s,
        spec_hash=None if job.spec_hash is None else job.spec_hash.hex(),
        labels=labels_in(job.labels),
        owner=job.owner,
        traceparent=job.traceparent,
        expires_ts=ms_or_none(expires_at(job, created_at)),
        limit_key=job.limit_key,
        group_id=job.group_id,
    )


def expires_at(job: NewJob, created_at: datetime) -> datetime | None:
    return job.expires_at if job.expires_in_s is None else created_at + timedelta(seconds=job.expires_in_s)


def key_mismatch(index: int | None = None) -> ApiError:
    return ApiError(
        "idempotency_mismatch",
        "the Idempotency-Key was sent before with another body; send a new key for a new request",
        index=index,
    )


def key_busy() -> ApiError:
    return ApiError(
        "key_busy",
        "another request with this Idempotency-Key is under way, or died on another node; send it again in a moment",
        headers={"Retry-After": "1"},
    )


async def queue_full(call: Call, queue: str, index: int | None = None) -> ApiError:
    limit = call.services.config().limits.max_queued
    await call.services.drain.sample()
    after_s = call.services.drain.retry_after_s(queue, limit)
    return ApiError(
        "queue_full",
        f"queue {queue} has {limit} jobs waiting (limits.max_queued); try again in {after_s} s",
        headers={"Retry-After": str(after_s)},
        index=index,
    )


# -- read --------------------------------------------------------------------------------------------------------------


async def get_job(call: Call) -> Response:
    job_id = job_id_in(call.request.path_params["id"])
    wait_s = read_query(call.request, (WAIT_S,)).get("wait_s", 0.0)
    return json_answer(await whole_object(call.services.etas, await read_when_final(call, job_id, wait_s)))


async def get_jobs(call: Call) -> Response:
    query = read_query(call.request, FILTERS)
    session, most, before = call.services.database, query.pop("limit", PAGE), query.pop("before", None)
    spec_hash = query.pop("spec_hash", None)
    if spec_hash is None:
        page = await search_jobs(session, job_filter(call, query), most=most, before=before)
    elif query:
        raise ApiError("invalid", f"spec_hash goes with no other filter; leave out {', '.join(sorted(query))}")
    else:
        sees = call.principal.sees
        page = await list_by_spec(session, bytes.fromhex(spec_hash), most=most, before=before, owner=sees)
    waits = await call.services.etas.waiting([job.id for job in page.jobs if job.status == "queued"])
    return json_answer(
        wire.JobPage([job_summary(job, waits.get(job.id, UNSET)) for job in page.jobs], page.next_before)
    )


# -- change ------------------------------------------------------------------------------------------------------------


async def cancel_job(call: Call) -> Response:
    job_id = job_id_in(call.request.path_params["id"])
    await check_seen(call, [job_id])
    (answer,) = await call.services.engine.cancel([job_id])
    if isinstance(answer, AlreadyFinal):
        raise ApiError("already_final", f"job {job_id} is {answer.status.value} and stays so")
    if not isinstance(answer, Canceled | CancelRequested):
        raise await missing(call, job_id)
    status: wire.Status = "canceled" if isinstance(answer, Canceled) else "running"
    return json_answer(wire.CancelAnswer(job_id=job_id, status=status, cancel_requested=True))


async def retry_job(call: Call) -> Response:
    job_id = job_id_in(call.request.path_params["id"])
    await check_seen(call, [job_id])
    redriven = await call.services.engine.redrive([job_id])
    if isinstance(redriven, QueueFull):
        raise await queue_full(call, redriven.queue)
    if job_id not in redriven:
        job = await read_job(call, job_id)
        raise ApiError("not_dead", f"job {job_id} is {job.status}; only a job in error can be run again")
    made = job_object(await read_job(call, redriven[job_id]))
    return json_answer(made, 202, {"Location": f"/v1/jobs/{made.job_id}"})


SUBMIT_PROBLEMS = (
    "disk_low",
    *("too_large", "not_canonical", "unknown_task", "unknown_queue", "invalid_payload", "wrong_queue"),
    "needs_too_much_memory",
    *("bad_idempotency_key", "idempotency_mismatch", "key_busy", "queue_full", "gone_job"),
    *("unknown_dependency", "gone_dependency", "unknown_group", "group_sealed", "dependency_cycle"),
)
MISSING = ("unknown_job", "gone_job")
LOCATION = {"Location": "Where the job can be read."}

SUBMIT = post(
    "/v1/jobs",
    "client",
    submit_job,
    "Submit a job, and wait for its end if asked to",
    answers={202: wire.JobObject, 200: wire.JobObject},
    problems=(*SUBMIT_PROBLEMS, "invalid"),
    body=wire.Submit,
    parameters=(IDEMPOTENCY_KEY, *TRACE_HEADERS, WAIT_S),
    headers=LOCATION,
    own_jobs=True,
)
ENDPOINTS = (
    SUBMIT,
    get(
        "/v1/jobs/{id}",
        "client",
        get_job,
        "Read a job, or wait for its end",
        answers={200: wire.JobObject},
        problems=(*MISSING, "invalid"),
        parameters=(JOB_ID, WAIT_S),
        own_jobs=True,
    ),
    get(
        "/v1/jobs",
        "client",
        get_jobs,
        "List jobs, newest first",
        answers={200: wire.JobPage},
        problems=("invalid",),
        parameters=FILTERS,
        own_jobs=True,
    ),
    post(
        "/v1/jobs/{id}/cancel",
        "client",
        cancel_job,
        "Cancel a job",
        answers={200: wire.CancelAnswer},
        problems=(*MISSING, "already_final"),
        parameters=(JOB_ID,),
        own_jobs=True,
    ),
    post(
        "/v1/jobs/{id}/retry",
        "client",
        retry_job,
        "Run a dead letter again as a new job",
        answers={202: wire.JobObject},
        problems=(*MISSING, "not_dead", "queue_full"),
        parameters=(JOB_ID,),
        headers=LOCATION,
        own_jobs=True,
    ),
)
