"""Deltas of a job's events and result: whatever was stored in whatever pieces, they add up to the answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.job.history import Cursor, Event, HandlerEvent
from jobd.openai.answer import answer_of
from jobd.openai.deltas import Delta, DeltaReader, ReasoningDelta, Restarted, TextDelta, ToolCallDelta
from jobd.tasks.event_join import MAX_JOINED_CHARS, joined

TEXT = st.text(max_size=12)
#: What a model emits: the type of an event and its data.
EMITTED = st.one_of(
    st.tuples(st.just("token"), st.builds(lambda text: {"text": text}, TEXT)),
    st.tuples(st.just("reasoning"), st.builds(lambda text: {"text": text}, TEXT)),
    st.tuples(st.just("log"), st.just({"line": "x", "level": "info"})),
    st.tuples(
        st.just("tool_call"),
        st.builds(lambda index, text: {"index": index, "arguments": text}, st.integers(0, 2), TEXT),
    ),
)


def event(attempt: int, n: int, kind: str, data: Any = None) -> Event:
    return Event(Cursor(attempt, n), kind, 0, "", msgspec.Raw(msgspec.json.encode(data or {})))


def history(emitted: list[tuple[str, Any]], attempt: int = 1) -> list[Event]:
    return [
        event(attempt, 0, "running"),
        *(event(attempt, n, kind, data) for n, (kind, data) in enumerate(emitted, 1)),
    ]


def read(events: list[Event], result: Any = None, reader: DeltaReader | None = None) -> list[Delta]:
    reader = reader or DeltaReader()
    found = [delta for delta in map(reader.read, events) if delta is not None]
    assert not any(isinstance(delta, Restarted) for delta in found)
    return [*found, *reader.rest(result)]  # type: ignore[list-item]


def added_up(deltas: list[Delta]) -> dict[str, Any]:
    calls: dict[int, str] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            calls[delta.call] = calls.get(delta.call, "") + delta.arguments
    return {
        "text": "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        "reasoning": "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "calls": calls,
    }


@given(st.lists(EMITTED, max_size=30), st.integers(0, 30))
def test_deltas_add_up_to_the_answer_also_when_events_are_lost(emitted: list[tuple[str, Any]], lost_at: int) -> None:
    whole = added_up(read(history(emitted)))
    calls = [
        {"id": f"c{index}", "function": {"name": "f", "arguments": whole["calls"].get(index, "")}}
        for index in range(max(whole["calls"], default=-1) + 1)
    ]
    result = {"text": whole["text"], "reasoning": whole["reasoning"], "tool_calls": calls}
    with_hole = [*emitted[:lost_at], ("dropped", {"count": 3}), *emitted[lost_at + 3 :]]

    for events in (history(emitted), history(with_hole), history([])):
        got = added_up(read(events, result))

        assert (got["text"], got["reasoning"]) == (whole["text"], whole["reasoning"])
        assert {index: text for index, text in got["calls"].items() if text} == {
            index: text for index, text in whole["calls"].items() if text
        }


@given(st.lists(EMITTED, max_size=200))
def test_joined_events_say_the_same(emitted: list[tuple[str, Any]]) -> None:
    events = [HandlerEvent(kind, 0, "", msgspec.Raw(msgspec.json.encode(data))) for kind, data in emitted]

    fewer = [(each.type, msgspec.json.decode(each.data)) for each in joined(events)]

    assert added_up(read(history(fewer))) == added_up(read(history(emitted)))
    assert [kind for kind, _ in fewer if kind == "log"] == [kind for kind, _ in emitted if kind == "log"]
    assert len(fewer) <= len(emitted)
    for (kind, data), (then, more) in pairwise(fewer):
        assert kind == "log" or kind != then or data.get("index") != more.get("index")


def test_joined_events_are_not_too_long_to_be_stored() -> None:
    tokens = [HandlerEvent("token", 0, "", msgspec.Raw(msgspec.json.encode({"text": "x" * 30}))) for _ in range(1000)]

    lengths = [len(msgspec.json.decode(each.data)["text"]) for each in joined(tokens)]

    assert sum(lengths) == 30_000
    assert max(lengths) <= MAX_JOINED_CHARS
    assert len(lengths) == 16


@given(st.lists(EMITTED, max_size=20))
def test_a_replay_gives_the_same_deltas(emitted: list[tuple[str, Any]]) -> None:
    assert read(history(emitted), {"text": "end"}) == read(history(emitted), {"text": "end"})


def test_name_and_id_are_in_the_first_piece_of_a_call_only() -> None:
    pieces = [("tool_call", {"index": 0, "id": "a", "name": "f", "arguments": text}) for text in ("", "{", "}")]

    assert read(history(pieces)) == [
        ToolCallDelta(0, "a", "f", ""),
        ToolCallDelta(0, "", "", "{"),
        ToolCallDelta(0, "", "", "}"),
    ]


def test_an_attempt_after_one_that_told_nothing_goes_on_silently() -> None:
    events = [*history([("log", {"line": "x"})], 1), event(1, 2, "gap"), event(1, 3, "queued")]

    assert read([*events, *history([("token", {"text": "hi"})], 2)], {"text": "hi!"}) == [
        TextDelta("hi"),
        TextDelta("!"),
    ]


def test_an_attempt_after_one_that_told_something_says_so_and_begins_anew() -> None:
    reader = DeltaReader()
    events = [*history([("token", {"text": "he"})], 1), event(1, 2, "queued")]
    again = history([("token", {"text": "other"})], 2)

    found = [reader.read(each) for each in (*events, *again)]

    assert [each for each in found if each is not None] == [TextDelta("he"), Restarted(2), TextDelta("other")]
    assert list(reader.rest({"text": "others"})) == [TextDelta("s")]


def test_what_a_handler_says_otherwise_in_its_result_is_not_added() -> None:
    assert read(history([("token", {"text": "live"})]), {"text": "summary"}) == [TextDelta("live")]


@pytest.mark.parametrize("data", [{"text": 3}, {"text": None}, [], "x", {"index": "a"}])
def test_foreign_data_is_no_delta(data: Any) -> None:
    assert read(history([("token", data), ("tool_call", {"index": "x"})])) == []


@pytest.mark.parametrize(
    ("result", "text"),
    [("plain", "plain"), (None, ""), ([1], "[1]"), ({"text": "t", "mock": True}, "t"), ({"other": 1}, ""), (3, "3")],
)
def test_any_result_is_an_answer(result: Any, text: str) -> None:
    answer = answer_of(result)

    assert answer.text == text
    assert answer.counts["total_tokens"] == 0
    assert answer.finish_reason == "stop"
