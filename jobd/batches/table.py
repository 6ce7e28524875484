"""The rows of batches. Each change of status is one guarded statement, so that no two services both make it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.store.clock import in_time
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.clock_eras import Past
    from jobd.store.session import Session

CREATE_BATCH = statement("create_batch", __package__)
READ_BATCH = statement("read_batch", __package__)
LIST_BATCHES = statement("list_batches", __package__)
LIST_OPEN_BATCHES = statement("list_open_batches", __package__)
FAIL_BATCH = statement("fail_batch", __package__)
BEGIN_BATCH = statement("begin_batch", __package__)
ADVANCE_BATCH = statement("advance_batch", __package__)
FINALIZE_BATCH = statement("finalize_batch", __package__)
CANCEL_BATCH = statement("cancel_batch", __package__)
FINISH_BATCH = statement("finish_batch", __package__)
PRUNE_BATCHES = statement("prune_batches", __package__)
READ_LINE_ENDS = statement("read_line_ends", __package__)

#: Statuses that a batch never leaves.
FINAL = frozenset({"failed", "completed", "expired", "cancelled"})


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    owner: str | None
    endpoint: str
    input_file_id: UUID
    #: A JSON object of strings.
    metadata: str | None
    #: Seconds that its files are kept; None: as the configuration says.
    keep_output_s: float | None
    window_s: float


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A row, with the counters of the group that its jobs are members of; the migration says what each column means."""

    id: UUID
    owner: str | None
    endpoint: str
    input_file_id: UUID
    metadata: str | None
    keep_output_s: float | None
    status: str
    ending: str | None
    errors: str | None
    model: str | None
    total: int
    read_bytes: int
    read_lines: int
    completed: int
    failed: int
    usage: str | None
    output_file_id: UUID | None
    error_file_id: UUID | None
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    cancelling_at: datetime | None
    finished_at: datetime | None
    members: int
    done: int
    error: int
    canceled: int
    #: No more jobs come.
    is_sealed: bool
    #: All jobs have ended, and no more come.
    is_settled: bool
    #: Its window is over.
    is_over: bool

    @property
    def pending(self) -> int:
        """Jobs that have not ended."""
        return self.members - self.done - self.error - self.canceled


class LineEnd(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    status: str
    result: str | None
    result_ref: str | None
    error: str | None
    #: Milliseconds since 1970.
    ended_ms: int


async def create_batch(session: Session, batch: NewBatch, *, now: datetime | None = None) -> bool:
    """False: its file is not there any more."""
    values = batch.id, batch.owner, batch.endpoint, batch.input_file_id, batch.metadata, batch.keep_output_s
    return bool(await session.fetch(CREATE_BATCH, *values, batch.window_s, now))


async def read_batch(session: Session, batch_id: UUID) -> StoredBatch | None:
    for row in await session.fetch(READ_BATCH, batch_id):
        return StoredBatch(**dict(row))
    return None


async def list_batches(
    session: Session, *, most: int, after: UUID | None = None, owner: str | None = None
) -> list[StoredBatch]:
    """Newest first; with `owner` only those of that token."""
    return [StoredBatch(**dict(row)) for row in await session.fetch(LIST_BATCHES, after, most, owner)]


async def list_open_batches(session: Session, *, most: int) -> list[UUID]:
    return [row["id"] for row in await session.fetch(LIST_OPEN_BATCHES, most)]


async def fail_batch(session: Session, batch_id: UUID, errors: str, total: int, *, now: datetime | None = None) -> bool:
    return bool(await session.fetch(FAIL_BATCH, batch_id, errors, total, now))


async def begin_batch(
    session: Session, batch_id: UUID, total: int, model: str | None, *, now: datetime | None = None
) -> bool:
    return bool(await session.fetch(BEGIN_BATCH, batch_id, total, model, now))


async def advance_batch(session: Session, batch_id: UUID, from_bytes: int, read_bytes: int, read_lines: int) -> bool:
    return bool(await session.fetch(ADVANCE_BATCH, batch_id, from_bytes, read_bytes, read_lines))


async def finalize_batch(session: Session, batch_id: UUID, ending: str, *, now: datetime | None = None) -> bool:
    return bool(await session.fetch(FINALIZE_BATCH, batch_id, ending, now))


async def cancel_batch(session: Session, batch_id: UUID, *, now: datetime | None = None) -> bool:
    """False: it ends already, or has ended."""
    return bool(await session.fetch(CANCEL_BATCH, batch_id, now))


async def finish_batch(
    session: Session,
    batch_id: UUID,
    *,
    completed: int,
    failed: int,
    usage: str | None,
    output_file_id: UUID | None,
    error_file_id: UUID | None,
    now: datetime | None = None,
) -> bool:
    values = completed, failed, usage, output_file_id, error_file_id
    return bool(await session.fetch(FINISH_BATCH, batch_id, *values, now))


async def prune_batches(
    session: Session, *, keep_s: float = 0.0, most: int = 100, past: Past | None = None, now: datetime | None = None
) -> int:
    """Delete one batch of batches that ended long ago; how many."""
    return len(await session.fetch(PRUNE_BATCHES, keep_s, most, now, *in_time(past)))


async def read_line_ends(session: Session, job_ids: Sequence[UUID]) -> dict[UUID, LineEnd]:
    return {row["id"]: LineEnd(**dict(row)) for row in await session.fetch(READ_LINE_ENDS, list(job_ids))}
