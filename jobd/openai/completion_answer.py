"""Answers of `/v1/completions`: the whole object, or the chunks of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jobd.openai.chat_answer import created_s
from jobd.openai.deltas import TextDelta

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.openai.answer import ModelAnswer
    from jobd.openai.deltas import Delta


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    #: `cmpl-` and the id of the job without dashes.
    id: str
    object: Literal["text_completion"] = "text_completion"
    #: Seconds since 1970.
    created: int
    model: str
    #: One.
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None


def text_completion(job_id: UUID, model: str, answer: ModelAnswer) -> TextCompletion:
    choice = {"index": 0, "text": answer.text, "finish_reason": answer.finish_reason, "logprobs": None}
    return TextCompletion(
        id=completion_id(job_id), created=created_s(job_id), model=model, choices=[choice], usage=answer.counts
    )


def completion_id(job_id: UUID) -> str:
    return f"cmpl-{job_id.hex}"


class CompletionChunks:
    """The chunks of one stream, each as the JSON of an event. Thoughts and tool calls have no place in them."""

    def __init__(self, job_id: UUID, model: str, *, include_usage: bool) -> None:
        self._id = completion_id(job_id)
        self._created = created_s(job_id)
        self._model = model
        self._include_usage = include_usage

    def first(self) -> list[bytes]:
        return []

    def of(self, delta: Delta) -> bytes | None:
        return self._chunk(delta.text) if isinstance(delta, TextDelta) else None

    def last(self, answer: ModelAnswer) -> list[bytes]:
        ends = [self._chunk("", answer.finish_reason)]
        if self._include_usage:
            ends.append(self._encoded([], answer.counts))
        return ends

    def _chunk(self, text: str, finish_reason: str | None = None) -> bytes:
        return self._encoded([{"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}], None)

    def _encoded(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        return msgspec.json.encode(
            TextCompletion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)
        )
