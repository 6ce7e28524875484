"""What Postgres has committed, in the words of the Redis contract, and the one script call that writes it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
from redis.exceptions import ResponseError

from jobd.job import history
from jobd.stream.keys import ASIDE_PREFIX, DEAD_LETTERS, EPOCH, GROUP, RUN, TOLD, stream_of
from jobd.stream.scripts import script
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import redis.asyncio

    from jobd.lifecycle.outbox import Live, OutboxRow
    from jobd.lifecycle.publish import Offer
    from jobd.lifecycle.read import Job

TRIM = script("trim")
PROJECT = script("trim", "project")
WITHDRAW = script("withdraw")

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
_MODES = {"queued": NEW, "events": EVENTS}
#: Events after which the message that was offered before is of no use to anyone.
_LEAVES_ITS_MESSAGE = frozenset({"requeued", "done", "error", "canceled"})

#: Items and bytes that one script call carries at most, so that it never blocks Redis for long.
CALL_ITEMS = 1000
CALL_BYTES = 2 << 20
#: An empty msgpack array: no changes, or no offers.
NOTHING = b"\x90"

_encode = msgspec.msgpack.Encoder().encode
_emitted_events = msgspec.json.Decoder(list[history.HandlerEvent])


#: An event as the script takes it: attempt, number in it, type, time in ms, step, data as JSON.
EventArray = tuple[int, int, str, str, str, str]


class Change(msgspec.Struct, array_like=True):
    """What is to change in the hash, events and streams of one job: an array for project.lua, in this order."""

    job_id: str
    version: int
    #: One of CHANGED, FORCED, NEW, WHOLE, EVENTS.
    mode: int
    #: Names and values of the hash, one after the other, as HSET takes them.
    fields: list[str]
    ttl_s: int
    events: list[EventArray]
    #: The messages that are settled by it: stream and message id.
    acks: list[tuple[str, str]]
    is_dead_letter: bool
    #: The stream whose message of this job is of no use any more; "": none.
    left_stream: str


class OfferArray(msgspec.Struct, array_like=True, frozen=True):
    """A message to be added to a stream, as project.lua takes it."""

    job_id: str
    stream: str
    task: str | None
    payload: str | None
    enqueue_id: int
    version: int
    #: With `ttl_s`: what makes the hash of a job that Redis has never seen. "" and 0: it has.
    created_ts: str
    ttl_s: int | None


class NoteArray(msgspec.Struct, array_like=True, frozen=True):
    """What the nodes hear about a change: enough to know which followers want it."""

    job_id: bytes
    event: str
    attempt: int
    ts: int
    task: str
    queue: str


class EpochChanged(Exception):
    """This Redis is not the one that Postgres knows: it was flushed, restarted, or is an old copy."""


def change_of(row: OutboxRow) -> Change | None:
    """One change as project.lua wants it; None for what Redis knows already."""
    if row.event == "seen":
        return None
    return Change(
        str(row.job_id),
        row.version,
        _MODES.get(row.event, CHANGED),
        _fields_of(row),
        row.ttl_s or 1,
        _plain_event(row) or [_event(event) for event in events_of(row)],
        [(row.stream, row.message_id)] if row.stream and row.message_id else [],
        row.event == "error",
        stream_of(row.queue) if row.queue and (row.event in _LEAVES_ITS_MESSAGE or row.stream == "") else "",
    )


def merged(changes: Iterable[Change]) -> list[Change]:
    """Several changes of one job as one: what is published late is published in one piece, with all its events."""
    found: dict[str, Change] = {}
    for change in changes:
        first = found.setdefault(change.job_id, change)
        if first is not change:
            if change.mode != EVENTS:
                first.version = change.version
                first.mode = first.mode if first.mode == NEW else change.mode
            first.fields += change.fields  # HSET takes the last of a name
            first.ttl_s = change.ttl_s
            first.events += change.events
            first.acks += change.acks
            first.is_dead_letter = first.is_dead_letter or change.is_dead_letter
            first.left_stream = first.left_stream or change.left_stream
    return list(found.values())


def _plain_event(row: OutboxRow) -> list[EventArray] | None:
    """The one event of what happens to nearly every job, quickly; None for the rest."""
    if row.has_gap or row.error is not None:
        return None
    ts = str(row.ts)
    if row.event == "queued":
        return [(0, 1, "queued", ts, "gateway.enqueue", "{}")]
    if row.event == "running":
        return [(row.attempt, 0, "running", ts, "worker.start", f'{{"attempt":{row.attempt}}}')]
    if row.event == "done":
        return [(row.attempt, row.event_n, "done", ts, "worker.done", f'{{"attempt":{row.attempt}}}')]
    return None


def _fields_of(row: OutboxRow) -> list[str]:
    if row.event in ("taken", "events"):
        return []  # a raw worker says itself that it runs
    status, ts = _STATUS[row.event], str(row.ts)
    if row.event == "queued":
        return _hash(str(row.job_id), row.task, row.payload, status, row.created_ts, row.ts, row.ttl_s)
    fields = ["status", status, "updated_ts", ts]
    if row.event == "done":
        fields += ["result", row.result or "", "error", ""]
        if row.result_ref is not None:
            fields += ["result_ref", row.result_ref]
    elif row.error is not None:
        fields += ["error", row.error if status in ("error", "canceled") else ""]
    return fields


def events_of(row: OutboxRow) -> Iterator[history.Event]:
    """What a change adds to the job's events; the same as the history makes of it."""
    cursor = history.Cursor(row.attempt, row.event_n)
    if row.event == "events":
        for n, event in enumerate(_emitted_events.decode(row.events or "[]"), row.event_n):
            yield history.Event(history.Cursor(row.attempt, n), event.type, event.ts, event.step, event.data)
        return
    error = msgspec.Raw(row.error.encode()) if row.error is not None else None
    if row.event in ("running", "taken"):
        if row.has_gap:  # taken over: the attempt before ended with it
            before = history.Cursor(row.attempt - 1, row.event_n)
            yield history.made("gap", before._replace(n=before.n - 1), row.ts)
            yield history.made("requeued", before, row.ts, history.LEASE_EXPIRED)
        if row.event == "running":
            yield history.made("running", history.Cursor(row.attempt, 0), row.ts)
        return
    if row.has_gap:
        yield history.made("gap", cursor._replace(n=cursor.n - 1), row.ts)
        error = error or history.LEASE_EXPIRED
    yield history.made(row.event, cursor, row.ts, error)


