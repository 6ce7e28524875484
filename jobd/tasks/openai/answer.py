"""The answer of a model server: what comes on the wire, and what becomes of it. Pure, but for the clock.

A streamed answer comes as chunks, each with a `delta`; one that is not streamed has the same shape with a whole
`message` in its place, and the older interface without messages has `text`. Fields that servers add are ignored. Tool
calls come in pieces too: the name first, then the text of the arguments, by `index`; some servers give every call the
same index and a new id. What a chunk adds is handed on as pieces, which become events; see `jobd.openai.deltas`.

Text is kept free of U+0000, which Postgres cannot store.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from jobd.openai.deltas import REASONING, TOKEN, TOOL_CALL
from jobd.tasks.runner import TaskFailed

#: Largest answer in characters, far above what a result may have: bounds the memory of an endless answer.
MAX_ANSWER_CHARS = 16 * 1024 * 1024
#: Most characters of one event. Its data has at most 16 KB, and no character takes more than 6 bytes there.
MAX_PIECE_CHARS = 2000


class _Wire(msgspec.Struct, frozen=True, kw_only=True):
    """As a server sends it. Most of it may be missing or null."""


class FunctionDelta(_Wire, frozen=True, kw_only=True):
    name: str | None = None
    arguments: str | None = None


class CallDelta(_Wire, frozen=True, kw_only=True):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(_Wire, frozen=True, kw_only=True):
    content: str | None = None
    #: What the model thinks before it answers: llama.cpp and vLLM, and the same of Ollama.
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class Choice(_Wire, frozen=True, kw_only=True):
    delta: Delta | None = None
    message: Delta | None = None
    #: Of the older interface, /v1/completions.
    text: str | None = None
    finish_reason: str | None = None


class CompletionChunk(_Wire, frozen=True, kw_only=True):
    #: Empty in the last chunk, which carries the usage.
    choices: list[Choice] | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    #: Error of a server that had already answered 200.
    error: Any = None


class Embedding(_Wire, frozen=True, kw_only=True):
    embedding: list[float]
    index: int = 0


class Embeddings(_Wire, frozen=True, kw_only=True):
    data: list[Embedding]
    model: str | None = None
    usage: dict[str, Any] | None = None


class Piece(NamedTuple):
    """What a chunk adds to the answer, as an event of the job."""

    kind: str
    data: dict[str, Any]


class _Call:
    def __init__(self, index: int | None, number: int) -> None:
        self.index = index
        #: Its place among the calls of the answer.
        self.number = number
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def as_json(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class StreamedAnswer:
    """Joins chunks. The answer is whole after a finish reason or the end mark of the stream."""

    def __init__(self, model: str) -> None:
        self.is_whole = False
        self._model = model
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._chars = 0
        #: Number of chunks with content: used as the token count if the server sends none.
        self._pieces = 0
        self._asked_at = time.monotonic()
        self._first_at = self._last_at = 0.0

    def add(self, chunk: CompletionChunk) -> list[Piece]:
        """What is new with it."""
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return []
        choice = chunk.choices[0]
        if choice.finish_reason:
            self._finish_reason = choice.finish_reason
            self.is_whole = True
        return self._take(choice.delta or choice.message or Delta(content=choice.text))

    def _take(self, delta: Delta) -> list[Piece]:
        text, reasoning = _clean(delta.content), _clean(delta.reasoning_content or delta.reasoning)
        calls = delta.tool_calls or []
        if text or reasoning or calls:
            self._count(len(text) + len(reasoning))
        pieces: list[Piece] = []
        if reasoning:
            self._reasoning.append(reasoning)
            pieces += [Piece(REASONING, {"text": part}) for part in _parts(reasoning)]
        if text:
            self._text.append(text)
            pieces += [Piece(TOKEN, {"text": part}) for part in _parts(text)]
        for call in calls:
            pieces += self._take_call(call)
        return pieces

    def _take_call(self, delta: CallDelta) -> list[Piece]:
        call = next((call for call in reversed(self._calls) if call.index == delta.index), None)
        is_new = call is None or bool(delta.id and call.id and delta.id != call.id)
        if call is None or is_new:
            call = _Call(delta.index, len(self._calls))
            self._calls.append(call)
        function = delta.function or FunctionDelta()
        call.id = call.id or _clean(delta.id)
        call.name = call.name or _clean(function.name)
        arguments = _clean(function.arguments)
        call.arguments.append(arguments)
        self._grow(len(arguments) + 1)
        first = {"id": call.id[:MAX_PIECE_CHARS], "name": call.name[:MAX_PIECE_CHARS]} if is_new else {}
        pieces = [Piece(TOOL_CALL, {"index": call.number, "arguments": part}) for part in _parts(arguments)]
        if is_new:
            pieces.insert(0, Piece(TOOL_CALL, {"index": call.number, **first, "arguments": ""}))
        return pieces

    def _count(self, chars: int) -> None:
        self._last_at = time.monotonic()
        self._first_at = self._first_at or self._last_at
        self._pieces += 1
        self._grow(chars)

    def _grow(self, chars: int) -> None:
        self._chars += chars
        if self._chars > MAX_ANSWER_CHARS:
            message = f"the answer has more than {MAX_ANSWER_CHARS} characters; set max_tokens"
            raise TaskFailed("upstream_error", message, retryable=False)

    def result(self) -> dict[str, Any]:
        tokens, first_token_s = self.tokens, self.first_token_s
        return {
            "text": "".join(self._text),
            "model": _clean(self._model),
            "finish_reason": self._finish_reason,
            **({"reasoning": "".join(self._reasoning)} if self._reasoning else {}),
            **({"tool_calls": [call.as_json() for call in self._calls]} if self._calls else {}),
            **({"usage": self._usage} if self._usage else {}),
            "tokens": tokens,
            "time_to_first_token_s": None if first_token_s is None else round(first_token_s, 4),
            "tokens_per_s": self._rate(tokens),
        }

    @property
    def tokens(self) -> int:
        """Tokens that were generated so far."""
        count = (self._usage or {}).get("completion_tokens")
        return count if isinstance(count, int) and count >= 0 else self._pieces

    @property
    def first_token_s(self) -> float | None:
        """Seconds from the request to the first token; None: none has come."""
        return self._first_at - self._asked_at if self._pieces else None

    def _rate(self, tokens: int) -> float | None:
        """Of those after the first, whose time is mostly that of the prompt; None when they came at once."""
        took = self._last_at - self._first_at
        return round((tokens - 1) / took, 2) if tokens > 1 and took > 0 else None


def vectors(answer: Embeddings, count: int, model: str) -> dict[str, Any]:
    """One for each text, in the order that they were sent in."""
    embeddings = [each.embedding for each in sorted(answer.data, key=lambda each: each.index)]
    lengths = {len(vector) for vector in embeddings}
    if len(embeddings) != count or len(lengths) != 1 or 0 in lengths:
        sizes = f"{len(embeddings)} vectors of {', '.join(map(str, sorted(lengths))) or 'no'} numbers"
        raise TaskFailed("upstream_error", f"the server answered {count} texts with {sizes}")
    return {
        "embeddings": embeddings,
        "model": _clean(answer.model or model),
        "dimensions": lengths.pop(),
        **({"usage": answer.usage} if answer.usage else {}),
    }


def _parts(text: str) -> list[str]:
    return [text[at : at + MAX_PIECE_CHARS] for at in range(0, len(text), MAX_PIECE_CHARS)]


def _clean(text: str | None) -> str:
    return (text or "").replace("\0", "\N{REPLACEMENT CHARACTER}")
