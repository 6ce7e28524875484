"""The input file of a batch, read in steps that are bounded in lines and bytes; and the job of a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from jobd.engine.limits import UnusableKey, key_in_payload
from jobd.lifecycle.enqueue import NewJob
from jobd.openai.batch_lines import LineFault, line_job_id
from jobd.openai.batch_objects import batch_id_text
from jobd.tasks.runner import TaskFailed
from jobd.wire.canonical import NotCanonical, spec_hash
from jobd.wire.json_check import BadPayload, check_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.batches.table import StoredBatch
    from jobd.config.model import Config, Task
    from jobd.openai.batch_lines import LineCall
    from jobd.tasks.runner import Runner

#: Bytes that a line may have beside the payload of its job: custom_id, method, url, fields that are not passed on.
BESIDE_PAYLOAD_BYTES = 16 * 1024
#: Bytes of lines that are read in one step; at least one line is read.
PAGE_BYTES = 1024 * 1024
#: Labels of the job of a line.
BATCH_LABEL, CUSTOM_ID_LABEL = "jobd.batch", "jobd.custom_id"

_encode = msgspec.json.Encoder().encode


class InputLine(NamedTuple):
    #: From 1, empty ones included.
    number: int
    #: Without the end of the line; empty: it asks for nothing.
    text: bytes
    #: Where the next line begins.
    end: int
    #: Its length, if it is too long to be read; `text` is its beginning then.
    too_long: int | None = None


def line_limit(config: Config) -> int:
    """Longest line in bytes."""
    return config.limits.payload_bytes + BESIDE_PAYLOAD_BYTES


def read_lines(file: BinaryIO, at: int, number: int, *, most: int, longest: int) -> list[InputLine]:
    """The lines that begin at `at`, the first of which has this number; none: the file has ended. Blocks."""
    file.seek(at)
    lines: list[InputLine] = []
    size = 0
    while len(lines) < most and size < PAGE_BYTES:
        raw = file.readline(longest + 2)
        if not raw:
            break
        length = len(raw)
        while not raw.endswith(b"\n") and (more := file.readline(PAGE_BYTES)):
            length += len(more)
            raw = raw[:longest] + more[-1:]  # only whether the line has ended is of interest
        at += length
        size += min(length, longest)
        text = raw.strip()
        lines.append(InputLine(number, text, at, length if length > longest + 2 else None))
        number += 1
    return lines


def decoded(line: InputLine, longest: int) -> Any:
    """The JSON of a line; raises LineFault."""
    if line.too_long is not None or len(line.text) > longest:
        length = line.too_long or len(line.text)
        raise LineFault(
            "line_too_long",
            f"the line has {length} bytes, the limit is {longest} (limits.payload_bytes and {BESIDE_PAYLOAD_BYTES})",
        )
    try:
        return check_json(line.text, longest)
    except BadPayload as error:
        raise LineFault("invalid_json_line", f"the line is no JSON that can be taken: {error}") from None


def line_job(batch: StoredBatch, number: int, line: LineCall, config: Config, runners: Mapping[str, Runner]) -> NewJob:
    """The job of a line; raises LineFault."""
    model, payload = line.call.model, line.call.payload
    task, queue = _task_and_queue(model.task, model.queue, config)
    text = _encode(payload)
    if len(text) > config.limits.payload_bytes:
        limit = config.limits.payload_bytes
        raise LineFault("too_large", f"body has {len(text)} bytes, the limit is {limit} (limits.payload_bytes)", "body")
    _check_payload(model.task, payload, runners)
    labels = {BATCH_LABEL: batch_id_text(batch.id), CUSTOM_ID_LABEL: line.custom_id}
    return NewJob(
        id=line_job_id(batch.id, number),
        task=model.task,
        queue=queue,
        payload=text.decode(),
        max_attempts=task.max_attempts or config.retry.max_attempts,
        timeout_s=task.timeout_s,
        ttl_s=config.limits.job_ttl_s,
        priority=config.openai.batch_priority,
        spec_hash=_spec_hash(model.task, queue, payload),
        labels=_encode(labels).decode(),
        owner=batch.owner,
        limit_key=_limit_key(task, payload),
        expires_at=batch.expires_at,
        group_id=batch.id,
    )


def _task_and_queue(name: str, queue: str | None, config: Config) -> tuple[Task, str]:
    task = config.tasks.get(name)
    if task is None:
        raise LineFault(
            "unknown_task", f"the model belongs to task {name}, which this jobd does not have", "body.model"
        )
    queue = queue or task.queue
    if queue not in config.queues:
        raise LineFault("unknown_queue", f"the model belongs to queue {queue}, which is not configured", "body.model")
    if task.run == "external" and config.queues[queue].slots:
        message = f"task {name} is external, and the slots of queue {queue} would take its jobs and cannot run them"
        raise LineFault("wrong_queue", message, "body.model")
    return task, queue


def _check_payload(task: str, payload: Mapping[str, Any], runners: Mapping[str, Runner]) -> None:
    """Refuse a payload that every attempt would refuse, if this process has the runner that knows."""
    runner = runners.get(task)
    if runner is None:
        return
    try:
        runner.check(payload)
    except TaskFailed as error:
        raise LineFault("invalid_payload", f"body does not fit task {task}: {error}", "body") from None
    except Exception:  # a validator of the handler raised something else; let the attempt fail
        return


def _spec_hash(task: str, queue: str, payload: Mapping[str, Any]) -> bytes | None:
    try:
        return spec_hash(task, queue, payload)
    except NotCanonical:
        return None


def _limit_key(task: Task, payload: Mapping[str, Any]) -> str | None:
    try:
        return key_in_payload(task, payload)
    except UnusableKey as error:
        raise LineFault("invalid_payload", f"{error} (the limit key of the task)", "body") from None
