"""The job of one occurrence: the task's settings, the schedule's own, and where it comes from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from jobd.engine.limits import key_or_none, with_turns
from jobd.lifecycle.enqueue import IdempotencyKey, NewJob
from jobd.occurrences.cron import zone
from jobd.occurrences.walk import to_ms
from jobd.store.ids import new_id
from jobd.tickets.render import filled, filled_bytes
from jobd.wire.canonical import NotCanonical, spec_hash
from jobd.wire.schedules import SCHEDULE_LABEL, SCHEDULED_FOR_LABEL

if TYPE_CHECKING:
    from datetime import datetime

    from jobd.config.model import Config
    from jobd.schedules.definition import Definition
    from jobd.schedules.table import ScheduleRow

#: Names the principal of keys of schedules; tokens have no colon in their names.
PRINCIPAL = "schedule:"
#: Seconds for which a key leads to its job: a second safeguard beside the row of the schedule.
KEY_LIFE_S = 86_400.0

_encode = msgspec.json.Encoder().encode


class CannotStart(msgspec.Struct, frozen=True):
    """No job can be made now; the occurrence waits."""

    why: str


def job_for(
    row: ScheduleRow, scheduled_for: datetime, config: Config, *, key: IdempotencyKey | None = None
) -> NewJob | CannotStart:
    """The job of an occurrence; under another key, one that is no occurrence."""
    definition = row.definition
    task = config.tasks.get(definition.task)
    queue = definition.queue or (task.queue if task is not None else "")
    refusal = refusal_of(definition, config)
    if task is None or refusal is not None:
        return CannotStart(refusal or "")
    payload = filled(definition.payload, places(definition, scheduled_for))
    at_ms = to_ms(scheduled_for)
    job = NewJob(
        id=new_id(),
        task=definition.task,
        queue=queue,
        payload=_encode(payload).decode(),
        max_attempts=definition.max_attempts or task.max_attempts or config.retry.max_attempts,
        timeout_s=definition.timeout_s or task.timeout_s,
        ttl_s=config.limits.job_ttl_s,
        priority=definition.priority,
        spec_hash=_spec_hash(definition.task, queue, payload),
        key=key or _key(row.name, at_ms),
        labels=_encode({**definition.labels, SCHEDULE_LABEL: row.name, SCHEDULED_FOR_LABEL: str(at_ms)}).decode(),
        owner=row.created_by,
        limit_key=key_or_none(task, payload),
    )
    return with_turns([job], config)[0]


def refusal_of(definition: Definition, config: Config) -> str | None:
    """Why this node cannot make its jobs; None: it can."""
    task = config.tasks.get(definition.task)
    if task is None:
        return f"there is no task {definition.task}; this jobd has {', '.join(sorted(config.tasks))}"
    queue = definition.queue or task.queue
    if queue not in config.queues:
        return f"there is no queue {queue}; this jobd has {', '.join(sorted(config.queues))}"
    if task.run == "external" and config.queues[queue].slots:
        return f"task {definition.task} is external, and the slots of queue {queue} would take its jobs"
    return None


def largest_payload_bytes(definition: Definition) -> int:
    """About how many bytes the payload of each job has."""
    words = {"scheduled_at": "2026-01-01T00:00:00+00:00"}
    return filled_bytes(_encode(definition.payload).decode(), words)


def places(definition: Definition, scheduled_for: datetime) -> dict[str, str]:
    """The text for each place in the payload: `{{scheduled_at}}` is the time in the schedule's zone, with offset."""
    return {"scheduled_at": scheduled_for.astimezone(zone(definition.timezone)).isoformat(timespec="seconds")}


def occurrence_key(name: str, at_ms: int) -> str:
    return f"schedule:{name}:{at_ms}"


def _key(name: str, at_ms: int) -> IdempotencyKey:
    """The same for the same occurrence, whatever the schedule's jobs do by now."""
    key = occurrence_key(name, at_ms)
    digest = hashlib.sha256(key.encode()).digest()
    return IdempotencyKey(principal=PRINCIPAL, key=key, body_hash=digest, life_s=KEY_LIFE_S)


def _spec_hash(task: str, queue: str, payload: object) -> bytes | None:
    try:
        return spec_hash(task, queue, payload)  # type: ignore[arg-type]  # it is an object
    except NotCanonical:
        return None
