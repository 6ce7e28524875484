"""The events of a job, in order, out of what is stored of it: pure.

Each has a cursor that only grows: the attempt it belongs to and its number in it. Only what handlers emit is kept
as an event; the rest follows from the job and its attempts, so it is the same whenever and from wherever it is read:

    0-1         queued
    k-0         running: attempt k has begun
    k-1 ...     what its handler emitted, in order
    k-(N-1)     gap, if the holder fell silent: what it had not sent yet is lost
    k-N         what came of the attempt: queued (again), done, error or canceled
    k-(N+1)     canceled, if that was asked for while the job waited after attempt k (0-2 before the first)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobd.job.status import AttemptOutcome, JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Event types that end a history: no event follows one of these.
LAST_EVENTS = frozenset({"done", "error", "canceled"})

#: Event types that only jobd emits; a handler's event of such a type is refused.
RESERVED = LAST_EVENTS | {"hello", "gap", "queued", "running", "cancel_requested"}

#: The `step` of each event that jobd itself emits.
STEPS = {
    "queued": "gateway.enqueue",
    "running": "worker.start",
    "requeued": "jobd.requeue",
    "done": "worker.done",
    "error": "worker.error",
    "canceled": "jobd.cancel",
    "cancel_requested": "jobd.cancel",
    "gap": "jobd.gap",
}

LEASE_EXPIRED = msgspec.Raw(b'{"code":"lease_expired","message":"the worker fell silent","retryable":true}')
INTERRUPTED = msgspec.Raw(
    b'{"code":"interrupted","message":"jobd stopped or stood still while the job ran","retryable":true}'
)
INTERRUPTIONS_EXHAUSTED = msgspec.Raw(
    b'{"code":"interruptions_exhausted",'
    b'"message":"jobd stopped or stood still more than max_interruptions times while the job ran","retryable":true}'
)

#: Outcomes of attempts whose holder said nothing any more.
SILENT = frozenset({AttemptOutcome.EXPIRED.value, AttemptOutcome.INTERRUPTED.value})


class Cursor(NamedTuple):
    attempt: int
    n: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.n}"


#: Larger than the number of any event in its attempt: the largest int of Postgres.
LARGEST_N = (1 << 31) - 1
#: Before the first event.
START = Cursor(0, 0)
#: After every event: a follower from here on only learns that the job is over.
BEYOND = Cursor((1 << 31) - 1, 0)


def read_cursor(text: str) -> Cursor | None:
    """A cursor as it is written; None for anything else."""
    attempt, dash, n = text.partition("-")
    if not (dash and attempt.isascii() and attempt.isdigit() and n.isascii() and n.isdigit()) or len(text) > 20:
        return None
    cursor = Cursor(int(attempt), int(n))
    return cursor if cursor.attempt < 1 << 31 and cursor.n < 1 << 31 else None


class Event(NamedTuple):
    cursor: Cursor
    type: str
    #: Milliseconds since 1970.
    ts: int
    step: str
    #: JSON
    data: msgspec.Raw


class HandlerEvent(msgspec.Struct, frozen=True):
    """One event as a handler emitted it and as a chunk of the event log keeps it."""

    type: str
    ts: int
    step: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")


class EndedAttempt(msgspec.Struct, frozen=True, array_like=True):
    number: int
    started_ts: int
    ended_ts: int
    outcome: str
    led_to: str
    event_n: int
    #: JSON, `null` if there was none: msgspec has no optional Raw.
    error: msgspec.Raw


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    attempt_no: int
    first_n: int
    events: list[HandlerEvent]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A job, the attempts and chunks that matter to a reader, and when its open attempt began, if there is one."""

    status: str
    task: str
    queue: str
    attempt_no: int
    created_ts: int
    finished_ts: int | None
    acquired_ts: int | None
    #: Number of the newest event of the open attempt; None: no attempt is open.
    open_n: int | None
    error: msgspec.Raw | None
    attempts: list[EndedAttempt]
    chunks: list[Chunk]
    #: There are more chunks than were read.
    is_cut: bool


