"""`/v1/jobs`: submit, read, wait, list, cancel, run again. `POST /v1/jobs` is the call that has to be fast.

A job that was just made is answered from what was sent and the time of its commit, without reading it back.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from msgspec import Meta, Raw
from starlette.background import BackgroundTask

from jobd.http.answers import job_id_in, job_object, job_summary, missing, read_job, whole_object
from jobd.http.body import JSON_TYPES, check_content_type, read_bytes
from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.query import read_query
from jobd.http.submit import body_limit, idempotency_key, key_in, new_job
from jobd.http.wait import wait_for_job
from jobd.job.model import AlreadyFinal, Canceled, CancelRequested
from jobd.job.status import FINAL_STATUSES
from jobd.lifecycle.enqueue import Created, KeyBusy, KeyMismatch, QueueFull
from jobd.lifecycle.read import list_jobs
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
    wait_s = read_query(call.request, (WAIT_S,)).get("wait_s", 0.0) if "wait_s" in call.request.query_params else 0.0
    check_content_type(call.request, JSON_TYPES)
    services.disk.check()
    key = key_in(call)
    body = await read_bytes(call.request, body_limit(config))
    job = new_job(body, config, None if key is None else idempotency_key(call, key, "/v1/jobs", body), services.runners)
    answer = await services.engine.enqueue(job)
    if isinstance(answer, KeyBusy):
        raise key_busy()
    if isinstance(answer, KeyMismatch):
        raise key_mismatch()
    if isinstance(answer, QueueFull):
        raise await queue_full(call, answer.queue)
    if isinstance(answer, Created) and answer.created_at is not None:
        made = created_object(job, answer.created_at)
    else:
        made = await _found_object(call, answer.job_id, existing=not isinstance(answer, Created))
    if wait_s and made.status not in FINAL_STATUSES:
        await wait_for_job(services.tailer, call.request, made.job_id, wait_s)
        made = await _found_object(call, made.job_id, existing=not isinstance(answer, Created))
    status = 200 if wait_s and made.status in FINAL_STATUSES else 202
    response = json_answer(made, status, {"Location": f"/v1/jobs/{made.job_id}"})
    if key is not None or services.drain.is_old():
        response.background = BackgroundTask(_after_submit, call, key, made)
    return response


async def _after_submit(call: Call, key: str | None, made: wire.JobObject) -> None:
    if key is not None:
        await call.services.mirror.copy(key, made.job_id, made.ttl_s)
    if call.services.drain.is_old():
        await call.services.drain.sample()


async def _found_object(call: Call, job_id: UUID, *, existing: bool) -> wire.JobObject:
    return await whole_object(call.services.database, await read_job(call.services.database, job_id), existing=existing)


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
    )


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
    job = await read_job(call.services.database, job_id)
    if wait_s and job.status not in FINAL_STATUSES:
        await wait_for_job(call.services.tailer, call.request, job_id, wait_s)
        job = await read_job(call.services.database, job_id)
    return json_answer(await whole_object(call.services.database, job))


async def get_jobs(call: Call) -> Response:
    query = read_query(call.request, FILTERS)
    spec_hash = query.pop("spec_hash", None)
    most = query.pop("limit", PAGE)
    if spec_hash is not None:
        if others := query.keys() & {"status", "task", "queue"}:
            raise ApiError("invalid", f"spec_hash goes with no other filter; leave out {', '.join(sorted(others))}")
        query["spec_hash"] = bytes.fromhex(spec_hash)
    page = await list_jobs(call.services.database, most=most, **query)
    return json_answer(wire.JobPage([job_summary(job) for job in page.jobs], page.next_before))


# -- change ------------------------------------------------------------------------------------------------------------


async def cancel_job(call: Call) -> Response:
    job_id = job_id_in(call.request.path_params["id"])
    (answer,) = await call.services.engine.cancel([job_id])
    if isinstance(answer, AlreadyFinal):
        raise ApiError("already_final", f"job {job_id} is {answer.status.value} and stays so")
    if not isinstance(answer, Canceled | CancelRequested):
        raise await missing(call.services.database, job_id)
    status: wire.Status = "canceled" if isinstance(answer, Canceled) else "running"
    return json_answer(wire.CancelAnswer(job_id=job_id, status=status, cancel_requested=True))


async def retry_job(call: Call) -> Response:
    job_id = job_id_in(call.request.path_params["id"])
    redriven = await call.services.engine.redrive([job_id])
    if isinstance(redriven, QueueFull):
        raise await queue_full(call, redriven.queue)
    if job_id not in redriven:
        job = await read_job(call.services.database, job_id)
        raise ApiError("not_dead", f"job {job_id} is {job.status}; only a job in error can be run again")
    made = job_object(await read_job(call.services.database, redriven[job_id]))
    return json_answer(made, 202, {"Location": f"/v1/jobs/{made.job_id}"})


SUBMIT_PROBLEMS = (
    "disk_low",
    *("too_large", "not_canonical", "unknown_task", "unknown_queue", "invalid_payload", "wrong_queue"),
    *("bad_idempotency_key", "idempotency_mismatch", "key_busy", "queue_full", "gone_job"),
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
    parameters=(IDEMPOTENCY_KEY, WAIT_S),
    headers=LOCATION,
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
    ),
    get(
        "/v1/jobs",
        "client",
        get_jobs,
        "List jobs, newest first",
        answers={200: wire.JobPage},
        problems=("invalid",),
        parameters=FILTERS,
    ),
    post(
        "/v1/jobs/{id}/cancel",
        "client",
        cancel_job,
        "Cancel a job",
        answers={200: wire.CancelAnswer},
        problems=(*MISSING, "already_final"),
        parameters=(JOB_ID,),
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
    ),
)
