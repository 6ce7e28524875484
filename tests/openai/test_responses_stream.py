"""The history of a job as a response: the same numbered events on every replay, whatever happened to its attempts."""

from __future__ import annotations

import itertools
import json
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobd.config.model import Config, ModelConfig
from jobd.job.history import Cursor, Event
from jobd.openai.responses_request import Remembered, read_request, remembered_in, response_call
from jobd.openai.responses_stream import NumberedEvent, ResponseReader
from tests.support.responses import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable

JOB_ID = uuid.UUID("01890000-0000-7000-8000-000000000000")
CONFIG = Config(models={"small": ModelConfig(task="chat")})
LAST = {"response.completed", "response.incomplete", "response.failed"}


def payload_of(body: dict[str, Any]) -> dict[str, Any]:
    request = read_request({"input": "Hello", **body}, CONFIG)
    return response_call(request, CONFIG).payload


def reader_of(**body: Any) -> ResponseReader:
    payload = payload_of({"background": True, **body})
    about = remembered_in(payload)
    assert isinstance(about, Remembered)
    return ResponseReader(JOB_ID, payload, about)


def event(cursor: tuple[int, int], kind: str, **data: Any) -> Event:
    return Event(Cursor(*cursor), kind, 1_700_000_000_000 + cursor[0] * 1000, "", msgspec.Raw(json.dumps(data)))


def token(text: str) -> tuple[str, dict[str, Any]]:
    return "token", {"text": text}


def call(index: int, arguments: str, name: str = "", call_id: str = "") -> tuple[str, dict[str, Any]]:
    return "tool_call", {"index": index, "id": call_id, "name": name, "arguments": arguments}


def history(attempts: Iterable[Iterable[tuple[str, dict[str, Any]]]], last: str, **data: Any) -> list[Event]:
    """Queued, and for each attempt its start, what it emitted, and how it ended: all but the last are cut."""
    found = [event((0, 1), "queued")]
    for number, emitted in enumerate(attempts, 1):
        if number > 1:
            found += [event((number - 1, 1000), "gap"), event((number - 1, 1001), "queued")]
        found.append(event((number, 0), "running"))
        found += [event((number, n), kind, **given) for n, (kind, given) in enumerate(emitted, 1)]
    attempt = found[-1].cursor.attempt
    return [*found, event((attempt, 1001), last, **data)]


def read_all(reader: ResponseReader, events: Iterable[Event], result: Any = None) -> list[NumberedEvent]:
    return [numbered for each in events for numbered in reader.read(each, result)]


def result_of(emitted: Iterable[tuple[str, dict[str, Any]]], **more: Any) -> dict[str, Any]:
    texts = {"token": "", "reasoning": ""}
    calls: dict[int, dict[str, Any]] = {}
    for kind, data in emitted:
        if kind == "tool_call":
            made = calls.setdefault(data["index"], {**data, "arguments": ""})
            made["arguments"] += data["arguments"]
        else:
            texts[kind] += data["text"]
    made_calls = [
        {"id": each["id"], "type": "function", "function": {"name": each["name"], "arguments": each["arguments"]}}
        for each in calls.values()
    ]
    return {"text": texts["token"], "reasoning": texts["reasoning"], "tool_calls": made_calls, **more}


TEXTS = st.text("ab\n€", min_size=1, max_size=5)
EMITTED = st.lists(
    st.one_of(
        TEXTS.map(token),
        TEXTS.map(lambda text: ("reasoning", {"text": text})),
        st.tuples(st.integers(0, 1), TEXTS).map(lambda drawn: call(*drawn, "f", f"call_{drawn[0]}")),
        st.just(("progress", {"percent": 1})),
    ),
    max_size=10,
)
ATTEMPTS = st.lists(EMITTED, min_size=1, max_size=3)
ENDS = st.sampled_from(["done", "error", "canceled"])


@given(ATTEMPTS, ENDS, st.sampled_from(["stop", "length"]), st.integers(-1, 40))
def test_every_replay_is_the_same_and_one_from_any_number_is_its_suffix(
    attempts: list[Any], last: str, reason: str, after: int
) -> None:
    events = history(attempts, last)
    told = [each for each in attempts[-1] if each[0] in ("token", "reasoning", "tool_call")]
    result = result_of(told, finish_reason=reason)

    once = read_all(reader_of(), events, result)
    # As followed live, one event at a time by a reader that came when half was there.
    late = reader_of()
    half = len(events) // 2
    again = read_all(late, events[:half], result)
    again += [numbered for each in events[half:] for numbered in late.read(each, result)]

    assert once == again
    assert [numbered.number for numbered in once] == list(range(len(once)))
    assert [numbered for numbered in again if numbered.number > after] == once[after + 1 :]
    assert once[0].type == "response.created" and once[1].type == "response.queued"
    assert once[-1].type in LAST and not any(numbered.type in LAST for numbered in once[:-1])
    assert once[-1].data["response"] == late.as_json()


