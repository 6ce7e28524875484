"""Answers of `/v1/chat/completions`: the whole object, or the chunks of a stream, of which all have the same id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jobd.openai.deltas import ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.openai.answer import ModelAnswer
    from jobd.openai.deltas import Delta


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    #: `chatcmpl-` and the id of the job without dashes.
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    #: Seconds since 1970.
    created: int
    model: str
    #: One.
    choices: list[dict[str, Any]]
    usage: dict[str, Any]
    system_fingerprint: None = None


def chat_id(job_id: UUID) -> str:
    return f"chatcmpl-{job_id.hex}"


def created_s(job_id: UUID) -> int:
    """Seconds since 1970 at which the job was made, as its id says (UUIDv7): the same whenever it is asked for."""
    return (job_id.int >> 80) // 1000


def chat_completion(job_id: UUID, model: str, answer: ModelAnswer) -> ChatCompletion:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.tool_calls
    ]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text if answer.text or not calls else None,
        "refusal": None,
        **({"reasoning_content": answer.reasoning} if answer.reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason, "logprobs": None}
    return ChatCompletion(
        id=chat_id(job_id), created=created_s(job_id), model=model, choices=[choice], usage=answer.counts
    )


class ChatChunks:
    """The chunks of one stream, each as the JSON of an event."""

    def __init__(self, job_id: UUID, model: str, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        head = {
            "id": chat_id(job_id),
            "object": "chat.completion.chunk",
            "created": created_s(job_id),
            "model": model,
            "system_fingerprint": None,
        }
        #: What all chunks begin with, as JSON that is still open.
        self._head = msgspec.json.encode(head)[:-1]

    def first(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def of(self, delta: Delta) -> bytes:
        if isinstance(delta, TextDelta):
            return self._chunk({"content": delta.text})
        if isinstance(delta, ReasoningDelta):
            return self._chunk({"reasoning_content": delta.text})
        function: dict[str, str] = {"arguments": delta.arguments}
        call: dict[str, Any] = {"index": delta.call}
        if delta.id or delta.name:
            call |= {"id": delta.id, "type": "function"}
            function = {"name": delta.name, **function}
        return self._chunk({"tool_calls": [{**call, "function": function}]})

    def last(self, answer: ModelAnswer) -> list[bytes]:
        ends = [self._chunk({}, answer.finish_reason)]
        if self._include_usage:
            ends.append(self._head + b',"choices":[],"usage":' + msgspec.json.encode(answer.counts) + b"}")
        return ends

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        usage = b',"usage":null}' if self._include_usage else b"}"
        return self._head + b',"choices":[' + msgspec.json.encode(choice) + b"]" + usage
