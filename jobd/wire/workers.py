"""Workers as clients see them: the holders of leases, and the jobs that they hold. Times are in ms since 1970."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta

#: Most workers in one answer of `GET /v1/workers`.
MAX_WORKERS = 1_000
#: Most jobs that are listed of one worker.
MAX_HELD = 100

WorkerLimit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
HeldLimit: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_HELD)]


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    #: As it calls itself; `slots:host:uuid` for the slots of a jobd, `redis:name` for one that speaks only Redis.
    worker_id: str
    #: `slots`: in a jobd itself; `http`: claims over HTTP; `redis`: speaks only Redis. Derived from `worker_id`.
    kind: Literal["slots", "http", "redis"]
    #: How many jobs it holds.
    jobs: int
    #: Since when it holds the oldest of them.
    oldest_lease_ts: int
    last_heartbeat_ts: int
    #: When the first of its leases ends, unless it is renewed.
    lease_expires_ts: int


class HeldJob(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    task: str
    queue: str
    worker_id: str
    attempt: int
    #: When the attempt began.
    started_ts: int
    cancel_requested: bool
    #: Last progress that the worker reported, from 0 to 1; null: none lately.
    progress: float | None
    #: Last step that the worker reported; empty: none.
    step: str


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    #: Those that hold a job now, the longest silent first.
    workers: list[Worker]
    #: How many there are, listed or not.
    total: int
    #: What they do, the longest held first.
    held: list[HeldJob]
