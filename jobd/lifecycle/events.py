"""Events: what handlers emit is kept in chunks of the event log; the history of a job is read from any cursor on."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.job.history import START, Chunk, Cursor, EndedAttempt, HandlerEvent, Record, before
from jobd.job.model import LeaseLost
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import asyncpg

    from jobd.store.session import Session

APPEND_EVENTS = statement("append_events")
LAST_CHUNKS = statement("last_chunks")
READ_HISTORY = statement("read_history")
EMITTED_BEFORE = statement("emitted_before")

#: Most events of one chunk: to find a cursor, at most this many events are read too many.
CHUNK_EVENTS = 200
#: Event types that are dropped first when the disk is low or a handler emits too much.
DROPPED_FIRST = frozenset({"log", "token", "reasoning", "tool_call"})
#: Bytes of events after which a chunk takes no more: chunks are read whole.
CHUNK_BYTES = 256 * 1024
#: Most chunks of one job that one query returns.
CHUNKS = 50
#: Bytes of one job after which a query returns no further chunk.
LOOK_BYTES = 1 << 20
#: Bytes of all followers' jobs in one query together; each gets one chunk all the same.
ALL_PLACES_BYTES = 8 << 20

_attempts = msgspec.json.Decoder(EndedAttempt)
_chunks = msgspec.json.Decoder(Chunk)
_encode = msgspec.json.Encoder().encode


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events that a handler emitted, with the proof that their sender holds the job."""

    job_id: UUID
    lease_token: UUID
    events: list[HandlerEvent]
    #: How many events of this attempt were sent before; then a batch that comes twice is kept once. None: not counted.
    emitted_n: int | None = None


class Kept(msgspec.Struct, frozen=True):
    #: The newest event of the attempt.
    last: Cursor


class OutOfStep(msgspec.Struct, frozen=True):
    """The holder counts otherwise: events in between never came, or come again with others."""

    emitted_n: int


Answer = Kept | OutOfStep | LeaseLost


class HistoryPlace(msgspec.Struct, frozen=True):
    """A reader's place in the history of a job."""

    job_id: UUID
    after: Cursor


class Limit(msgspec.Struct, frozen=True):
    """How much is kept. What is not is counted in a `dropped` event."""

    #: Bytes of events of one job, after which none of its events is kept.
    job_bytes: int = (1 << 62) - 1
    #: Log lines and tokens are dropped, for want of space on the disk.
    is_disk_low: bool = False

    def drops(self, event: HandlerEvent) -> bool:
        return self.is_disk_low and event.type in DROPPED_FIRST


UNLIMITED = Limit()


async def append_events(
    session: Session,
    batches: Sequence[EventBatch],
    *,
    limit: Limit = UNLIMITED,
    seen: bool = False,
    now: datetime | None = None,
) -> list[Answer]:
    """Keep them; the answers are in their order. Tellings of one job are joined, as long as a chunk allows."""
    answers: dict[int, Answer] = {}
    for groups in _rounds(batches):
        firsts = [batches[group[0]] for group in groups]
        emitted = [[event for n in group for event in batches[n].events] for group in groups]
        chunks = [[event for event in events if not limit.drops(event)] for events in emitted]
        rows = await session.fetch(
            APPEND_EVENTS,
            [batch.job_id for batch in firsts],
            [batch.lease_token for batch in firsts],
            [len(chunk) for chunk in chunks],
            [_encode(chunk).decode() for chunk in chunks],
            [batch.emitted_n for batch in firsts],
            "seen" if seen else "events",
            now,
            [len(events) for events in emitted],
            limit.job_bytes,
        )
        for row in rows:
            kept = Kept(Cursor(row["attempt_no"], row["last_n"]))
            answers |= dict.fromkeys(groups[row["n"] - 1], kept)
        refused = [n for group in groups for n in group if n not in answers]
        answers |= dict(zip(refused, await _explained(session, [batches[n] for n in refused]), strict=True))
    return [answers[n] for n in range(len(batches))]


def _rounds(batches: Sequence[EventBatch]) -> list[list[list[int]]]:
    """Which batches go together: in each round every job once, with as many of its batches as a chunk holds."""
    rounds: list[dict[tuple[UUID, UUID], list[int]]] = []
    last: dict[tuple[UUID, UUID], int] = {}
    for n, batch in enumerate(batches):
        key = (batch.job_id, batch.lease_token)
        at = last.get(key, 0)
        if at < len(rounds) and key in rounds[at] and not _continues(batches, rounds[at][key], batch):
            at += 1
        if at == len(rounds):
            rounds.append({})
        rounds[at].setdefault(key, []).append(n)
        last[key] = at
    return [sorted(groups.values(), key=lambda group: batches[group[0]].job_id.int) for groups in rounds]


def _continues(batches: Sequence[EventBatch], group: Sequence[int], batch: EventBatch) -> bool:
    """Those that count stand alone: of two, the first may be known already and the second not."""
    size = sum(len(batches[n].events) for n in group)
    uncounted = batch.emitted_n is None and batches[group[0]].emitted_n is None
    return uncounted and size + len(batch.events) <= CHUNK_EVENTS


async def _explained(session: Session, batches: Sequence[EventBatch]) -> list[Answer]:
    """Why these were not kept now: kept before, counted otherwise, or no longer the holder's."""
    if not batches:
        return []
    rows = await session.fetch(
        EMITTED_BEFORE,
        [batch.job_id for batch in batches],
        [batch.lease_token for batch in batches],
    )
    standing = {row["n"] - 1: row for row in rows}
    return [_why(batch, standing.get(n)) for n, batch in enumerate(batches)]


def _why(batch: EventBatch, row: asyncpg.Record | None) -> Answer:
    if row is None or batch.emitted_n is None:
        return LeaseLost()
    if row["told_n"] >= batch.emitted_n + len(batch.events):
        return Kept(Cursor(row["attempt_no"], row["last_n"]))
    return OutOfStep(row["told_n"])


async def read_history(session: Session, places: Sequence[HistoryPlace]) -> list[Record | None]:
    """What there is to know about each reader's job from its place on; None: there is no such job (any more)."""
    rows = await session.fetch(
        READ_HISTORY,
        [place.job_id for place in places],
        [place.after.attempt for place in places],
        [place.after.n for place in places],
        CHUNKS,
        CHUNK_EVENTS,
        min(LOOK_BYTES, ALL_PLACES_BYTES // max(1, len(places))),
    )
    by_number = {row["n"] - 1: row for row in rows}
    return [_record(by_number[n]) if n in by_number else None for n in range(len(places))]


async def last_places(session: Session, job_ids: Sequence[UUID], most_bytes: int) -> list[Cursor]:
    """From where on one query returns the rest of each job's history: START unless its events exceed `most_bytes`."""
    rows = await session.fetch(LAST_CHUNKS, job_ids, CHUNKS, most_bytes)
    begins = {row["n"] - 1: Cursor(row["attempt_no"], row["first_n"]) for row in rows}
    return [before(begins[n]) if n in begins else START for n in range(len(job_ids))]


def _record(row: asyncpg.Record) -> Record:
    return Record(
        status=row["status"],
        task=row["task"],
        queue=row["queue"],
        attempt_no=row["attempt_no"],
        created_ts=row["created_ts"],
        finished_ts=row["finished_ts"],
        acquired_ts=row["acquired_ts"],
        open_n=row["open_n"],
        error=None if row["error"] is None else msgspec.Raw(row["error"].encode()),
        attempts=[_attempts.decode(text) for text in row["attempts"]],
        chunks=[_chunks.decode(text) for text in row["chunks"]],
        is_cut=row["is_cut"],
    )
