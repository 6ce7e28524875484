"""Every call of the client, written once for both clients: as the flow of its steps.

The first parameter is the client's own business; the rest is what its methods take.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Raw
from typing_extensions import Required, TypedDict, Unpack

from jobd.client.answers import Job, JobPage
from jobd.client.errors import Conflict, WaitTimeout
from jobd.client.following import EventFlow, StreamFollower
from jobd.client.retrying import Patience, answered
from jobd.client.sansio import ApiRequest, CallSettings, Flow, Pause
from jobd.wire import gateway as wire
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from datetime import datetime

#: Seconds of one long poll for the end of a job; proxies tend to cut a request after 60 s.
HOLD_S = 30.0
#: Seconds before asking again when jobd answered a wait early, as it does while it stops.
SHORT_S = 0.5
#: Seconds that a wait or an event stream goes on while jobd is away, each time.
GIVE_UP_S = 60.0

_encode = msgspec.json.Encoder().encode

JobId: TypeAlias = str | UUID
#: A mapping, or JSON text of an object that is sent as it is.
Payload: TypeAlias = Mapping[str, Any] | msgspec.Struct | Raw
Dedupe: TypeAlias = Literal["none", "active", "result"]


class Options(TypedDict, total=False):
    """How a job is to be run; what is left out is up to jobd's configuration."""

    #: Without it: the task's own.
    queue: str
    #: Higher goes first; a point is worth a minute of waiting.
    priority: int
    #: Seconds from now before which it does not start; or the instant `run_after`, which must have a time zone.
    delay_s: float
    run_after: datetime
    #: Attempts in all, the first included.
    max_attempts: int
    #: Seconds that one attempt may take.
    timeout_s: float
    #: Seconds for which Redis keeps the finished job.
    ttl_s: int
    #: `active`: if a queued or running job does the same, that is the answer; `result`: a finished one, too.
    dedupe: Dedupe
    #: Up to 16 names and values by which the job can be found again.
    labels: Mapping[str, str]
    #: If it has not started in this number of seconds, or by the instant `expires_at`, it is canceled: code `expired`.
    expires_in_s: float
    expires_at: datetime
    #: Jobs of the queue with the same key share its limits, and its turns.
    limit_key: str
    #: Jobs and groups that must end before the job may run: ids of jobs, or as `DependsOn` of the HTTP API.
    depends_on: Sequence[JobId | Mapping[str, Any] | wire.DependsOn]
    #: The group that the job enters.
    group: JobId


class Submission(Options, total=False):
    """One job of a batch."""

    task: Required[str]
    payload: Required[Payload]
    #: Name by which other jobs of the batch depend on this one, as `{"ref": name}`.
    ref: str


# -- submit -------------------------------------------------------------------------------------------------------


def submit(
    settings: CallSettings,
    task: str,
    payload: Payload,
    *,
    hold_s: float = 0.0,
    idempotency_key: str | None = None,
    traceparent: str | None = None,
    tracestate: str | None = None,
    **options: Unpack[Options],
) -> Flow[Job]:
    """Submit a job; returns as soon as jobd has it safe; with `hold_s`, when it has ended or those seconds have passed.

    Options: queue, priority, delay_s or run_after, max_attempts, timeout_s, ttl_s, dedupe, labels, expires_in_s or
    expires_at, limit_key, depends_on, group; see `jobd.client.Options`. `traceparent` and `tracestate` (W3C Trace
    Context) say which trace the job belongs to. With the same `idempotency_key` and the same arguments it is the same
    job, for 24 hours. Without one a random key is sent, so that a call that had to be tried again makes one job.
    """
    body = msgspec.json.encode(_submit(task=task, payload=payload, **options))
    headers = _headers(idempotency_key, traceparent, tracestate)
    request = _post_jobs(f"submit of {task}", "/v1/jobs", body, headers, hold_s)
    job = yield from answered(settings, request, Job)
    if job.existing and idempotency_key is None and options.get("dedupe", "none") == "none":
        return msgspec.structs.replace(job, existing=False)  # it was made by this very call, at an earlier try
    return job


