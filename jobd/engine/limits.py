"""The limits per key that are configured, as the statements take them, and the key that a task finds in a payload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from jobd.lifecycle.admit import ANY_KEY, NO_KEY, QueueLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.config.model import Config, Task
    from jobd.lifecycle.enqueue import NewJob


#: Longest limit key in characters.
MAX_LIMIT_KEY = 200


class UnusableKey(ValueError):
    """What the task's pointer leads to cannot be a key."""


def queue_limits(config: Config) -> dict[str, QueueLimits]:
    """Of the queues that have any."""
    return {
        name: QueueLimits(running=queue.key_running, rate=queue.key_rate, rate_s=queue.key_rate_s, fair=queue.fair)
        for name, queue in config.queues.items()
        if queue.key_running or queue.key_rate or queue.fair
    }


def with_turns(jobs: Sequence[NewJob], config: Config) -> Sequence[NewJob]:
    """The jobs, of which those without a key share one where keys take turns."""
    fair = {name for name, queue in config.queues.items() if queue.fair}
    if not fair:
        return jobs
    return [replace(job, limit_key=NO_KEY) if job.limit_key is None and job.queue in fair else job for job in jobs]


def key_in_payload(task: Task, payload: Mapping[str, Any]) -> str | None:
    """What the task's pointer leads to: text, or a number or truth value as JSON; None: there is nothing."""
    found = pointed_at(payload, task.limit_key) if task.limit_key else None
    if found is None:
        return None
    key = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    if isinstance(found, (dict, list)) or not 0 < len(key) <= MAX_LIMIT_KEY or key == ANY_KEY:
        raise UnusableKey(
            f"payload{task.limit_key} must be a text of 1 to {MAX_LIMIT_KEY} characters other than *, a number or a"
            " truth value"
        )
    return key


def key_or_none(task: Task, payload: Mapping[str, Any]) -> str | None:
    """The same for jobs that nobody can be told about: without a usable key they have none."""
    try:
        return key_in_payload(task, payload)
    except UnusableKey:
        return None


def pointed_at(value: Any, pointer: str) -> Any:
    """What a JSON Pointer (RFC 6901) leads to; None if there is nothing."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value
