"""Events and result of a job as a stream of deltas. Pure: the same events and result give the same deltas, always.

A model's job emits three types of events, whose texts add up to its answer:

    token       {"text"}                            the answer
    reasoning   {"text"}                            what the model thinks before it answers
    tool_call   {"index", "id", "name", "arguments"}  a piece of the tool call with that index, from 0; id and name are
                                                    in its first piece, and empty afterwards

- Where events were dropped (a full disk, `limits.job_events_mb`) or lost (a killed worker), deltas stop. What is
  missing is taken from the result when the job is done, so that deltas always add up to the answer. A handler that
  emits nothing is streamed in the same way: all of its answer comes at the end.
- An attempt that is made after another had emitted deltas tells its own story from the beginning. `Restarted` says so;
  deltas after it belong to the new attempt alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from jobd.openai.answer import answer_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from jobd.job.history import Event

TOKEN, REASONING, TOOL_CALL = "token", "reasoning", "tool_call"
#: Event types whose texts add up to an answer.
DELTA_TYPES = frozenset({TOKEN, REASONING, TOOL_CALL})
#: Event types that stand for others which are lost.
_HOLES = frozenset({"gap", "dropped"})


class TextDelta(NamedTuple):
    text: str


class ReasoningDelta(NamedTuple):
    text: str


class ToolCallDelta(NamedTuple):
    #: Number of the call, from 0.
    call: int
    #: Of the first piece of a call; empty afterwards.
    id: str
    name: str
    arguments: str


class Restarted(NamedTuple):
    """Another attempt has begun after deltas of an earlier one: what was read so far is void."""

    attempt: int


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta


class _DeltaData(msgspec.Struct, frozen=True):
    """Handlers of users emit such events, too: what is missing or of another type counts as empty."""

    text: str = ""
    index: int = 0
    id: str = ""
    name: str = ""
    arguments: str = ""


_decode = msgspec.json.Decoder(_DeltaData).decode


class _ToldCall:
    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.arguments: list[str] = []


class DeltaReader:
    """Reads the events of one job, in order and each once, and then its result."""

    def __init__(self) -> None:
        #: The attempt whose deltas are read; 0: none has begun.
        self.attempt = 0
        #: Whether this attempt had deltas.
        self.has_told = False
        self._begin(0)

    def _begin(self, attempt: int) -> None:
        self.attempt = attempt
        self.has_told = False
        self._has_hole = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _ToldCall] = {}

    def read(self, event: Event) -> Delta | Restarted | None:
        """The delta that the event is; None: it is none, or comes after a hole."""
        if event.cursor.attempt > self.attempt:
            had_told = self.has_told
            self._begin(event.cursor.attempt)
            if had_told:  # the event is `running`, with which every attempt begins
                return Restarted(event.cursor.attempt)
        if event.type in DELTA_TYPES and not self._has_hole:
            return self._take(event.type, event.data)
        if event.type in _HOLES:
            self._has_hole = True
        return None

    def rest(self, result: Any) -> Iterator[Delta]:
        """What the result of the job has beyond the deltas so far."""
        answer = answer_of(result)
        if reasoning := _beyond(answer.reasoning, self._reasoning):
            yield self._emit(ReasoningDelta(reasoning), self._reasoning)
        if text := _beyond(answer.text, self._text):
            yield self._emit(TextDelta(text), self._text)
        for index, call in enumerate(answer.tool_calls):
            emitted = self._calls.get(index)
            if emitted is None:
                yield self._tell_call(ToolCallDelta(index, call.id, call.name, call.arguments))
            elif arguments := _beyond(call.arguments, emitted.arguments):
                yield self._tell_call(ToolCallDelta(index, "", "", arguments))

    def _take(self, kind: str, data: msgspec.Raw) -> Delta | None:
        try:
            piece = _decode(data)
        except msgspec.DecodeError:
            return None
        if kind == TOOL_CALL:
            known = piece.index in self._calls
            return self._tell_call(
                ToolCallDelta(piece.index, "" if known else piece.id, "" if known else piece.name, piece.arguments)
            )
        if not piece.text:
            return None
        if kind == REASONING:
            return self._emit(ReasoningDelta(piece.text), self._reasoning)
        return self._emit(TextDelta(piece.text), self._text)

    def _emit(self, delta: TextDelta | ReasoningDelta, emitted: list[str]) -> Delta:
        self.has_told = True
        emitted.append(delta.text)
        return delta

    def _tell_call(self, delta: ToolCallDelta) -> Delta:
        self.has_told = True
        call = self._calls.setdefault(delta.call, _ToldCall(delta.id, delta.name))
        call.arguments.append(delta.arguments)
        return delta


def _beyond(whole: str, emitted: list[str]) -> str:
    """What follows in `whole` on what was emitted; nothing if that is something else, as a handler may do."""
    begun = "".join(emitted)
    return whole[len(begun) :] if whole.startswith(begun) else ""
