"""A call of the OpenAI interface as a job: its body, its headers, and the job that it leads to.

    x-jobd-priority     priority of the job
    x-jobd-queue        its queue
    x-jobd-labels       its labels: `name=value,name=value`, percent-encoded where a value has a comma
    Idempotency-Key     as in `POST /v1/jobs`

Clients send a call again by themselves when a line was cut, with `x-stainless-retry-count` above 0. Such a call leads
to the job of the first one, if that has the same sender and body and has not ended.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import unquote

import anyio
import msgspec
from msgspec import Meta

from jobd.engine.limits import UnusableKey, key_in_payload
from jobd.http.body import JSON_TYPES, check_content_type, header, read_bytes
from jobd.http.endpoint import Parameter
from jobd.http.hang_up import while_wanted
from jobd.http.jobs import IDEMPOTENCY_KEY, TRACE_HEADERS, accepted_job
from jobd.http.submit import BESIDE_PAYLOAD_BYTES, check_payload, idempotency_key, key_in, sender_of, task_and_queue
from jobd.lifecycle.enqueue import Created, NewJob
from jobd.openai.errors import InvalidCall, OpenAIError
from jobd.store.ids import new_id
from jobd.wire import gateway as wire
from jobd.wire.canonical import NotCanonical, spec_hash
from jobd.wire.json_check import check_json
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from jobd.http.endpoint import Call
    from jobd.http.gateway import RunningRequest
    from jobd.openai.fields import ModelCall

JOB_ID_HEADER = "x-jobd-job-id"
PRIORITY = Annotated[int, Meta(ge=-1000, le=1000)]
#: Characters of a header's value that an error shows.
MAX_SHOWN = 64

PARAMETERS = (
    Parameter("x-jobd-priority", PRIORITY, "Priority of the job; higher goes first.", "header"),
    Parameter("x-jobd-queue", wire.Name, "Queue of the job, in place of that of the model.", "header"),
    Parameter("x-jobd-labels", str, "Labels of the job: `name=value,name=value`, percent-encoded.", "header"),
    Parameter("x-stainless-retry-count", int, "Above 0: take up the job of the first try.", "header"),
    IDEMPOTENCY_KEY,
    *TRACE_HEADERS,
)
ANSWER_HEADERS = {JOB_ID_HEADER: "The job that answers the call."}
#: Problem codes of every call that makes a job.
PROBLEMS = (
    *("model_not_found", "invalid_type", "unsupported_value", "too_large", "disk_low", "queue_full"),
    *("unknown_queue", "wrong_queue", "invalid_payload", "bad_idempotency_key", "idempotency_mismatch", "key_busy"),
    *("job_failed", "upstream_error", "upstream_busy", "timeout", "result_elsewhere", "result_lost", "gone_job"),
)


class MadeCall(NamedTuple):
    """The job of a call."""

    job_id: UUID
    #: It was there before: an earlier try of the same call made it.
    is_existing: bool


async def read_call(call: Call) -> Any:
    """The body as JSON; raises what is answered in OpenAI's shape."""
    check_content_type(call.request, JSON_TYPES)
    limit = call.services.config().limits.payload_bytes
    try:
        raw = await read_bytes(call.request, limit + BESIDE_PAYLOAD_BYTES)
    except ApiError as error:
        if error.code != "body_too_large":
            raise
        raise too_large(None, limit) from None
    return check_json(raw, limit + BESIDE_PAYLOAD_BYTES)


def too_large(size: int | None, limit: int) -> OpenAIError:
    has = "more" if size is None else f"{size} bytes"
    return OpenAIError(
        413,
        f"the call has {has} and the limit is {limit} bytes (limits.payload_bytes, up to 16 MB); send images smaller or"
        " as URLs, or raise the limit",
        code="too_large",
    )


