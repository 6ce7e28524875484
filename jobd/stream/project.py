"""What Postgres has committed, in the words of the Redis contract, and the one script call that writes it there."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from redis.exceptions import ResponseError

from jobd.job import history
from jobd.stream.keys import CONSUMER_PREFIX, DEAD_LETTERS, EPOCH, GROUP, RUN, TOLD, stream_of
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import redis.asyncio

    from jobd.lifecycle.outbox import Live, Told
    from jobd.lifecycle.publish import Offer
    from jobd.lifecycle.read import Job

TRIM = files("jobd.stream").joinpath("trim.lua").read_text("utf-8")
SCRIPT = TRIM + files("jobd.stream").joinpath("project.lua").read_text("utf-8")

WITHDRAW = files("jobd.stream").joinpath("withdraw.lua").read_text("utf-8")

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

#: What one script call carries at most, so that it never blocks Redis for long.
CALL_ITEMS = 1000
CALL_BYTES = 2 << 20
#: An empty batch.
NOTHING = b"\x90"

_encode = msgspec.msgpack.Encoder().encode
_told_events = msgspec.json.Decoder(list[history.Told])


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


def change_of(told: Told) -> Change | None:
    """One change as project.lua wants it; None for what Redis knows already."""
    if told.event == "seen":
        return None
    return Change(
        str(told.job_id),
        told.version,
        _MODES.get(told.event, CHANGED),
        _fields_of(told),
        told.ttl_s or 1,
        _plain_event(told) or [_event(event) for event in events_of(told)],
        [(told.stream, told.message_id)] if told.stream and told.message_id else [],
        told.event == "error",
        stream_of(told.queue) if told.queue and (told.event in _LEAVES_ITS_MESSAGE or told.stream == "") else "",
    )


def merged(changes: Iterable[Change]) -> list[Change]:
    """Several changes of one job as one: what is told late is told in one piece, with all its events."""
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


def _plain_event(told: Told) -> list[EventArray] | None:
    """The one event of what happens to nearly every job, quickly; None for the rest."""
    if told.has_gap or told.error is not None:
        return None
    ts = str(told.ts)
    if told.event == "queued":
        return [(0, 1, "queued", ts, "gateway.enqueue", "{}")]
    if told.event == "running":
        return [(told.attempt, 0, "running", ts, "worker.start", f'{{"attempt":{told.attempt}}}')]
    if told.event == "done":
        return [(told.attempt, told.event_n, "done", ts, "worker.done", f'{{"attempt":{told.attempt}}}')]
    return None


def _fields_of(told: Told) -> list[str]:
    if told.event in ("taken", "events"):
        return []  # a raw worker says itself that it runs
    status, ts = _STATUS[told.event], str(told.ts)
    if told.event == "queued":
        return _hash(str(told.job_id), told.task, told.payload, status, told.created_ts, told.ts, told.ttl_s)
    fields = ["status", status, "updated_ts", ts]
    if told.event == "done":
        fields += ["result", told.result or "", "error", ""]
        if told.result_ref is not None:
            fields += ["result_ref", told.result_ref]
    elif told.error is not None:
        fields += ["error", told.error if status in ("error", "canceled") else ""]
    return fields


def events_of(told: Told) -> Iterator[history.Event]:
    """What a change adds to the job's events; the same as the history makes of it."""
    cursor = history.Cursor(told.attempt, told.event_n)
    if told.event == "events":
        for n, one in enumerate(_told_events.decode(told.events or "[]"), told.event_n):
            yield history.Event(history.Cursor(told.attempt, n), one.type, one.ts, one.step, one.data)
        return
    error = msgspec.Raw(told.error.encode()) if told.error is not None else None
    if told.event in ("running", "taken"):
        if told.has_gap:  # taken over: the attempt before ended with it
            before = history.Cursor(told.attempt - 1, told.event_n)
            yield history.made("gap", before._replace(n=before.n - 1), told.ts)
            yield history.made("requeued", before, told.ts, history.LEASE_EXPIRED)
        if told.event == "running":
            yield history.made("running", history.Cursor(told.attempt, 0), told.ts)
        return
    if told.has_gap:
        yield history.made("gap", cursor._replace(n=cursor.n - 1), told.ts)
        error = error or history.LEASE_EXPIRED
    yield history.made(told.event, cursor, told.ts, error)


def note_of(told: Told) -> NoteArray:
    """What the nodes are told about a change: enough to know who wants to hear of it."""
    kind = "queued" if told.event == "requeued" else "running" if told.event == "taken" else told.event
    return NoteArray(told.job_id.bytes, kind, told.attempt, told.ts, told.task or "", told.queue or "")


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


def offer_of_new(told: Told) -> OfferArray:
    """The same for a job that was just told of."""
    job_id, stream = str(told.job_id), stream_of(told.queue or "")
    return OfferArray(job_id, stream, told.task, told.payload, 1, told.version, str(told.created_ts), told.ttl_s)


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
        self._script = client.register_script(SCRIPT)

    async def project(
        self, epoch: str, changes: Sequence[Change], offers: Sequence[OfferArray] = (), notes: Sequence[NoteArray] = ()
    ) -> Lacking:
        return await self.send(epoch, in_calls(changes, offers, notes))

    async def send(self, epoch: str, calls: Sequence[Call]) -> Lacking:
        """Write a batch, then tell the nodes.

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
        """Make the streams and their group, then the epoch key: whoever sees the epoch finds the rest.

        What is left in the streams is taken back first, or it would stand beside what is offered anew.
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
        script = self._client.register_script(WITHDRAW)
        count = await script(keys=[stream_of(queue)], args=[GROUP, CONSUMER_PREFIX, epoch])
        return int(count)


async def make_group(client: redis.asyncio.Redis, stream: str) -> None:
    """Make a stream and its group, unless they are there; a key of the wrong type in the way is moved aside."""
    try:
        await client.xgroup_create(stream, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "WRONGTYPE" in str(error):
            await client.rename(stream, f"jobd:aside:{stream}")
            await make_group(client, stream)
        elif "BUSYGROUP" not in str(error):
            raise


def in_calls(
    changes: Sequence[Change], offers: Sequence[OfferArray] = (), notes: Sequence[NoteArray] = ()
) -> list[Call]:
    """A batch in as few calls as may be: changes first, then offers, with the last one what the nodes are told."""
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
