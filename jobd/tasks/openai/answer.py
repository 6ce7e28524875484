"""The answer of a model server: what comes on the wire, and what becomes of it. Pure, but for the clock.

A streamed answer comes as chunks, each with a `delta`; one that is not streamed has the same shape with a whole
`message` in its place. Fields that servers add are ignored. Tool calls come in pieces too: the name first, then the
text of the arguments, by `index`; some servers give every call the same index and a new id.

Text is kept free of U+0000, which Postgres cannot store.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from jobd.tasks.runner import TaskFailed

#: Largest answer in characters, far above what a result may have: bounds the memory of an endless answer.
MAX_ANSWER_CHARS = 16 * 1024 * 1024


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


class _Call:
    def __init__(self, index: int | None) -> None:
        self.index = index
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

    def add(self, chunk: CompletionChunk) -> str:
        """The text that is new with it."""
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        if choice.finish_reason:
            self._finish_reason = choice.finish_reason
            self.is_whole = True
        return self._take(choice.delta or choice.message or Delta())

    def _take(self, delta: Delta) -> str:
        text, reasoning = _clean(delta.content), _clean(delta.reasoning_content or delta.reasoning)
        calls = delta.tool_calls or []
        if text or reasoning or calls:
            self._count(len(text) + len(reasoning))
        if text:
            self._text.append(text)
        if reasoning:
            self._reasoning.append(reasoning)
        for call in calls:
            self._take_call(call)
        return text

    def _take_call(self, delta: CallDelta) -> None:
        call = next((call for call in reversed(self._calls) if call.index == delta.index), None)
        if call is None or (delta.id and call.id and delta.id != call.id):
            call = _Call(delta.index)
            self._calls.append(call)
        function = delta.function or FunctionDelta()
        call.id = call.id or _clean(delta.id)
        call.name = call.name or _clean(function.name)
        call.arguments.append(_clean(function.arguments))
        self._grow(len(call.arguments[-1]) + 1)

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
        tokens = self._tokens()
        return {
            "text": "".join(self._text),
            "model": _clean(self._model),
            "finish_reason": self._finish_reason,
            **({"reasoning": "".join(self._reasoning)} if self._reasoning else {}),
            **({"tool_calls": [call.as_json() for call in self._calls]} if self._calls else {}),
            **({"usage": self._usage} if self._usage else {}),
            "tokens": tokens,
            "time_to_first_token_s": round(self._first_at - self._asked_at, 4) if self._pieces else None,
            "tokens_per_s": self._rate(tokens),
        }

    def _tokens(self) -> int:
        count = (self._usage or {}).get("completion_tokens")
        return count if isinstance(count, int) and count >= 0 else self._pieces

    def _rate(self, tokens: int) -> float | None:
        """Of those after the first, whose time is mostly that of the prompt; None when they came at once."""
        took = self._last_at - self._first_at
        return round((tokens - 1) / took, 2) if tokens > 1 and took > 0 else None


def vectors(answer: Embeddings, count: int, model: str) -> dict[str, Any]:
    """One for each text, in the order that they were sent in."""
    found = [each.embedding for each in sorted(answer.data, key=lambda each: each.index)]
    lengths = {len(vector) for vector in found}
    if len(found) != count or len(lengths) != 1 or 0 in lengths:
        sizes = f"{len(found)} vectors of {', '.join(map(str, sorted(lengths))) or 'no'} numbers"
        raise TaskFailed("upstream_error", f"the server answered {count} texts with {sizes}")
    return {
        "embeddings": found,
        "model": _clean(answer.model or model),
        "dimensions": lengths.pop(),
        **({"usage": answer.usage} if answer.usage else {}),
    }


def _clean(text: str | None) -> str:
    return (text or "").replace("\0", "\N{REPLACEMENT CHARACTER}")
