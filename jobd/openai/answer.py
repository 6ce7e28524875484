"""The result of a model's job, whoever made it: `run = "openai"`, a handler that returns the same, or just text."""

from __future__ import annotations

from typing import Any

import msgspec


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    arguments: str


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    #: stop, length, tool_calls or content_filter.
    finish_reason: str = "stop"
    #: As the server sent it.
    usage: dict[str, Any] | None = None

    @property
    def counts(self) -> dict[str, Any]:
        """The usage with the three numbers that clients read; 0 for what nobody counted."""
        usage = self.usage or {}
        prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        total = _count(usage, "total_tokens") or prompt + completion
        return {**usage, "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def answer_of(result: Any) -> ModelAnswer:
    """The result of a job that is done, decoded."""
    if isinstance(result, str):
        return ModelAnswer(text=result)
    if not isinstance(result, dict):
        return ModelAnswer(text="" if result is None else msgspec.json.encode(result).decode())
    calls = tuple(_call(call) for call in _list(result.get("tool_calls")) if isinstance(call, dict))
    reason = result.get("finish_reason")
    usage = result.get("usage")
    if usage is None and isinstance(tokens := result.get("tokens"), int):
        usage = {"prompt_tokens": 0, "completion_tokens": tokens, "total_tokens": tokens}
    return ModelAnswer(
        text=_text(result.get("text")),
        reasoning=_text(result.get("reasoning")),
        tool_calls=calls,
        finish_reason=reason if isinstance(reason, str) and reason else "tool_calls" if calls else "stop",
        usage=usage if isinstance(usage, dict) else None,
    )


def _call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    return ToolCall(
        id=_text(call.get("id")), name=_text(function.get("name")), arguments=_text(function.get("arguments"))
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
