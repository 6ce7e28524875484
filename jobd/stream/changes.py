"""What Postgres has committed, in the words of the Redis contract: changes, offers and notes as project.lua takes them.

What a job went through within one page of the outbox is one change. Nearly every job is queued, run once and done;
such a job is sent as the first fields of its row (`PLAIN_FIELDS`), from which the script makes hash and
events, whether or not it has seen the job before. All others are spelled out here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.job import history
from jobd.lifecycle.outbox import DONE, QUEUED, RUNNING, UNMESSAGED, other_changes
from jobd.stream.keys import stream_of
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobd.lifecycle.outbox import Live, OutboxChange, OutboxJob
    from jobd.lifecycle.publish import Offer
    from jobd.lifecycle.read import Job

#: Public status after each event; a job whose cancel was asked for runs on.
_STATUS = {
    "queued": "queued",
    "running": "running",
    "requeued": "queued",
    "done": "done",
    "error": "error",
    "canceled": "canceled",
    "cancel_requested": "running",
}
#: How a change is applied; see project.lua.
CHANGED, FORCED, NEW, WHOLE, EVENTS = range(5)
#: Events after which the job's message in a stream is stale, since it is of an earlier enqueue.
_LEAVES_ITS_MESSAGE = frozenset({"requeued", "done", "error", "canceled"})

_emitted_events = msgspec.json.Decoder(list[history.HandlerEvent] | None)

#: An event as the script takes it: attempt, number in it, type, time in ms, step, data as JSON.
EventArray = tuple[int, int, str, str, str, str]
#: What is published to the nodes about a change, enough to know which followers want it: id of the job, event, attempt,
#: time in ms, task, queue, number of the (first) event in the attempt. A follower whose cursor is at or after that
#: number has the event already; -1: the number is not known here.
NoteArray = tuple[bytes, str, int, int, str, str, int]


class Change(msgspec.Struct, array_like=True):
    """What is to change in the hash, events and streams of one job: an array for project.lua, in this order."""

    job_id: str
    version: int
    #: One of CHANGED, FORCED, NEW, WHOLE, EVENTS.
    mode: int
    #: Names and values of the hash, one after the other, as HSET takes them: the last of a name counts.
    fields: list[str]
    ttl_s: int
    events: list[EventArray]
    #: The messages that are settled by it: stream and message id.
    acks: list[tuple[str, str]]
    is_dead_letter: bool = False
    #: The stream whose message of this job is of no use any more; "": none.
    left_stream: str = ""
    #: Number of leading `fields` that are written only if there is no hash yet.
    first_fields_n: int = 0


class OfferArray(msgspec.Struct, array_like=True, frozen=True):
    """A message to be added to a stream, as project.lua takes it."""

    job_id: str
    stream: str
    task: str
    payload: str
    enqueue_id: int
    version: int
    #: With `ttl_s`: what makes the hash of a job that Redis has never seen. "" and 0: it has.
    created_ts: str
    ttl_s: int


# -- a page of the outbox ----------------------------------------------------------------------------------------------


def notes_of(job: OutboxJob) -> Iterator[NoteArray]:
    kinds, task, queue = job.kinds, job.task, job.queue
    if kinds & QUEUED:
        yield job.id_bytes, "queued", 0, job.created_ts, task, queue, 1
    if kinds & RUNNING:
        yield job.id_bytes, "running", 1, job.started_ts, task, queue, 0
    for change in other_changes(job):
        kind = {"requeued": "queued", "taken": "running"}.get(change.event, change.event)
        # With a gap, `event_n` is of the attempt before.
        yield job.id_bytes, kind, change.attempt, change.ts, task, queue, 0 if kind == "running" else change.event_n
    if kinds & DONE:
        yield job.id_bytes, "done", 1, job.finished_ts, task, queue, -1


def change_of(job: OutboxJob) -> Change | None:
    """What happened to a job that is not a plain one; None for what Redis knows already."""
    change = Change(job.job_id, job.version, CHANGED, [], job.ttl_s, [], _acks(job.stream, job.message_id))
    if job.is_gone:
        return change  # its message is settled, and its keys may go
    if job.kinds & (DONE | UNMESSAGED):
        change.left_stream = stream_of(job.queue)
    _add_beginning(change, job)
    others = [other for other in other_changes(job) if other.event != "seen"]
    for other in others:
        _add(change, job, other)
    if job.kinds & DONE:
        _add_end(change, job)
    if not job.kinds and all(other.event == "events" for other in others):
        change.mode = EVENTS
    return change if job.kinds or others else None


def _add_beginning(change: Change, job: OutboxJob) -> None:
    """The job is new or in its first attempt, so the page has its whole history: the hash can be made from nothing."""
    if job.kinds & (QUEUED | RUNNING) and job.payload:
        change.mode = NEW
        change.fields = _hash(job.job_id, job.task, job.payload, "queued", job.created_ts, job.created_ts, job.ttl_s)
        change.first_fields_n = len(change.fields)
        change.events.append((0, 1, "queued", str(job.created_ts), "gateway.enqueue", "{}"))
    if job.kinds & RUNNING:
        ts = str(job.started_ts)
        change.fields += ["status", "running", "updated_ts", ts]
        change.events.append((1, 0, "running", ts, "worker.start", '{"attempt":1}'))


def _add_end(change: Change, job: OutboxJob) -> None:
    ts = str(job.finished_ts)
    change.fields += _result(job, ts)
    change.events.append((1, 1, "done", ts, "worker.done", '{"attempt":1}'))


def _add(change: Change, job: OutboxJob, other: OutboxChange) -> None:
    change.fields += _fields_of(job, other)
    change.events += map(_event, events_of(other, _error_of(job, other)))
    change.acks += _acks(other.stream, other.message_id)
    change.is_dead_letter = change.is_dead_letter or other.event == "error"
    if other.event in _LEAVES_ITS_MESSAGE or other.stream == "":
        change.left_stream = stream_of(job.queue)


def _acks(stream: str | None, message_id: str | None) -> list[tuple[str, str]]:
    return [(stream, message_id)] if stream and message_id else []


def _error_of(job: OutboxJob, other: OutboxChange) -> str | None:
    return job.error if other.event in ("error", "canceled", "requeued") else None


def _fields_of(job: OutboxJob, other: OutboxChange) -> list[str]:
    if other.event in ("taken", "events"):
        return []  # a raw worker says itself that it runs
    if other.event == "done":
        return _result(job, str(other.ts))
    status, error = _STATUS[other.event], _error_of(job, other)
    fields = ["status", status, "updated_ts", str(other.ts)]
    if error is not None:
        fields += ["error", error if status in ("error", "canceled") else ""]
    return fields


def _result(job: OutboxJob, ts: str) -> list[str]:
    fields = ["status", "done", "updated_ts", ts, "result", job.result, "error", ""]
    return [*fields, "result_ref", job.result_ref] if job.result_ref else fields


def events_of(other: OutboxChange, error_text: str | None) -> Iterator[history.Event]:
    """What a change adds to the job's events; the same as the history makes of it."""
    cursor = history.Cursor(other.attempt, other.event_n)
    if other.event == "events":
        for n, event in enumerate(_emitted_events.decode(other.events) or (), other.event_n):
            yield history.Event(history.Cursor(other.attempt, n), event.type, event.ts, event.step, event.data)
        return
    error = msgspec.Raw(error_text.encode()) if error_text is not None else None
    if other.event in ("running", "taken"):
        if other.has_gap:  # taken over: the attempt before ended with it
            before = history.Cursor(other.attempt - 1, other.event_n)
            yield history.made("gap", before._replace(n=before.n - 1), other.ts)
            yield history.made("requeued", before, other.ts, history.LEASE_EXPIRED)
        if other.event == "running":
            yield history.made("running", history.Cursor(other.attempt, 0), other.ts)
        return
    if other.has_gap:
        yield history.made("gap", cursor._replace(n=cursor.n - 1), other.ts)
        error = error or history.LEASE_EXPIRED
    yield history.made(other.event, cursor, other.ts, error)