def submit_and_wait(
    settings: CallSettings,
    task: str,
    payload: Payload,
    *,
    wait_s: float | None = None,
    idempotency_key: str | None = None,
    traceparent: str | None = None,
    tracestate: str | None = None,
    **options: Unpack[Options],
) -> Flow[Job]:
    """Submit a job and return it once it is done, error or canceled: one call to jobd if that takes less than 30 s.

    Options are those of `submit`. Raises WaitTimeout when it takes longer than `wait_s`; the job goes on.
    """
    until = math.inf if wait_s is None else time.monotonic() + wait_s
    hold_s = HOLD_S if wait_s is None else min(HOLD_S, wait_s)
    job = yield from submit(
        settings,
        task,
        payload,
        hold_s=hold_s,
        idempotency_key=idempotency_key,
        traceparent=traceparent,
        tracestate=tracestate,
        **options,
    )
    if job.is_final:
        return job
    left_s = None if wait_s is None else max(until - time.monotonic(), 0.0)
    ended = yield from wait(settings, job.job_id, left_s)
    return msgspec.structs.replace(ended, existing=job.existing)


def submit_batch(
    settings: CallSettings,
    jobs: Iterable[Submission],
    *,
    idempotency_key: str | None = None,
    traceparent: str | None = None,
    tracestate: str | None = None,
) -> Flow[list[wire.BatchEntry]]:
    """Submit up to 10 000 jobs in one commit: all of them or, if one is refused, none. Answers in their order.

    All of them belong to the trace of `traceparent`.
    """
    submits = [_submit(**job) for job in jobs]
    what = f"submit of {len(submits)} jobs"
    headers = _headers(idempotency_key, traceparent, tracestate)
    request = _post_jobs(what, "/v1/jobs/batch", msgspec.json.encode(submits), headers)
    answer = yield from answered(settings, request, wire.BatchAnswer)
    return [
        msgspec.structs.replace(entry, existing=False)
        if entry.existing and idempotency_key is None and sent.dedupe == "none"
        else entry
        for entry, sent in zip(answer.jobs, submits, strict=True)
    ]


def _submit(*, payload: Payload, **fields: Any) -> wire.Submit:
    if None in fields.values():
        fields = {name: value for name, value in fields.items() if value is not None}
    return wire.Submit(payload=payload_json(payload), **fields)


def submission_json(job: Submission) -> Raw:
    """One job of a batch as it is sent."""
    return Raw(_encode(_submit(**job)))


def payload_json(payload: Payload) -> Raw:
    if isinstance(payload, Raw):
        return payload
    try:
        if b"null" not in (fast := _encode(payload)):  # msgspec makes NaN null; where there is no null was no NaN
            return Raw(fast)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # what cannot be sent is named below
    plain = msgspec.to_builtins(payload, str_keys=True)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Raw(text.encode("utf-8", "surrogatepass"))  # jobd has a name for that fault