@given(ATTEMPTS, ENDS)
def test_items_follow_from_their_events_and_are_those_of_the_object(attempts: list[Any], last: str) -> None:
    told = [each for each in attempts[-1] if each[0] in ("token", "reasoning", "tool_call")]
    reader = reader_of()
    client = Reader()

    for numbered in read_all(reader, history(attempts, last), result_of(told)):
        if "response" not in numbered.data:
            client.take(numbered.type, numbered.data)

    assert client.items == reader.as_json()["output"]
    assert not client.open


@given(st.text(min_size=1, max_size=30), st.data())
def test_text_is_the_joined_deltas_however_they_were_split(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=6)))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges) if a < b]

    events = read_all(reader_of(), history([[token(piece) for piece in pieces]], "done"), {"text": text})

    deltas = [numbered.data["delta"] for numbered in events if numbered.type == "response.output_text.delta"]
    assert "".join(deltas) == text
    assert events[-1].data["response"]["output"][0]["content"][0]["text"] == text


def test_tokens_that_were_dropped_come_from_the_result() -> None:
    emitted = [token("Hel"), ("dropped", {"count": 2}), token("!")]

    events = read_all(reader_of(), history([emitted], "done"), {"text": "Hello you!"})

    deltas = [numbered.data["delta"] for numbered in events if numbered.type == "response.output_text.delta"]
    assert deltas == ["Hel", "lo you!"]


def test_an_answer_in_order() -> None:
    emitted = [("reasoning", {"text": "Hm."}), token("Hi"), call(0, "{", "f", "c1"), call(0, "}")]

    events = read_all(reader_of(), history([emitted], "done"), result_of(emitted))

    assert [numbered.type.removeprefix("response.") for numbered in events] == [
        *("created", "queued", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]


@pytest.mark.parametrize(
    ("last", "result", "status", "kind"),
    [
        ("done", {"text": "a"}, "completed", "response.completed"),
        ("done", {"text": "a", "finish_reason": "length"}, "incomplete", "response.incomplete"),
        ("done", {"text": "a", "finish_reason": "content_filter"}, "incomplete", "response.incomplete"),
        ("done", "a", "completed", "response.completed"),
        ("error", None, "failed", "response.failed"),
        ("canceled", None, "cancelled", "response.incomplete"),
    ],
)
def test_the_end_of_a_job_is_a_status(last: str, result: Any, status: str, kind: str) -> None:
    reader = reader_of()

    events = read_all(reader, history([[token("a")]], last), result)

    assert (events[-1].type, events[-1].data["response"]["status"]) == (kind, status)
    assert reader.is_over
    assert reader.as_json()["output"][0]["content"][0]["text"] == "a"


@pytest.mark.parametrize(
    ("code", "shown"),
    [("upstream_busy", "rate_limit_exceeded"), ("upstream_refused", "invalid_prompt"), ("timeout", "server_error")],
)
def test_the_error_of_a_job_has_a_code_of_responses_and_keeps_its_own_in_the_message(code: str, shown: str) -> None:
    reader = reader_of()

    read_all(reader, history([[]], "error", error={"code": code, "message": "no luck"}))

    assert reader.as_json()["error"] == {"code": shown, "message": f"{code}: no luck"}


def test_usage_has_the_names_of_responses() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    reader = reader_of()

    read_all(reader, history([[token("a")]], "done"), {"text": "a", "usage": usage})

    assert reader.as_json()["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }


@given(ATTEMPTS, ENDS)
def test_of_a_response_that_nobody_reads_as_it_comes_only_the_last_attempt_is_told(
    attempts: list[Any], last: str
) -> None:
    told = [each for each in attempts[-1] if each[0] in ("token", "reasoning", "tool_call")]
    reader = reader_of(background=False)
    events = history(attempts, last)

    before = read_all(reader, events[:-1])
    rest = reader.read(events[-1], result_of(told))

    assert [numbered.type for numbered in before] == ["response.created", "response.queued", "response.in_progress"]
    alone = read_all(reader_of(background=False), history([attempts[-1]], last), result_of(told))
    assert [numbered.type for numbered in [*before, *rest]] == [numbered.type for numbered in alone]
    assert reader.as_json()["output"] == alone[-1].data["response"]["output"]


def test_the_answer_continues_its_conversation_without_what_was_left_behind_or_cut() -> None:
    reader = reader_of()
    first = [token("Good m")]
    second = [("reasoning", {"text": "Hm."}), token("Hi"), call(0, "{}", "f", "c1"), call(1, '{"a', "g", "c2")]

    read_all(reader, history([first, second], "done"), result_of(second, finish_reason="length"))

    function = {"name": "f", "arguments": "{}"}
    calls = [{"id": "c1", "type": "function", "function": function}]
    message = {"role": "assistant", "content": "Hi", "tool_calls": calls, "reasoning_content": "Hm."}
    assert reader.messages() == [message]