# -- whole jobs --------------------------------------------------------------------------------------------------------


def change_of_live(live: Live, events: Sequence[history.Event]) -> Change:
    """A live job whole, for a Redis that has forgotten it."""
    job_id = str(live.job_id)
    fields = _hash(job_id, live.task, live.payload, live.status, live.created_ts, live.ts, live.ttl_s)
    return Change(job_id, live.version, WHOLE, fields, live.ttl_s, list(map(_event, events)), [])


def change_of_job(job: Job, events: Sequence[history.Event]) -> Change:
    """A whole job as it stands, final or not, for a hash that had expired."""
    job_id = str(job.id)
    fields = [
        *_hash(job_id, job.task, job.payload, job.status, ms(job.created_at), ms(job.updated_at), job.ttl_s)[:-4],
        *("result", job.result or "", "error", job.error if job.error and job.status != "queued" else ""),
    ]
    return Change(job_id, job.version, WHOLE, fields, job.ttl_s, list(map(_event, events)), [])


def correction_of(job: Job) -> Change:
    """The job as it stands, over whatever a zombie wrote into its hash."""
    fields = [
        *("status", job.status, "updated_ts", str(ms(job.updated_at)), "result", job.result or ""),
        *("error", job.error if job.error and job.status != "queued" else ""),
    ]
    return Change(str(job.id), job.version, FORCED, fields, job.ttl_s, [], [])


def _event(event: history.Event) -> EventArray:
    return (event.cursor.attempt, event.cursor.n, event.type, str(event.ts), event.step, bytes(event.data).decode())


def _hash(job_id: str, task: str, payload: str, status: str, created_ts: int, ts: int, ttl_s: int) -> list[str]:
    """The fields of the contract, all of them, in its order and as strings."""
    return [
        *("job_id", job_id, "task", task, "payload", payload, "status", status),
        *("created_ts", str(created_ts), "updated_ts", str(ts), "ttl_s", str(ttl_s), "result", "", "error", ""),
    ]


# -- offers ------------------------------------------------------------------------------------------------------------


def offer_of(offer: Offer) -> OfferArray:
    made = str(offer.job_id), stream_of(offer.queue), offer.task, offer.payload, offer.enqueue_id, offer.version
    return OfferArray(*made, str(offer.created_ts), offer.ttl_s) if offer.is_fresh else OfferArray(*made, "", 0)


def offer_of_new(job: OutboxJob) -> OfferArray:
    """The same for a job that is new in the outbox."""
    stream, created_ts = stream_of(job.queue), str(job.created_ts)
    return OfferArray(job.job_id, stream, job.task, job.payload, 1, job.version, created_ts, job.ttl_s)