def note_of(row: OutboxRow) -> NoteArray:
    """A change as the nodes hear of it: enough to know which followers want it."""
    kind = "queued" if row.event == "requeued" else "running" if row.event == "taken" else row.event
    return NoteArray(row.job_id.bytes, kind, row.attempt, row.ts, row.task or "", row.queue or "")


def change_of_live(live: Live, events: Sequence[history.Event]) -> Change:
    """A live job whole, for a Redis that has forgotten it."""
    job_id = str(live.job_id)
    fields = _hash(job_id, live.task, live.payload, live.status, live.created_ts, live.ts, live.ttl_s)
    return Change(job_id, live.version, WHOLE, fields, live.ttl_s, list(map(_event, events)), [], False, "")


def change_of_job(job: Job, events: Sequence[history.Event]) -> Change:
    """A whole job as it stands, final or not, for a hash that had expired."""
    job_id = str(job.id)
    fields = [
        *_hash(job_id, job.task, job.payload, job.status, ms(job.created_at), ms(job.updated_at), job.ttl_s)[:-4],
        *("result", job.result or "", "error", job.error if job.error and job.status != "queued" else ""),
    ]
    return Change(job_id, job.version, WHOLE, fields, job.ttl_s, list(map(_event, events)), [], False, "")


def correction_of(job: Job) -> Change:
    """The job as it stands, over whatever a zombie wrote into its hash."""
    fields = [
        *("status", job.status, "updated_ts", str(ms(job.updated_at)), "result", job.result or ""),
        *("error", job.error if job.error and job.status != "queued" else ""),
    ]
    return Change(str(job.id), job.version, FORCED, fields, job.ttl_s, [], [], False, "")


def _event(event: history.Event) -> EventArray:
    return (event.cursor.attempt, event.cursor.n, event.type, str(event.ts), event.step, bytes(event.data).decode())


def offer_of(offer: Offer) -> OfferArray:
    made = str(offer.job_id), stream_of(offer.queue), offer.task, offer.payload, offer.enqueue_id, offer.version
    return OfferArray(*made, str(offer.created_ts), offer.ttl_s) if offer.is_fresh else OfferArray(*made, "", 0)


def offer_of_new(row: OutboxRow) -> OfferArray:
    """The same for a job that is new in the outbox."""
    job_id, stream = str(row.job_id), stream_of(row.queue or "")
    return OfferArray(job_id, stream, row.task, row.payload, 1, row.version, str(row.created_ts), row.ttl_s)


