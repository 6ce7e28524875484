"""Workers: who holds the leases of jobs, and which jobs. The leases are the list; nobody has to sign in or out.

A worker that waits for a job holds none and is not known here. Both statements go through the leases, of which there
are as many as jobs in progress, however many jobs there are.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from jobd.store.session import Session

LIST_WORKERS = statement("list_workers")
LIST_HELD_JOBS = statement("list_held_jobs")

#: Chunks of a job that are searched for its newest progress; with a thousand tokens emitted since, it shows none.
CHUNKS = 5


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    owner_id: str
    jobs: int
    oldest_lease_at: datetime
    heartbeat_at: datetime
    #: The first of its leases to end.
    lease_expires_at: datetime


class HeldJob(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    task: str
    queue: str
    owner_id: str
    attempt_no: int
    acquired_at: datetime
    cancel_requested: bool
    #: `step` of the newest progress event; None: none in the last chunks.
    step: str | None
    #: Its data: JSON, as the handler emitted it.
    data: str | None


async def list_workers(session: Session, *, most: int) -> tuple[list[Holder], int]:
    """The holders, the longest silent first, and how many there are in all."""
    rows = await session.fetch(LIST_WORKERS, most)
    fields = Holder.__struct_fields__
    return [Holder(**{name: row[name] for name in fields}) for row in rows], rows[0]["total"] if rows else 0


async def list_held_jobs(
    session: Session, *, most: int, chunks: int = CHUNKS, owner: str | None = None
) -> list[HeldJob]:
    """What is being worked on, the longest held first; `owner`: only what this one has sent."""
    return [HeldJob(**dict(row)) for row in await session.fetch(LIST_HELD_JOBS, most, chunks, owner)]