def job_of(call: Call, asked: ModelCall) -> NewJob:
    """The job that a checked call asks for; raises OpenAIError or ApiError."""
    config, model = call.services.config(), asked.model
    queue = _header(call, b"x-jobd-queue") or model.queue
    task, queue = task_and_queue(model.task, queue, config)
    payload = msgspec.json.encode(asked.payload)
    if len(payload) > config.limits.payload_bytes:
        raise too_large(len(payload), config.limits.payload_bytes)
    check_payload(model.task, asked.payload, call.services.runners)
    sender, labels, key = sender_of(call), _labels(call), key_in(call)
    is_retry = _retry_count(call) > 0
    return NewJob(
        id=new_id(),
        task=model.task,
        queue=queue,
        payload=payload.decode(),
        max_attempts=task.max_attempts or config.retry.max_attempts,
        timeout_s=task.timeout_s,
        ttl_s=config.limits.job_ttl_s,
        priority=_priority(call, model.priority),
        spec_hash=_spec_hash(model.task, queue, asked.payload),
        dedupe="active" if is_retry else "none",
        own_twins=True,
        key=None if key is None else idempotency_key(call, key, call.request.url.path, payload),
        labels=msgspec.json.encode(labels).decode() if labels else None,
        owner=sender.owner,
        traceparent=sender.trace.traceparent,
        tracestate=sender.trace.tracestate,
        limit_key=_limit_key(task, asked.payload),
    )


async def make_call(call: Call, job: NewJob) -> MadeCall:
    """Enqueue the job, or find the one that an earlier try of the call has made."""
    call.services.disk.check()
    if job.dedupe != "none" and job.spec_hash is None:
        job = msgspec.structs.replace(job, dedupe="none")
    accepted = await accepted_job(call, job)
    return MadeCall(accepted.job_id, not isinstance(accepted, Created))


@contextlib.asynccontextmanager
async def while_read(call: Call) -> AsyncIterator[None]:
    """Cancel the block when the client leaves, the gateway stops, or the token of the client is no longer valid."""
    request = call.request
    running: RunningRequest = request.scope["state"]["running_request"]
    async with while_wanted(request.app.state.in_flight, request.receive):
        with anyio.CancelScope() as scope:
            running.end = scope.cancel
            try:
                yield
            finally:
                running.end = None


def check_token(call: Call) -> None:
    """Raises the ApiError for a call whose token was found to be no longer valid while it was answered."""
    running: RunningRequest = call.request.scope["state"]["running_request"]
    if running.refusal is not None:
        raise running.refusal


def _spec_hash(task: str, queue: str, payload: dict[str, Any]) -> bytes | None:
    try:
        return spec_hash(task, queue, payload)
    except NotCanonical:
        return None


def _limit_key(task: Any, payload: dict[str, Any]) -> str | None:
    try:
        return key_in_payload(task, payload)
    except UnusableKey as error:
        raise InvalidCall(None, f"{error} (the limit key of the task)") from None


# -- headers -----------------------------------------------------------------------------------------------------------


def _header(call: Call, name: bytes) -> str | None:
    value = header(call.request, name)
    return None if value is None else value.decode("latin-1").strip()


def _priority(call: Call, of_model: int) -> int:
    text = _header(call, b"x-jobd-priority")
    if text is None:
        return of_model
    try:
        return msgspec.convert(text, PRIORITY, strict=False)
    except msgspec.ValidationError:
        message = f"x-jobd-priority must be a whole number from -1000 to 1000 (got {text[:MAX_SHOWN]!r})"
        raise InvalidCall("x-jobd-priority", message) from None


def _labels(call: Call) -> dict[str, str]:
    text = _header(call, b"x-jobd-labels")
    if not text:
        return {}
    labels = {}
    for pair in text.split(","):
        name, equals, value = pair.partition("=")
        if not equals:
            message = f"x-jobd-labels must be name=value,name=value (got {pair.strip()[:MAX_SHOWN]!r})"
            raise InvalidCall("x-jobd-labels", message)
        labels[unquote(name.strip())] = unquote(value.strip())
    try:
        return msgspec.convert(labels, wire.SentLabels)
    except msgspec.ValidationError as error:
        raise InvalidCall("x-jobd-labels", f"x-jobd-labels: {error}") from None


def _retry_count(call: Call) -> int:
    """Of a client that says so; anything else than a number counts as the first try."""
    text = _header(call, b"x-stainless-retry-count") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