def events_after(record: Record, after: Cursor) -> list[Event]:
    """What a reader who knows `after` has not seen yet; where the chunks were cut, so is this."""
    return [event for event in _events(record) if event.cursor > after]


def before(first: Cursor) -> Cursor:
    """The cursor of a gap in front of an event: that of the event before it, which is left out."""
    return first._replace(n=first.n - 1) if first.n > 1 else Cursor(first.attempt - 1, LARGEST_N)


def last_events(record: Record, after: Cursor) -> list[Event]:
    """The end of a history that is too long to be sent whole, with a gap for what is left out after its beginning."""
    events = events_after(record, after)
    if after == START:
        return events
    ts = events[0].ts if events else record.created_ts
    return [made("queued", Cursor(0, 1), record.created_ts), made("gap", after, ts), *events]


def newest(record: Record) -> Cursor:
    """The last event there is, whether or not it was read."""
    if record.open_n is not None:
        return Cursor(record.attempt_no, record.open_n)
    *_, last = _events(record)
    return last.cursor


def _events(record: Record) -> Iterator[Event]:
    yield made("queued", Cursor(0, 1), record.created_ts, None)
    for attempt in record.attempts:
        yield made("running", Cursor(attempt.number, 0), attempt.started_ts)
        yield from _chunks_of(record, attempt.number)
        if record.is_cut and attempt.number >= record.chunks[-1].attempt_no:
            return
        yield from ends(attempt, record.error)
    if record.acquired_ts is not None:
        yield made("running", Cursor(record.attempt_no, 0), record.acquired_ts)
        yield from _chunks_of(record, record.attempt_no)
    if record.status == JobStatus.CANCELED and not (record.attempts and record.attempts[-1].led_to == "canceled"):
        before = record.attempts[-1].event_n if record.attempts else 1
        why = (
            None if record.attempt_no else record.error
        )  # a job that never ran has one if it expired, or waited in vain
        yield made("canceled", Cursor(record.attempt_no, before + 1), record.finished_ts or 0, why)


def _chunks_of(record: Record, attempt: int) -> Iterator[Event]:
    for chunk in record.chunks:
        if chunk.attempt_no == attempt:
            for n, event in enumerate(chunk.events, chunk.first_n):
                yield Event(Cursor(attempt, n), event.type, event.ts, event.step, event.data)


def ends(attempt: EndedAttempt, error: msgspec.Raw | None = None) -> Iterator[Event]:
    """The events that follow from the end of an attempt."""
    at = attempt.ended_ts
    silent = attempt.outcome in SILENT
    if silent:
        yield made("gap", Cursor(attempt.number, attempt.event_n - 1), at)
    reported = attempt.error if bytes(attempt.error) != b"null" else None
    why = reported or (_error_of_silence(attempt) if silent else None)
    kind = "requeued" if attempt.led_to == "queued" else attempt.led_to
    yield made(kind, Cursor(attempt.number, attempt.event_n), at, why or (error if kind == "error" else None))


def _error_of_silence(attempt: EndedAttempt) -> msgspec.Raw:
    if attempt.outcome == AttemptOutcome.EXPIRED or attempt.led_to == "canceled":
        return LEASE_EXPIRED
    return INTERRUPTED if attempt.led_to == "queued" else INTERRUPTIONS_EXHAUSTED


def made(kind: str, cursor: Cursor, ts: int, error: msgspec.Raw | None = None) -> Event:
    """An event that jobd itself emits: `requeued` is shown as another `queued`."""
    data: dict[str, Any] = {} if kind == "queued" else {"attempt": cursor.attempt}
    if error is not None and kind != "done":
        data["error"] = error
    return Event(
        cursor, "queued" if kind == "requeued" else kind, ts, STEPS[kind], msgspec.Raw(msgspec.json.encode(data))
    )
