"""The scripts that write to Redis what Postgres has committed, and the calls that carry it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from redis.exceptions import ResponseError

from jobd.lifecycle.outbox import PLAIN_FIELDS
from jobd.stream.keys import ASIDE_PREFIX, DEAD_LETTERS, EPOCH, GROUP, MODES, RUN, TOLD, WORK, stream_of
from jobd.stream.message import read_message
from jobd.stream.scripts import script

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    import redis.asyncio

    from jobd.stream.changes import Change, NoteArray, OfferArray

TRIM = script("trim")
PROJECT = script("trim", "project")
WITHDRAW = script("withdraw")
FENCE = script("fence")

#: Most changes or offers in one script call, so that it never blocks Redis for long. In a call of more items, each of
#: them costs Redis more.
CALL_ITEMS = 250
#: Most bytes of changes or of offers in one script call, for the same reason.
CALL_BYTES = 2 << 20
#: An empty msgpack array: no changes, or no offers.
NOTHING = b"\x90"

_encode = msgspec.msgpack.Encoder().encode


class EpochChanged(Exception):
    """This Redis is not the one that Postgres knows: it was flushed, restarted, or is an old copy."""


class OfferMode(NamedTuple):
    """Of a queue in mode `stream`: the number of the mode under which its jobs are offered."""

    queue: str
    stream: str
    mode_no: int


class RedisBatch(NamedTuple):
    """What is to be written, in its order, and what is then published to the nodes."""

    #: Plain changes, the fields of one after those of the other.
    plain: list[object] = []  # noqa: RUF012 - never changed
    changes: Sequence[Change] = ()
    offers: Sequence[OfferArray] = ()
    modes: Sequence[OfferMode] = ()
    notes: Sequence[NoteArray] = ()
    work: bytes = b""
    #: Most seconds that finished jobs are kept; None: as long as they ask for.
    most_s: int | None = None


class Call(NamedTuple):
    """What one call of the script carries: its arguments after the epoch."""

    plain: bytes
    changes: bytes
    offers: bytes
    modes: bytes
    most_s: int | str
    news: bytes
    work: bytes


class Lacking(NamedTuple):
    """Jobs whose hash was not there, to be changed or to be offered with; and queues that take no offers any more."""

    missing: list[str]
    unoffered: list[str]
    refused: list[str]


class ReadMessage(NamedTuple):
    """A message that somebody has read, and that is still in its stream."""

    message_id: str
    #: A consumer of jobd has it in hand.
    is_own: bool
    job_id: UUID


class Projector:
    """The script on one Redis."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._script = client.register_script(PROJECT)

    async def project(self, epoch: str, changes: Sequence[Change]) -> Lacking:
        return await self.send(epoch, in_calls(RedisBatch(changes=changes)))

    async def send(self, epoch: str, calls: Sequence[Call]) -> Lacking:
        """Write a batch, then publish its notes to the nodes.

        Raises EpochChanged if Redis has another epoch; what was written before it changed is gone with it.
        """
        lacking = Lacking([], [], [])
        for call in calls:
            answer = await self._script(keys=[EPOCH, DEAD_LETTERS, TOLD, MODES, WORK], args=[epoch, *call])
            if answer == b"EPOCH":
                raise EpochChanged
            for names, more in zip(lacking, answer, strict=True):
                names.extend(name.decode() for name in more)
        return lacking

    async def prepare(self, epoch: str, queues: Sequence[str], fences: Mapping[str, int]) -> None:
        """Make the streams and their group, the fences, then the epoch key: a reader that sees it finds the rest.

        What is left in the streams is taken back first, or it would stand beside what is offered again.
        """
        await self._client.delete(EPOCH)  # from here on nobody adds to the streams
        for queue in queues:
            await make_group(self._client, stream_of(queue))
            await self.withdraw(queue, epoch)
        if await self._client.type(MODES) != b"hash":
            await self._client.delete(MODES)
        for queue, mode_no in fences.items():
            await self.fence("", queue, mode_no)
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

    async def fence(
        self, epoch: str, queue: str, mode_no: int, useless: Sequence[str] = (), active_ms: int | None = None
    ) -> list[ReadMessage] | None:
        """Refuse offers of the queue from modes before `mode_no`, and take back what nobody has read.

        Messages that were read and are still there. None: raw workers were active in the last `active_ms`, and nothing
        was done. Raises EpochChanged.
        """
        answer: Any = await self._client.register_script(FENCE)(
            keys=[EPOCH, MODES, stream_of(queue)],
            args=[epoch, queue, mode_no, "" if active_ms is None else active_ms, *useless],
        )
        if answer == b"EPOCH":
            raise EpochChanged
        if answer == b"READ":
            return None
        messages = []
        for message_id, own, job_id, enqueue_id in answer:
            message = read_message({b"job_id": job_id, b"enqueue_id": enqueue_id})
            if message is not None:
                messages.append(ReadMessage(message_id.decode(), bool(own), message[0]))
        return messages


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


def in_calls(batch: RedisBatch) -> list[Call]:
    """A batch in as few calls as possible: changes, then offers; the last call publishes the notes to the nodes."""
    plain, changes = list(_plain_arrays(batch.plain)), list(in_arrays(batch.changes))
    offers, modes = list(in_arrays(batch.offers)), _encode(batch.modes)
    number = max(1, len(plain), len(changes))
    plain += [NOTHING] * (number - len(plain))
    changes = [NOTHING] * (number - len(changes)) + changes
    most_s = "" if batch.most_s is None else batch.most_s
    calls = [Call(*pair, NOTHING, modes, most_s, b"", b"") for pair in zip(plain, changes, strict=True)]
    if offers:
        calls[-1] = calls[-1]._replace(offers=offers[0])
        calls += [Call(NOTHING, NOTHING, blob, modes, most_s, b"", b"") for blob in offers[1:]]
    calls[-1] = calls[-1]._replace(news=_encode(batch.notes) if batch.notes else b"", work=batch.work)
    return calls


def _plain_arrays(fields: list[object]) -> Iterator[bytes]:
    size = CALL_ITEMS * PLAIN_FIELDS
    for start in range(0, len(fields), size):
        blob = _encode(fields[start : start + size])
        if len(blob) <= CALL_BYTES:
            yield blob
        else:
            yield from in_arrays(fields[start : start + size], step=PLAIN_FIELDS)


def in_arrays(items: Sequence[object], *, step: int = 1) -> Iterator[bytes]:
    """Msgpack arrays, each no larger than one call may be; `step` items stay together."""
    gathered: list[bytes] = []
    size = 0
    for start in range(0, len(items), step):
        encoded = b"".join(map(_encode, items[start : start + step]))
        if gathered and (len(gathered) >= CALL_ITEMS or size + len(encoded) > CALL_BYTES):
            yield _array(gathered, step)
            gathered, size = [], 0
        gathered.append(encoded)
        size += len(encoded)
    if gathered:
        yield _array(gathered, step)


def _array(encoded: list[bytes], step: int) -> bytes:
    return b"\xdd" + (len(encoded) * step).to_bytes(4, "big") + b"".join(encoded)
