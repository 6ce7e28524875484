"""What Postgres has committed, in the words of the Redis contract, and the one script call that writes it there."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from redis.exceptions import ResponseError

from jobd.stream.keys import DEAD_LETTERS, EPOCH, GROUP, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    import redis.asyncio

    from jobd.lifecycle.outbox import Live, Told
    from jobd.lifecycle.publish import Offer
    from jobd.lifecycle.read import Job

SCRIPT = files("jobd.stream").joinpath("project.lua").read_text("utf-8")

#: Public status after each event; a job whose cancel was asked for runs on.
_STATUS = {
    "queued": "queued",
    "running": "running",
    "taken": "running",
    "requeued": "queued",
    "done": "done",
    "error": "error",
    "canceled": "canceled",
    "cancel_requested": "running",
}
#: Type and step of the event that tells it.
_EVENT = {
    "queued": ("queued", "gateway.enqueue"),
    "running": ("running", "worker.start"),
    "taken": ("", ""),  # the raw worker says so itself, in hash and event
    "requeued": ("queued", "jobd.requeue"),
    "done": ("done", "worker.done"),
    "error": ("error", "worker.error"),
    "canceled": ("canceled", "jobd.cancel"),
    "cancel_requested": ("cancel_requested", "jobd.cancel"),
}

Change = list[Any]

#: What one script call carries at most, so that it never blocks Redis for long.
CALL_ITEMS = 1000
CALL_BYTES = 2 << 20
#: An empty batch.
NOTHING = b"\x90"

_encode = msgspec.msgpack.Encoder().encode


class EpochChanged(Exception):
    """This Redis is not the one that Postgres knows: it was flushed, restarted, or is an old copy."""


def change_of(told: Told) -> Change:
    """One change as project.lua wants it."""
    status, ts, job_id = _STATUS[told.event], str(told.ts), str(told.job_id)
    kind, step = _EVENT[told.event]
    whole = told.event == "queued"
    fields = ["status", status, "updated_ts", ts]
    if told.event == "taken":
        fields = []
    elif whole:
        fields = _hash(job_id, told.task, told.payload, status, told.created_ts, told.ts, told.ttl_s)
    elif told.event == "done":
        fields += ["result", told.result or "", "error", ""]
        if told.result_ref is not None:
            fields += ["result_ref", told.result_ref]
    elif told.error is not None:
        fields += ["error", told.error if status in ("error", "canceled") else ""]
    attempt = told.attempt_no or 0
    data = "{}" if told.event == "queued" else _data(told, attempt)
    return [
        job_id,
        told.version,
        whole,
        fields,
        told.ttl_s or 1,
        f"{0 if whole else attempt}-*",
        [kind, ts, step, data],
        told.stream or "",
        told.message_id or "",
        1 if told.event == "error" else 0,
    ]


def change_of_live(live: Live) -> Change:
    """A live job's whole hash, for a Redis that has forgotten it; told by an event so that its cursor goes on."""
    job_id, ts = str(live.job_id), str(live.ts)
    fields = _hash(job_id, live.task, live.payload, live.status, live.created_ts, live.ts, live.ttl_s)
    event = [live.status, ts, "jobd.resync", msgspec.json.encode({"attempt": live.attempt_no}).decode()]
    return [job_id, live.version, True, fields, live.ttl_s, f"{live.attempt_no}-*", event, "", "", 0]


def change_of_job(job: Job) -> Change:
    """A whole job as it stands, final or not, for a hash that had expired."""
    job_id, ts = str(job.id), _ms(job.updated_at)
    fields = [
        *_hash(job_id, job.task, job.payload, job.status, _ms(job.created_at), ts, job.ttl_s)[:-4],
        *("result", job.result or "", "error", job.error if job.error and job.status != "queued" else ""),
    ]
    kind, step = _EVENT[job.status]
    event = [kind, str(ts), step, msgspec.json.encode({"attempt": job.attempt_no}).decode()]
    return [job_id, job.version, True, fields, job.ttl_s, f"{job.attempt_no}-*", event, "", "", 0]


def offer_of(offer: Offer) -> list[Any]:
    return [str(offer.job_id), stream_of(offer.queue), offer.task, offer.payload, offer.enqueue_id]


class Projector:
    """The script on one Redis."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._script = client.register_script(SCRIPT)

    async def project(self, epoch: str, changes: Sequence[Change], offers: Sequence[list[Any]] = ()) -> list[str]:
        """Write a batch in as few calls as may be; the jobs whose hash was not there to be changed.

        Raises EpochChanged if Redis has another epoch; what was written before it changed is gone with it.
        """
        calls = list(in_calls(changes))
        more = list(in_calls(offers))
        missing: list[str] = []
        for blob in calls[:-1]:
            missing += await self._call(epoch, blob, NOTHING)
        missing += await self._call(epoch, calls[-1] if calls else NOTHING, more[0] if more else NOTHING)
        for blob in more[1:]:
            await self._call(epoch, NOTHING, blob)
        return missing

    async def _call(self, epoch: str, changes: bytes, offers: bytes) -> list[str]:
        answer: Any = await self._script(keys=[EPOCH, DEAD_LETTERS], args=[epoch, changes, offers])
        if answer == b"EPOCH":
            raise EpochChanged
        return [item.decode() for item in answer[0]]

    async def prepare(self, epoch: str, queues: Sequence[str]) -> None:
        """Make the streams and their group, then the epoch key: whoever sees the epoch finds the rest."""
        for queue in queues:
            await self._make_group(stream_of(queue))
        await self._client.set(EPOCH, epoch)

    async def _make_group(self, stream: str) -> None:
        try:
            await self._client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                await self._client.rename(stream, f"jobd:aside:{stream}")
                await self._client.xgroup_create(stream, GROUP, id="0", mkstream=True)
            elif "BUSYGROUP" not in str(error):
                raise


def in_calls(items: Sequence[list[Any]]) -> Iterator[bytes]:
    """A batch as msgpack arrays, each no larger than one call may be."""
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


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _data(told: Told, attempt: int) -> str:
    data: dict[str, Any] = {"attempt": attempt}
    if told.error is not None:
        data["error"] = msgspec.Raw(told.error.encode())
    return msgspec.json.encode(data).decode()
