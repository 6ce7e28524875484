"""Every name in Redis, in one place; scripts get theirs from here (scripts.py).

What clients and raw workers see is a contract; jobd's own names start with `jobd:`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

#: The consumer group of every job stream.
GROUP = "workers"
DEFAULT_QUEUE = "default"
DEAD_LETTERS = "jobs:dlq"
#: Consumers of the group that are jobd's own; all others are raw workers.
CONSUMER_PREFIX = "jobd-"
#: Owners of leases that raw workers hold, who speak only Redis; claim.sql knows them by the same prefix.
RAW_OWNER_PREFIX = "redis:"
#: A job's hash is JOB_PREFIX and its id, and its event stream that with EVENTS_SUFFIX.
JOB_PREFIX = "job:"
EVENTS_SUFFIX = ":events"

#: The epoch: which filling of this Redis Postgres knows of; see project.lua.
EPOCH = "jobd:epoch"
#: The `run_id` of the server when the epoch began. With another one, its data may be an old copy and is not trusted.
RUN = "jobd:run"
#: Written when a connection is opened, to find a server that refuses writes.
PROBE = "jobd:probe"
#: Before the name of a key of the wrong type that stood in the way of a stream or hash, and was moved.
ASIDE_PREFIX = "jobd:aside:"
#: A hash of fences: queue -> number of the mode (`queues.mode_no`) below which nothing is offered; see project.lua.
MODES = "jobd:modes"
#: The channel on which the relay publishes which jobs have new events.
TOLD = "jobd:told"
#: The channel on which the relay publishes which queues in mode `direct` have jobs to be taken.
WORK = "jobd:work"
#: The channel on which a node wakes the node that relays, after a commit.
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
    return f"{JOB_PREFIX}{job_id}"


def events_key(job_id: UUID | str) -> str:
    return f"{JOB_PREFIX}{job_id}{EVENTS_SUFFIX}"


def idempotency_key(key: str) -> str:
    return f"idempotency:{key}"
