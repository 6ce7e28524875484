"""Events: what holders tell while they work is kept in chunks; the history of a job is read from any cursor on."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from jobd.job.history import START, Chunk, Cursor, EndedAttempt, Record, Told, before
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
TOLD_BEFORE = statement("told_before")

#: Events of one chunk at most; it bounds how far back a reader's place is looked for.
CHUNK_EVENTS = 200
#: Types of events that can be done without when there is too much of them.
DROPPED_FIRST = frozenset({"log", "token"})
#: Bytes of events after which a chunk takes no more: whoever reads takes whole chunks.
CHUNK_BYTES = 256 * 1024
#: Chunks of a job that one look brings at most, and the bytes after which it brings no other.
CHUNKS = 50
LOOK_BYTES = 1 << 20
#: The same for all places of one look together, as far as each gets one chunk.
ALL_PLACES_BYTES = 8 << 20

_attempts = msgspec.json.Decoder(EndedAttempt)
_chunks = msgspec.json.Decoder(Chunk)
_encode = msgspec.json.Encoder().encode


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """What the holder of a job has to tell."""

    job_id: UUID
    lease_token: UUID
    events: list[Told]
    #: How many events of this attempt it has told before; then the same telling sent twice is kept once.
    told_n: int | None = None


class Kept(msgspec.Struct, frozen=True):
    #: The newest event of the attempt.
    last: Cursor


class OutOfStep(msgspec.Struct, frozen=True):
    """The holder counts otherwise: what lies between was never told, or is told again with more."""

    told_n: int


Answer = Kept | OutOfStep | LeaseLost


class Place(msgspec.Struct, frozen=True):
    """A reader's place in the history of a job."""

    job_id: UUID
    after: Cursor


class Limit(msgspec.Struct, frozen=True):
    """How much is kept. What is not is counted in a `dropped` event."""

    #: Bytes that a job has told, after which nothing more of it is kept.
    job_bytes: int = (1 << 62) - 1
    #: Log lines and tokens are dropped, for want of space on the disk.
    is_disk_low: bool = False

    def drops(self, event: Told) -> bool:
        return self.is_disk_low and event.type in DROPPED_FIRST


UNLIMITED = Limit()


async def append_events(
    session: Session,
    tellings: Sequence[Telling],
    *,
    limit: Limit = UNLIMITED,
    seen: bool = False,
    now: datetime | None = None,
) -> list[Answer]:
    """Keep them; the answers are in their order. Tellings of one job are joined, as long as a chunk allows."""
    answers: dict[int, Answer] = {}
    for groups in _rounds(tellings):
        firsts = [tellings[group[0]] for group in groups]
        told = [[event for n in group for event in tellings[n].events] for group in groups]
        chunks = [[event for event in events if not limit.drops(event)] for events in told]
        rows = await session.fetch(
            APPEND_EVENTS,
            [telling.job_id for telling in firsts],
            [telling.lease_token for telling in firsts],
            [len(chunk) for chunk in chunks],
            [_encode(chunk).decode() for chunk in chunks],
            [telling.told_n for telling in firsts],
            "seen" if seen else "events",
            now,
            [len(events) for events in told],
            limit.job_bytes,
        )
        for row in rows:
            kept = Kept(Cursor(row["attempt_no"], row["last_n"]))
            answers |= dict.fromkeys(groups[row["n"] - 1], kept)
        refused = [n for group in groups for n in group if n not in answers]
        answers |= dict(zip(refused, await _explained(session, [tellings[n] for n in refused]), strict=True))
    return [answers[n] for n in range(len(tellings))]


def _rounds(tellings: Sequence[Telling]) -> list[list[list[int]]]:
    """Which tellings go together: in each round every job once, with as many of its tellings as a chunk holds."""
    rounds: list[dict[tuple[UUID, UUID], list[int]]] = []
    last: dict[tuple[UUID, UUID], int] = {}
    for n, telling in enumerate(tellings):
        key = (telling.job_id, telling.lease_token)
        at = last.get(key, 0)
        if at < len(rounds) and key in rounds[at] and not _continues(tellings, rounds[at][key], telling):
            at += 1
        if at == len(rounds):
            rounds.append({})
        rounds[at].setdefault(key, []).append(n)
        last[key] = at
    return [sorted(groups.values(), key=lambda group: tellings[group[0]].job_id.int) for groups in rounds]


def _continues(tellings: Sequence[Telling], group: Sequence[int], telling: Telling) -> bool:
    """Those that count stand alone: of two, the first may be known already and the second not."""
    size = sum(len(tellings[n].events) for n in group)
    uncounted = telling.told_n is None and tellings[group[0]].told_n is None
    return uncounted and size + len(telling.events) <= CHUNK_EVENTS


async def _explained(session: Session, tellings: Sequence[Telling]) -> list[Answer]:
    """Why these were not kept now: told before, counted otherwise, or no longer the holder's."""
    if not tellings:
        return []
    rows = await session.fetch(
        TOLD_BEFORE,
        [telling.job_id for telling in tellings],
        [telling.lease_token for telling in tellings],
    )
    standing = {row["n"] - 1: row for row in rows}
    return [_why(telling, standing.get(n)) for n, telling in enumerate(tellings)]


def _why(telling: Telling, row: asyncpg.Record | None) -> Answer:
    if row is None or telling.told_n is None:
        return LeaseLost()
    if row["told_n"] >= telling.told_n + len(telling.events):
        return Kept(Cursor(row["attempt_no"], row["last_n"]))
    return OutOfStep(row["told_n"])


async def read_history(session: Session, places: Sequence[Place]) -> list[Record | None]:
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
    found = {row["n"] - 1: row for row in rows}
    return [_record(found[n]) if n in found else None for n in range(len(places))]


async def last_places(session: Session, job_ids: Sequence[UUID], most_bytes: int) -> list[Cursor]:
    """From where on one look brings the rest of each job's history: START unless it has told more than `most_bytes`."""
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
