"""Every name in Redis, in one place. What clients and raw workers see is a contract; jobd's own start with `jobd:`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

GROUP = "workers"
DEFAULT_QUEUE = "default"
DEAD_LETTERS = "jobs:dlq"
#: jobd's own consumers, as opposed to raw workers.
CONSUMER_PREFIX = "jobd-"

#: Which filling of this Redis Postgres knows of; see project.lua.
EPOCH = "jobd:epoch"
#: Which run of the server was told that; an old copy of its data in a new run is not to be believed.
RUN = "jobd:run"
#: The channel on which the nodes hear that there is news of jobs.
TOLD = "jobd:told"
#: The channel on which the node that relays hears that another has committed something.
WAKE = "jobd:wake"

_STREAM = "jobs:stream"


def stream_of(queue: str) -> str:
    return _STREAM if queue == DEFAULT_QUEUE else f"{_STREAM}:{queue}"


def queue_of(stream: str) -> str | None:
    """The queue that a stream belongs to; None for a name that is no job stream."""
    if stream == _STREAM:
        return DEFAULT_QUEUE
    prefix, _, queue = stream.rpartition(":")
    return queue if prefix == _STREAM and queue else None


def job_key(job_id: UUID | str) -> str:
    return f"job:{job_id}"


def events_key(job_id: UUID | str) -> str:
    return f"job:{job_id}:events"


def idempotency_key(key: str) -> str:
    return f"idempotency:{key}"
