"""What is told: refused, cut, dropped and counted as it must be."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from jobd.errors import ServerDown
from jobd.job.history import Cursor
from jobd.job.model import LeaseLost
from jobd.lifecycle.events import CHUNK_BYTES, Kept, OutOfStep
from jobd.store.ids import new_id
from jobd.tasks.event_buffer import MOST_WAITING, EventBuffer
from jobd.tasks.event_check import DATA_BYTES, checked_event
from jobd.tasks.mock import MockRunner
from tests.support.running_slots import RunningSlots, running_slots

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.tasks.runner import Context

KEPT = Kept(Cursor(1, 1))


class Claimed(msgspec.Struct):
    """As much of a claimed job as a buffer looks at."""

    job_id: UUID
    lease_token: UUID


def buffer(on_lost: Any = lambda: None) -> EventBuffer:
    claimed: Any = Claimed(new_id(), new_id())
    return EventBuffer(claimed, on_lost, lambda _, hurry: None)


def texts(telling: Any) -> list[Any]:
    return [msgspec.json.decode(event.data).get("text") for event in telling.events]


def test_chunk_of_large_events_is_cut_by_bytes_and_none_is_lost() -> None:
    waiting = buffer()
    for n in range(100):
        waiting.emit("log", "", {"text": f"{n} " + "x" * 15_000})

    sizes: list[int] = []
    numbers: list[str] = []
    while (telling := waiting.next_chunk()) is not None:
        sizes.append(sum(len(bytes(event.data)) for event in telling.events))
        numbers += [text.partition(" ")[0] for text in texts(telling)]
        waiting.settle(KEPT)

    assert max(sizes) < CHUNK_BYTES + DATA_BYTES
    assert numbers == [str(n) for n in range(100)]


@pytest.mark.parametrize(
    ("kind", "step", "message"),
    [
        ("Token", "", "1 to 64 of a-z 0-9"),
        ("", "", "1 to 64 of a-z 0-9"),
        ("x" * 65, "", "1 to 64 of a-z 0-9"),
        ("done", "", "emitted by jobd itself"),
        ("gap", "", "emitted by jobd itself"),
        ("note", "s" * 201, "at most 200 characters"),
    ],
)
def test_event_that_no_client_could_be_told_is_refused(kind: str, step: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_event(kind, step, {})


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"text": "a\0b"}, {"text": "a\ufffdb"}),
        ({"text": "a\ud800b"}, {"text": "a?b"}),
        ({"text": "\\u0000"}, {"text": "\\u0000"}),
        ({"x": float("nan")}, {"x": None}),
        ({"list": [{"deep": ["\0"]}]}, {"list": [{"deep": ["\ufffd"]}]}),
    ],
)
def test_data_is_kept_as_it_can_be_stored(data: dict[str, Any], kept: dict[str, Any]) -> None:
    assert msgspec.json.decode(checked_event("note", "", data).data) == kept


def test_data_that_is_nested_too_deep_is_refused() -> None:
    data: dict[str, Any] = {}
    for _ in range(40):
        data = {"x": data}

    with pytest.raises(ValueError, match="nested deeper"):
        checked_event("note", "", data)


@pytest.mark.parametrize("data", [{"line": "ä" * 20_000, "level": "info"}, {"many": ["x"] * 20_000}])
def test_data_that_is_too_large_is_cut_and_says_so(data: dict[str, Any]) -> None:
    event = checked_event("log", "", data)

    assert len(bytes(event.data)) <= DATA_BYTES
    assert msgspec.json.decode(event.data)["cut"] == len(msgspec.json.encode(data))


def test_chunk_is_the_same_until_its_fate_is_known() -> None:
    waiting = buffer()
    waiting.emit("token", "", {"text": "a"})
    first = waiting.next_chunk()
    waiting.emit("token", "", {"text": "b"})

    assert waiting.settle(ServerDown("away")) is False
    again = waiting.next_chunk()
    assert again == first
    waiting.settle(KEPT)
    then = waiting.next_chunk()

    assert then is not None
    assert (texts(then), then.emitted_n) == (["b"], 1)


def test_no_more_than_a_chunk_is_told_at_once() -> None:
    waiting = buffer()
    for n in range(450):
        waiting.emit("token", "", {"text": n})

    sizes, counts = [], []
    while (telling := waiting.next_chunk()) is not None:
        sizes.append(len(telling.events))
        counts.append(telling.emitted_n)
        waiting.settle(KEPT)

    assert (sizes, counts) == ([200, 200, 50], [0, 200, 400])


def test_oldest_tokens_are_dropped_when_too_many_wait_and_their_number_is_told() -> None:
    waiting = buffer()
    waiting.emit("progress", "", {"progress": 0})
    for n in range(MOST_WAITING + 10):
        waiting.emit("token", "", {"text": n})

    telling = waiting.next_chunk()

    assert telling is not None
    assert [event.type for event in telling.events[:3]] == ["dropped", "progress", "token"]
    assert msgspec.json.decode(telling.events[0].data) == {"count": 11}
    assert texts(telling)[2] == 11


def test_tokens_are_joined_rather_than_dropped_when_too_many_wait() -> None:
    waiting = buffer()
    waiting.emit("progress", "", {"progress": 0})
    said = [f"{n} " for n in range(5 * MOST_WAITING)]
    for text in said:
        waiting.emit("token", "", {"text": text})

    kinds: set[str] = set()
    heard: list[str] = []
    while (telling := waiting.next_chunk()) is not None:
        kinds |= {event.type for event in telling.events}
        heard += [text for text in texts(telling) if text is not None]
        waiting.settle(KEPT)

    assert kinds == {"progress", "token"}
    assert "".join(heard) == "".join(said)
    assert len(heard) < MOST_WAITING


def test_log_lines_are_dropped_before_deltas() -> None:
    waiting = buffer()
    for n in range(600):
        waiting.emit("tool_call", "", {"index": n, "arguments": ""})
        waiting.emit("log", "", {"line": str(n)})

    kinds: list[str] = []
    while (telling := waiting.next_chunk()) is not None:
        kinds += [event.type for event in telling.events]
        waiting.settle(KEPT)

    assert (kinds.count("tool_call"), kinds.count("log")) == (600, MOST_WAITING - 600)
    assert kinds[0] == "dropped"


def test_teller_goes_on_from_where_the_lease_stands() -> None:
    waiting = buffer()
    for n in range(3):
        waiting.emit("token", "", {"text": n})
    waiting.next_chunk()

    waiting.settle(OutOfStep(2))
    telling = waiting.next_chunk()

    assert telling is not None
    assert (texts(telling), telling.emitted_n) == ([2], 2)


def test_lost_lease_ends_the_telling() -> None:
    lost: list[bool] = []
    waiting = buffer(lambda: lost.append(True))
    waiting.emit("token", "", {})
    waiting.next_chunk()

    waiting.settle(LeaseLost())
    waiting.emit("token", "", {})

    assert (lost, waiting.has_more) == ([True], False)


# -- with real servers -------------------------------------------------------------------------------------------------


class Talker(MockRunner):
    """Tells much, from several threads at once."""

    async def run(self, payload: Any, context: Context) -> Any:
        threads = [threading.Thread(target=self._talk, args=(context, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return None

    def _talk(self, context: Context, n: int) -> None:
        for k in range(100):
            context.event("note", {"thread": n, "k": k})


@pytest.fixture
async def slots(shared_postgres: str, folder: Path) -> AsyncIterator[RunningSlots]:
    async with running_slots(shared_postgres, folder, {"chat": Talker()}) as slots:
        yield slots


async def test_what_several_threads_tell_is_all_kept_and_in_each_ones_order(slots: RunningSlots) -> None:
    job_id = await slots.submit({})

    await slots.wait_for_status(job_id, "done")

    notes = [msgspec.json.decode(event.data) for event in await slots.events(job_id) if event.type == "note"]
    assert [[event["k"] for event in notes if event["thread"] == n] for n in range(4)] == [list(range(100))] * 4
