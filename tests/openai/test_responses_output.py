"""Output items of a response: whatever attempts say, in whatever pieces, readers get a legal stream of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from jobd.openai.responses_output import OutputPiece, ResponseOutput
from tests.support.responses import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobd.openai.responses_output import StreamEvent

HEX = "0" * 32


def told(output: ResponseOutput, pieces: Iterable[OutputPiece]) -> list[StreamEvent]:
    output.begin()
    return [event for piece in pieces for event in output.add(piece)]


def read(events: Iterable[StreamEvent]) -> Reader:
    reader = Reader()
    for event in events:
        reader.take(event.type, event.data)
    return reader


def split(pieces: Sequence[OutputPiece], size: int) -> list[OutputPiece]:
    """The same, in pieces of `size` characters; the first piece of a call has its id and name."""
    found = []
    for piece in pieces:
        texts = [piece.text[at : at + size] for at in range(0, len(piece.text), size)] or [""]
        found.append(piece._replace(text=texts[0]))
        found += [OutputPiece(piece.kind, text, piece.call) for text in texts[1:]]
    return found


TEXTS = st.text("ab ", max_size=6)
PIECES = st.one_of(
    TEXTS.map(lambda text: OutputPiece("text", text)),
    TEXTS.map(lambda text: OutputPiece("reasoning", text)),
    st.tuples(TEXTS, st.integers(0, 2), st.sampled_from(["", "c1", "c2"])).map(
        lambda drawn: OutputPiece("call", *drawn, "f")
    ),
)
ATTEMPTS = st.lists(st.lists(PIECES, max_size=8), min_size=1, max_size=4)


def said_by(pieces: Iterable[OutputPiece]) -> dict[tuple[str, int], str]:
    """All that an attempt said, by kind and call."""
    said: dict[tuple[str, int], str] = {}
    for piece in pieces:
        key = piece.kind, piece.call
        said[key] = said.get(key, "") + piece.text
    return {key: text for key, text in said.items() if text or key[0] == "call"}


def in_thread(output: ResponseOutput, numbers: dict[str, int]) -> dict[tuple[str, int], str]:
    said: dict[tuple[str, int], str] = {}
    for item in output.thread:
        key = item.kind, numbers.get(item.id, 0)
        said[key] = said.get(key, "") + item.text
    return {key: text for key, text in said.items() if text or key[0] == "call"}


@given(ATTEMPTS, st.booleans())
def test_any_attempts_in_any_pieces_are_a_legal_stream_whose_last_thread_is_the_last_attempt(
    attempts: list[list[OutputPiece]], is_cut: bool
) -> None:
    output = ResponseOutput(HEX)

    events = [event for pieces in attempts for event in told(output, pieces)]
    events += output.complete(is_cut=is_cut)

    reader = read(events)
    assert not reader.open, "items were left open"
    assert reader.items == output.as_json()
    assert [item["id"] for item in reader.items] == list(dict.fromkeys(item["id"] for item in reader.items))
    calls: list[int] = []
    for piece in attempts[-1]:
        if piece.kind == "call" and piece.call not in calls:
            calls.append(piece.call)
    numbers = dict(zip([item.id for item in output.thread if item.kind == "call"], calls, strict=True))
    assert in_thread(output, numbers) == said_by(attempts[-1])


@given(ATTEMPTS)
def test_an_abandoned_output_keeps_what_was_told(attempts: list[list[OutputPiece]]) -> None:
    output = ResponseOutput(HEX)
    events = [event for pieces in attempts for event in told(output, pieces)]
    before = read(events)

    after = read([*events, *output.abandon()])

    assert not after.open
    assert [_text(item) for item in after.items] == [_text(item) for item in before.items]


@given(st.lists(PIECES, min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 5), st.data())
def test_an_attempt_that_says_the_same_again_continues_the_stream(
    pieces: list[OutputPiece], size: int, other_size: int, data: st.DataObject
) -> None:
    whole = split(pieces, size)
    cut = data.draw(st.integers(0, len(whole)))
    uninterrupted = ResponseOutput(HEX)
    once = read([*told(uninterrupted, whole), *uninterrupted.complete()])
    output = ResponseOutput(HEX)

    events = [*told(output, whole[:cut]), *told(output, split(pieces, other_size)), *output.complete()]

    assert read(events).items == once.items
    assert len(output.thread) == len(output.items)


def _text(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


def test_an_attempt_that_says_something_else_gets_new_items_behind_those_of_the_one_that_was_cut() -> None:
    output = ResponseOutput(HEX)

    events = told(output, [OutputPiece("text", "Hello"), OutputPiece("text", " wor")])
    events += told(output, [OutputPiece("text", "Hel"), OutputPiece("text", "p!")])
    events += output.complete()

    found = [(item["status"], _text(item)) for item in read(events).items]
    assert found == [("incomplete", "Hello wor"), ("completed", "Help!")]


def test_an_attempt_that_says_less_gets_new_items() -> None:
    output = ResponseOutput(HEX)

    events = [
        *told(output, [OutputPiece("text", "Hello")]),
        *told(output, [OutputPiece("text", "Hell")]),
        *output.complete(),
    ]

    assert [_text(item) for item in read(events).items] == ["Hello", "Hell"]


def test_calls_of_two_attempts_with_one_id_get_different_ones() -> None:
    output = ResponseOutput(HEX)

    told(output, [OutputPiece("call", '{"a": 1', 0, "call_0", "f")])
    told(output, [OutputPiece("call", '{"b": 2}', 0, "call_0", "g")])
    list(output.complete())

    assert [item.call_id for item in output.items] == ["call_0", "call_0_1"]


def test_an_answer_without_anything_is_an_empty_message() -> None:
    output = ResponseOutput(HEX)

    reader = read(output.complete())

    assert [(item["type"], _text(item)) for item in reader.items] == [("message", "")]


def test_a_call_that_was_cut_has_no_whole_arguments() -> None:
    output = ResponseOutput(HEX)

    events = [*told(output, [OutputPiece("call", '{"a": ', 0, "c", "f")]), *output.complete(is_cut=True)]

    assert "response.function_call_arguments.done" not in [event.type for event in events]
    assert [item["status"] for item in read(events).items] == ["incomplete"]
