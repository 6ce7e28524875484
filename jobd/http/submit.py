"""A submit, from bytes to the job it asks for. Nothing is written before all of it is known to be good.

The body is read twice: once by the parser that refuses what could hurt, and once as its Struct, which keeps the payload
as the text that was sent.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET

from jobd.config.model import DAY_S
from jobd.engine.limits import UnusableKey, key_in_payload
from jobd.http.dependencies import dependencies_in
from jobd.lifecycle.enqueue import IdempotencyKey, NewJob
from jobd.tasks.runner import TaskFailed
from jobd.wire.canonical import NotCanonical, spec_hash
from jobd.wire.gateway import MAX_AHEAD_S, Submit
from jobd.wire.json_check import check_json
from jobd.wire.problems import ApiError
from jobd.wire.trace import NO_TRACE, TraceContext, trace_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any
    from uuid import UUID

    from jobd.board.ledger import MemoryLedger
    from jobd.config.model import Config, Task
    from jobd.http.dependencies import Refs
    from jobd.http.endpoint import Call
    from jobd.tasks.runner import Runner

#: Bytes that the body of a submit may have beside the payload: 16 labels of 512 characters, escaped, take 98 KB.
BESIDE_PAYLOAD_BYTES = 128 * 1024
#: Seconds for which an Idempotency-Key leads to its job.
KEY_LIFE_S = float(DAY_S)
#: Earliest `run_after`; an earlier one comes from a clock that was never set.
EARLIEST = datetime(2000, 1, 1, tzinfo=timezone.utc)

_encode = msgspec.json.Encoder().encode
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
_decode = msgspec.json.Decoder(Submit).decode


class Sender(NamedTuple):
    """What a job has from its request rather than from the body."""

    #: Name of the token.
    owner: str | None = None
    trace: TraceContext = NO_TRACE
    #: Whether it may see only its own jobs.
    own_jobs: bool = False


NOBODY = Sender()


def sender_of(call: Call) -> Sender:
    principal = call.principal
    trace = trace_in(call.request.scope["headers"])
    return Sender(principal.name if principal.has_token else None, trace, principal.own_jobs)


def body_limit(config: Config) -> int:
    return config.limits.payload_bytes + BESIDE_PAYLOAD_BYTES


def new_job(
    job_id: UUID,
    raw: bytes,
    config: Config,
    key: IdempotencyKey | None,
    runners: Mapping[str, Runner],
    sender: Sender = NOBODY,
    refs: Refs | None = None,
) -> NewJob:
    """The job that this JSON object asks for; raises ApiError or BadPayload."""
    return checked_job(job_id, raw, check_json(raw, body_limit(config)), config, key, runners, sender, refs)


def checked_job(
    job_id: UUID,
    raw: bytes,
    value: Any,
    config: Config,
    key: IdempotencyKey | None,
    runners: Mapping[str, Runner],
    sender: Sender = NOBODY,
    refs: Refs | None = None,
) -> NewJob:
    """The job that JSON asks for which was checked, and is `value`; raises ApiError. `refs`: of the batch it is in."""
    if type(value) is not dict:
        raise ApiError("not_object", "a job must be a JSON object with task and payload")
    try:
        submit = _decode(raw)
    except msgspec.ValidationError as error:
        raise ApiError("invalid", str(error)) from None
    payload = _payload_text(submit, value["payload"], config.limits.payload_bytes)
    task, queue = task_and_queue(submit.task, None if submit.queue is UNSET else submit.queue, config)
    depends_on = dependencies_in(submit, refs) if submit.depends_on else ()
    if not depends_on or "{{inputs." not in payload:  # else it is checked when it is filled in
        check_payload(submit.task, value["payload"], runners)
    return NewJob(
        id=job_id if submit.ref is UNSET else _named(submit.ref, job_id, refs),
        task=submit.task,
        queue=queue,
        payload=payload,
        max_attempts=(task.max_attempts or config.retry.max_attempts)
        if submit.max_attempts is UNSET
        else submit.max_attempts,
        timeout_s=task.timeout_s if submit.timeout_s is UNSET else submit.timeout_s,
        ttl_s=config.limits.job_ttl_s if submit.ttl_s is UNSET else submit.ttl_s,
        priority=submit.priority,
        run_after=None if submit.run_after is UNSET else _run_after(submit.run_after, submit.delay_s),
        delay_s=submit.delay_s,
        spec_hash=_spec_hash(submit, queue, value["payload"]),
        dedupe=submit.dedupe,
        own_twins=sender.own_jobs,
        key=key,
        labels=_encode(submit.labels).decode() if submit.labels else None,
        owner=sender.owner,
        traceparent=sender.trace.traceparent,
        tracestate=sender.trace.tracestate,
        expires_at=None if submit.expires_at is UNSET else _expires_at(submit),
        expires_in_s=None if submit.expires_in_s is UNSET else _expires_in_s(submit),
        limit_key=_limit_key(submit, task, value["payload"]),
        depends_on=depends_on,
        group_id=None if submit.group is UNSET else submit.group,
        own_links=sender.own_jobs,
    )


def _named(name: str, job_id: UUID, refs: Refs | None) -> UUID:
    if refs is None:
        raise ApiError("invalid", "ref names an item of a batch; leave it out - at `$.ref`")
    return refs.define(name, job_id)


def task_and_queue(name: str, queue: str | None, config: Config) -> tuple[Task, str]:
    """The task of this name, and the queue of its jobs; raises ApiError."""
    task: Task = config.tasks.get(name) or _refuse_name("unknown_task", "task", name, config.tasks)
    queue = queue or task.queue
    if queue not in config.queues:
        _refuse_name("unknown_queue", "queue", queue, config.queues)
    if task.run == "external" and config.queues[queue].slots:
        _refuse_queue(name, queue, config)
    return task, queue


def _payload_text(submit: Submit, payload: object, limit: int) -> str:
    if type(payload) is not dict:
        raise ApiError("not_object", "payload must be a JSON object")
    text = bytes(submit.payload)
    if len(text) > limit:
        raise ApiError("too_large", f"payload has {len(text)} bytes, the limit is {limit} (limits.payload_bytes)")
    return text.decode()


def _refuse_name(code: str, kind: str, name: str, known: Collection[str]) -> Any:
    raise ApiError(code, f"there is no {kind} {name}; this jobd has {', '.join(sorted(known))}")


def _refuse_queue(task: str, queue: str, config: Config) -> None:
    """A slot would take the job and fail it."""
    raise ApiError(
        "wrong_queue",
        f"task {task} is external, and the {config.queues[queue].slots} slots of queue {queue} would take its jobs and"
        f" cannot run them; leave queue out (it is {config.tasks[task].queue}) or name one with slots = 0",
    )


def check_payload(task: str, payload: Mapping[str, Any], runners: Mapping[str, Runner]) -> None:
    """Refuse a payload that every attempt would refuse, if this process has the runner that knows."""
    runner = runners.get(task)
    if runner is None:
        return
    try:
        runner.check(payload)
    except TaskFailed as error:
        raise ApiError(
            "invalid_payload", f"payload does not fit task {task}: {error}; /v1/tasks/{task} has its schema"
        ) from None
    except Exception:  # a validator of the handler raised something else; let the attempt fail
        return


def check_memory(job: NewJob, memory: MemoryLedger, config: Config) -> None:
    """Refuse a job that no slot of its queue could ever start, since it needs more memory than the board has."""
    if not memory.is_used or not config.queues[job.queue].slots:
        return
    if (shortage := memory.too_large(job.task)) is not None:
        raise ApiError(
            "needs_too_much_memory",
            f"task {job.task} needs {shortage.needed >> 20} MB (tasks.{job.task}.needs_memory_mb), and this board has"
            f" {(shortage.free or 0) >> 20} MB for jobs; lower the need or board.memory_floor_mb, or send the job to a"
            " larger board",
        )


def _run_after(at: datetime, delay_s: float) -> datetime:
    if delay_s:
        raise ApiError("invalid", "run_after and delay_s were both sent; send one of them")
    try:
        at = at.astimezone(timezone.utc)
        if EARLIEST <= at <= datetime.now(timezone.utc) + timedelta(seconds=MAX_AHEAD_S):
            return at
    except OverflowError:
        pass
    raise ApiError("invalid", "run_after must lie between the year 2000 and 366 days from now - at `$.run_after`")


def _limit_key(submit: Submit, task: Task, payload: Mapping[str, Any]) -> str | None:
    if submit.limit_key is not UNSET:
        return submit.limit_key
    try:
        return key_in_payload(task, payload)
    except UnusableKey as error:
        raise ApiError("invalid", f"{error} (the limit key of task {submit.task}) - at `$.payload`") from None


def _expires_at(submit: Submit) -> datetime:
    if submit.expires_in_s is not UNSET:
        raise ApiError("invalid", "expires_at and expires_in_s were both sent; send one of them")
    assert isinstance(submit.expires_at, datetime)
    try:
        at, now = submit.expires_at.astimezone(timezone.utc), datetime.now(timezone.utc)
    except OverflowError:
        at = now = EARLIEST
    if not now < at <= now + timedelta(seconds=MAX_AHEAD_S):
        raise ApiError("invalid", "expires_at must lie ahead, at most 366 days from now - at `$.expires_at`")
    starts_at = now + timedelta(seconds=submit.delay_s) if submit.run_after is UNSET else submit.run_after
    if at <= starts_at:
        raise ApiError("invalid", "expires_at lies before run_after, or the end of delay_s - at `$.expires_at`")
    return at


def _expires_in_s(submit: Submit) -> float:
    assert isinstance(submit.expires_in_s, float)
    if submit.run_after is not UNSET:
        raise ApiError(
            "invalid", "expires_in_s goes with delay_s; with run_after send expires_at - at `$.expires_in_s`"
        )
    if submit.expires_in_s <= submit.delay_s:
        raise ApiError("invalid", "expires_in_s must be larger than delay_s - at `$.expires_in_s`")
    return submit.expires_in_s


def _spec_hash(submit: Submit, queue: str, payload: Mapping[str, Any]) -> bytes | None:
    try:
        return spec_hash(submit.task, queue, payload)
    except NotCanonical as error:
        if submit.dedupe == "none":
            return None
        raise ApiError("not_canonical", f"dedupe cannot compare this payload: {error}") from None


def key_in(call: Call) -> str | None:
    """The Idempotency-Key of the request."""
    sent = [value for name, value in call.request.scope["headers"] if name == b"idempotency-key"]
    if not sent:
        return None
    if len(sent) > 1:
        raise ApiError("bad_idempotency_key", f"Idempotency-Key was sent {len(sent)} times; send it once")
    if not _KEY.fullmatch(sent[0]):
        raise ApiError("bad_idempotency_key", "Idempotency-Key must be 1 to 255 visible ASCII characters")
    return str(sent[0], "ascii")


def idempotency_key(call: Call, key: str, path: str, body: bytes) -> IdempotencyKey:
    """The key with its principal and a fingerprint of path and body."""
    fingerprint = hashlib.sha256(path.encode() + b"\n" + body).digest()
    return IdempotencyKey(principal=call.principal.name, key=key, body_hash=fingerprint, life_s=KEY_LIFE_S)