class Call(NamedTuple):
    """What one call of the script carries."""

    changes: bytes
    offers: bytes
    news: bytes


class Lacking(NamedTuple):
    """Jobs whose hash was not there: to be changed, or to be offered with."""

    missing: list[str]
    unoffered: list[str]


class Projector:
    """The script on one Redis."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._script = client.register_script(PROJECT)

    async def project(
        self, epoch: str, changes: Sequence[Change], offers: Sequence[OfferArray] = (), notes: Sequence[NoteArray] = ()
    ) -> Lacking:
        return await self.send(epoch, in_calls(changes, offers, notes))

    async def send(self, epoch: str, calls: Sequence[Call]) -> Lacking:
        """Write a batch, then publish the notes to the nodes.

        Raises EpochChanged if Redis has another epoch; what was written before it changed is gone with it.
        """
        lacking = Lacking([], [])
        for call in calls:
            answer = await self._script(keys=[EPOCH, DEAD_LETTERS, TOLD], args=[epoch, *call])
            if answer == b"EPOCH":
                raise EpochChanged
            for known, found in zip(lacking, answer, strict=True):
                known.extend(item.decode() for item in found)
        return lacking

    async def prepare(self, epoch: str, queues: Sequence[str]) -> None:
        """Make the streams and their group, then the epoch key: a reader that sees the epoch finds the rest.

        What is left in the streams is taken back first, or it would stand beside what is offered again.
        """
        await self._client.delete(EPOCH)  # from here on nobody adds to the streams
        for queue in queues:
            await make_group(self._client, stream_of(queue))
            await self.withdraw(queue, epoch)
        await self._client.set(RUN, await self._run_id())
        await self._client.set(EPOCH, epoch)

    async def is_known_run(self) -> bool:
        """Whether this server has run without a break since it was prepared."""
        return bool(await self._client.get(RUN) == (await self._run_id()).encode())

    async def _run_id(self) -> str:
        info = await self._client.info("server")
        return str(info["run_id"])

    async def withdraw(self, queue: str, epoch: str = "") -> int:
        """Take back the messages of a queue that nobody has read; how many there were.

        At the beginning of an epoch, jobs whose message is in somebody's hands are marked as offered in it.
        """
        count = await self._client.register_script(WITHDRAW)(keys=[stream_of(queue)], args=[epoch])
        return int(count)


async def make_group(client: redis.asyncio.Redis, stream: str) -> None:
    """Make a stream and its group, unless they are there; a key of the wrong type in the way is moved aside."""
    try:
        await client.xgroup_create(stream, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "WRONGTYPE" in str(error):
            await client.rename(stream, f"{ASIDE_PREFIX}{stream}")
            await make_group(client, stream)
        elif "BUSYGROUP" not in str(error):
            raise


def in_calls(
    changes: Sequence[Change], offers: Sequence[OfferArray] = (), notes: Sequence[NoteArray] = ()
) -> list[Call]:
    """A batch in as few calls as may be: changes first, then offers, with the last one the notes to the nodes."""
    some, more = list(in_arrays(changes)) or [NOTHING], list(in_arrays(offers)) or [NOTHING]
    pairs = [(blob, NOTHING) for blob in some[:-1]] + [(some[-1], more[0])] + [(NOTHING, blob) for blob in more[1:]]
    news = _encode(notes) if notes else b""
    return [Call(*pair, news if n == len(pairs) else b"") for n, pair in enumerate(pairs, 1)]


def in_arrays(items: Sequence[msgspec.Struct]) -> Iterator[bytes]:
    """Msgpack arrays, each no larger than one call may be."""
    some: list[bytes] = []
    size = 0
    for item in items:
        encoded = _encode(item)
        if some and (len(some) >= CALL_ITEMS or size + len(encoded) > CALL_BYTES):
            yield _array(some)
            some, size = [], 0
        some.append(encoded)
        size += len(encoded)
    if some:
        yield _array(some)


def _array(encoded: list[bytes]) -> bytes:
    return b"\xdd" + len(encoded).to_bytes(4, "big") + b"".join(encoded)


def _hash(
    job_id: str, task: str | None, payload: str | None, status: str, created_ts: int | None, ts: int, ttl_s: int | None
) -> list[str]:
    """The fields of the contract, all of them, in its order and as strings."""
    return [
        *("job_id", job_id, "task", task or "", "payload", payload or "{}", "status", status),
        *("created_ts", str(created_ts or ts), "updated_ts", str(ts), "ttl_s", str(ttl_s or 1)),
        *("result", "", "error", ""),
    ]