def _headers(key: str | None, traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    if key is not None and not re.fullmatch(r"[\x21-\x7e]{1,255}", key):
        raise ValueError(f"idempotency_key must be 1 to 255 visible ASCII characters (got {key[:64]!a})")
    headers = {"Idempotency-Key": key or secrets.token_urlsafe(18)}
    for name, value in (("traceparent", traceparent), ("tracestate", tracestate)):
        if value is not None:
            if not re.fullmatch(r"[\x20-\x7e]*", value):
                raise ValueError(f"{name} must be of visible ASCII characters (got {value[:64]!a})")
            headers[name] = value
    return headers


def _post_jobs(what: str, path: str, body: bytes, headers: Mapping[str, str], hold_s: float = 0.0) -> ApiRequest:
    return ApiRequest(
        what=what, method="POST", path=path, query=_held(hold_s), body=body, headers=headers, hold_s=hold_s
    )


# -- read ---------------------------------------------------------------------------------------------------------


def get(settings: CallSettings, job_id: JobId) -> Flow[Job]:
    """The job as it stands, with its attempts and, while it waits, why."""
    return answered(settings, _read_job(job_id), Job)


def wait(
    settings: CallSettings, job_id: JobId, timeout_s: float | None = None, *, give_up_s: float = GIVE_UP_S
) -> Flow[Job]:
    """The job once it is done, error or canceled.

    Raises WaitTimeout when that takes longer than `timeout_s`; the job goes on. A jobd that is away is waited for too,
    up to `give_up_s` each time.
    """
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        asked_at = time.monotonic()
        left_s = max(until - asked_at, 0.0)
        patience = Patience(min(give_up_s, left_s))
        job = yield from answered(settings, _read_job(job_id, min(HOLD_S, left_s)), Job, patience)
        if job.is_final:
            return job
        now = time.monotonic()
        if now >= until:
            raise WaitTimeout(
                f"job {job_id} is {job.status} after {timeout_s:g} s of waiting; it goes on: wait again, or cancel it"
            )
        if now - asked_at < min(SHORT_S, left_s):
            yield Pause(min(SHORT_S, until - now))


def _read_job(job_id: JobId, hold_s: float = 0.0) -> ApiRequest:
    return ApiRequest(what=f"job {job_id}", path=_job_path(job_id), query=_held(hold_s), hold_s=hold_s)


def _held(hold_s: float) -> dict[str, str]:
    return {"wait_s": f"{hold_s:.3f}"} if hold_s else {}


def list_jobs(
    settings: CallSettings,
    *,
    status: wire.Status | None = None,
    task: str | None = None,
    queue: str | None = None,
    error: str | None = None,
    text: str | None = None,
    labels: Mapping[str, str] | None = None,
    owner: str | None = None,
    schedule: str | None = None,
    group: JobId | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    spec_hash: str | None = None,
    limit: int | None = None,
    before: JobId | None = None,
) -> Flow[JobPage]:
    """One page of jobs, newest first; its `next`, sent as `before`, leads to the following one.

    `error` is the code and `text` a part of the message of the error in which a job ended; `since` and `until` say when
    it was made. `labels` must all fit; `owner` is the name of the token that sent it, `schedule` that of the schedule
    which made it, and `group` the id of its group.
    """
    filters = {
        "status": status,
        "task": task,
        "queue": queue,
        "error": error,
        "text": text,
        "owner": owner,
        "schedule": schedule,
        "group": group,
        "since_ts": since and ms(since),
        "until_ts": until and ms(until),
        "spec_hash": spec_hash,
        "limit": limit,
        "before": before,
    }
    query: dict[str, str | list[str]] = {name: str(value) for name, value in filters.items() if value is not None}
    if labels:
        query["label"] = [f"{name}:{value}" for name, value in labels.items()]
    return answered(settings, ApiRequest(what="list of jobs", path="/v1/jobs", query=query), JobPage)


def events(
    settings: CallSettings, job_id: JobId, after: str | None = None, *, give_up_s: float = GIVE_UP_S
) -> EventFlow:
    """The events of the job from the first, or behind the event `after` (`now`: the newest), until it has ended.

    Each comes once and in order. A cut line or a restart of jobd is bridged; one that lasts longer than `give_up_s`
    raises Unavailable, and the last event's id is where to go on.
    """
    return StreamFollower(settings, f"{_job_path(job_id)}/events", f"events of job {job_id}", after, give_up_s).run()


def result(settings: CallSettings, job_id: JobId) -> Flow[Any]:
    """The result of a job that is done, however large. Raises NotFound if it has none."""
    return answered(settings, _read_result(job_id), Any)


def result_json(settings: CallSettings, job_id: JobId) -> Flow[Raw]:
    """The same as JSON text."""
    return answered(settings, _read_result(job_id), Raw)


def _read_result(job_id: JobId) -> ApiRequest:
    return ApiRequest(what=f"result of job {job_id}", path=f"{_job_path(job_id)}/result")


# -- change -------------------------------------------------------------------------------------------------------


def cancel(settings: CallSettings, job_id: JobId) -> Flow[wire.CancelAnswer]:
    """Cancel the job: at once if it waits, by its worker if it runs. Raises Conflict if it has ended otherwise."""
    request = ApiRequest(what=f"cancel of job {job_id}", method="POST", path=f"{_job_path(job_id)}/cancel")
    try:
        return (yield from answered(settings, request, wire.CancelAnswer))
    except Conflict:
        job = yield from get(settings, job_id)
        if job.status != "canceled":
            raise
        # Perhaps by an earlier try of this very call; in any case it is what was asked for.
        return wire.CancelAnswer(job_id=job.job_id, status=job.status, cancel_requested=True)


def retry(settings: CallSettings, job_id: JobId) -> Flow[Job]:
    """Run a job that ended in error again, as a new job: the answer. Raises Conflict if it did not end so.

    Each call makes a job; so after a cut line it is not tried again by itself, but raises Unreachable.
    """
    request = ApiRequest(
        what=f"retry of job {job_id}", method="POST", path=f"{_job_path(job_id)}/retry", is_repeatable=False
    )
    return answered(settings, request, Job)


def _job_path(job_id: JobId) -> str:
    return f"/v1/jobs/{quote(str(job_id), safe='')}"
