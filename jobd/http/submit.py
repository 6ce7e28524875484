"""A submit, from bytes to the job it asks for. Nothing is written before all of it is known to be good.

The body is read twice: once by the parser that refuses what could hurt, and once as its Struct, which keeps the payload
as the text that was sent.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from jobd.config.model import DAY_S
from jobd.lifecycle.enqueue import IdempotencyKey, NewJob
from jobd.store.ids import new_id
from jobd.tasks.runner import TaskFailed
from jobd.wire.canonical import NotCanonical, spec_hash
from jobd.wire.gateway import MAX_AHEAD_S, Submit
from jobd.wire.json_check import check_json
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    from jobd.config.model import Config
    from jobd.http.endpoint import Call
    from jobd.tasks.runner import Runner

#: Bytes that the body of a submit may have beside the payload.
BESIDE_PAYLOAD_BYTES = 16 * 1024
#: Seconds for which an Idempotency-Key leads to its job.
KEY_LIFE_S = float(DAY_S)
#: Earliest `run_after`; an earlier one comes from a clock that was never set.
EARLIEST = datetime(2000, 1, 1, tzinfo=timezone.utc)

_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
_decode = msgspec.json.Decoder(Submit).decode


def body_limit(config: Config) -> int:
    return config.limits.payload_bytes + BESIDE_PAYLOAD_BYTES


def new_job(raw: bytes, config: Config, key: IdempotencyKey | None, runners: Mapping[str, Runner]) -> NewJob:
    """The job that this JSON object asks for; raises ApiError or BadPayload."""
    value = check_json(raw, body_limit(config))
    if type(value) is not dict:
        raise ApiError("not_object", "a job must be a JSON object with task and payload")
    try:
        submit = _decode(raw)
    except msgspec.ValidationError as error:
        raise ApiError("invalid", str(error)) from None
    payload = _payload_text(submit, value["payload"], config.limits.payload_bytes)
    task = config.tasks.get(submit.task) or _refuse_name("unknown_task", "task", submit.task, config.tasks)
    queue = task.queue if submit.queue is UNSET else submit.queue
    if queue not in config.queues:
        _refuse_name("unknown_queue", "queue", queue, config.queues)
    if task.run == "external" and config.queues[queue].slots:
        _refuse_queue(submit.task, queue, config)
    _check_payload(submit.task, value["payload"], runners)
    return NewJob(
        id=new_id(),
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
        key=key,
    )


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


def _check_payload(task: str, payload: Mapping[str, Any], runners: Mapping[str, Runner]) -> None:
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
