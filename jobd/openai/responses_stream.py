"""The history of a job as the response it is: its events with their sequence numbers, and the object at any time. Pure.

    0               response.created
    1               response.queued
    2               response.in_progress, when the first attempt begins
    ...             what `responses_output` makes of each delta
    last            response.completed, response.incomplete (stopped by a limit or a filter, or canceled: the status of
                    the response says which) or response.failed

Numbers follow from the stored events alone, so every reader gets the same ones, whenever it reads.

Of a response that is neither a stream nor in the background only the last attempt is sent, and all of it at the end:
its caller waits for the whole, and is not to get what an attempt said that failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import msgspec

from jobd.job.history import START, Cursor, made
from jobd.openai.answer import answer_of
from jobd.openai.chat_answer import created_s
from jobd.openai.deltas import DeltaReader, ReasoningDelta, TextDelta, ToolCallDelta
from jobd.openai.envelope import fields_in
from jobd.openai.responses_items import messages_of
from jobd.openai.responses_output import OutputPiece, ResponseOutput, StreamEvent
from jobd.openai.responses_request import Remembered, remembered_in, response_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from jobd.job.history import Event
    from jobd.openai.deltas import Delta

ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]

#: Why an answer ended, as chats say it, where it is not whole; and the word of responses.
CUT_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
#: Codes of errors in a response object are few and fixed; any other error of a job is `server_error`.
ERROR_CODES = {
    "invalid_payload": "invalid_prompt",
    "upstream_refused": "invalid_prompt",
    "upstream_busy": "rate_limit_exceeded",
}
_decode_data = msgspec.json.Decoder(dict[str, Any]).decode


class NumberedEvent(NamedTuple):
    number: int
    type: str
    data: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"type": self.type, "sequence_number": self.number, **self.data}


class ResponseReader:
    """Reads the events of one response's job, in order and each once."""

    def __init__(self, job_id: UUID, payload: Mapping[str, Any], about: Remembered) -> None:
        self.about = about
        self.status: ResponseStatus = "queued"
        self._job_id = job_id
        self._fields = fields_in(payload)
        self._deltas = DeltaReader()
        self._output = ResponseOutput(job_id.hex)
        self._is_told_at_once = about.stream or about.background
        #: What the current attempt has said, if it is sent at the end.
        self._held: list[OutputPiece] = []
        self._next = 0
        #: Seconds since 1970.
        self._created_at = 0
        self._completed_at: int | None = None
        self._cut_reason: str | None = None
        self._error: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        return self.status not in ("queued", "in_progress")

    def read(self, event: Event, result: Any = None) -> list[NumberedEvent]:
        """What the event adds to the stream; `result`: of the job, decoded, for its event `done`."""
        return [self._numbered(found) for found in self._read(event, result)]

    def _read(self, event: Event, result: Any) -> Iterator[StreamEvent]:
        delta = self._deltas.read(event)
        if isinstance(delta, TextDelta | ReasoningDelta | ToolCallDelta):
            if self._is_told_at_once:
                yield from self._output.add(_piece(delta))
            else:
                self._held.append(_piece(delta))
        elif event.type == "queued" and not self._next:
            self._created_at = event.ts // 1000
            yield self._about_all("created")
            yield self._about_all("queued")
        elif event.type == "running":
            self._output.begin()
            self._held = []
            if self.status == "queued":
                self.status = "in_progress"
                yield self._about_all("in_progress")
        elif event.type == "done":
            yield from self._complete(event, result)
        elif event.type in ("error", "canceled"):
            yield from self._abandon(event)

    def _complete(self, event: Event, result: Any) -> Iterator[StreamEvent]:
        for piece in (*self._held, *map(_piece, self._deltas.rest(result))):
            yield from self._output.add(piece)
        answer = answer_of(result)
        self._cut_reason = CUT_REASONS.get(answer.finish_reason)
        yield from self._output.complete(is_cut=self._cut_reason is not None)
        self._usage = _usage(answer.counts)
        self._completed_at = event.ts // 1000
        self.status = "incomplete" if self._cut_reason else "completed"
        yield self._about_all(self.status)

    def _abandon(self, event: Event) -> Iterator[StreamEvent]:
        yield from self._output.abandon()
        if event.type == "canceled":
            self.status = "cancelled"
            yield self._about_all("incomplete")
            return
        error = _decode_data(event.data).get("error")
        found = error if isinstance(error, dict) else {}
        code = str(found.get("code") or "job_failed")
        message = str(found.get("message") or "the job failed")
        self._error = {"code": ERROR_CODES.get(code, "server_error"), "message": f"{code}: {message}"}
        self.status = "failed"
        yield self._about_all("failed")

    def _numbered(self, event: StreamEvent) -> NumberedEvent:
        number = self._next
        self._next += 1
        return NumberedEvent(number, event.type, event.data)

    def _about_all(self, what: str) -> StreamEvent:
        return StreamEvent(f"response.{what}", {"response": self.as_json()})

    def messages(self) -> list[dict[str, Any]]:
        """The answer as messages that continue its conversation; calls whose arguments were cut are left out."""
        items = [item for item in self._output.thread if item.kind != "call" or item.status == "completed"]
        return messages_of([item.as_json() for item in items])

    def as_json(self) -> dict[str, Any]:
        """The response object as it stands."""
        about, fields = self.about, self._fields
        return {
            "id": response_id(self._job_id),
            "object": "response",
            "created_at": self._created_at,
            "completed_at": self._completed_at,
            "status": self.status,
            "background": about.background,
            "error": self._error,
            "incomplete_details": {"reason": self._cut_reason} if self._cut_reason else None,
            "instructions": about.instructions,
            "max_output_tokens": fields.get("max_tokens"),
            "max_tool_calls": about.max_tool_calls,
            "model": about.model,
            "output": self._output.as_json(),
            "parallel_tool_calls": fields.get("parallel_tool_calls", True),
            "previous_response_id": about.previous_response_id,
            "reasoning": {"effort": fields.get("reasoning_effort"), "summary": about.reasoning.summary},
            "service_tier": "default",
            "store": about.store,
            "temperature": fields.get("temperature", 1.0),
            "text": {"format": _format(fields.get("response_format")), "verbosity": about.verbosity or "medium"},
            "tool_choice": _choice(fields.get("tool_choice")),
            "tools": [_tool(tool["function"]) for tool in fields.get("tools", ())],
            "top_logprobs": 0,
            "top_p": fields.get("top_p", 1.0),
            "presence_penalty": fields.get("presence_penalty", 0.0),
            "frequency_penalty": fields.get("frequency_penalty", 0.0),
            "truncation": "disabled",
            "usage": self._usage,
            "user": fields.get("user"),
            "safety_identifier": None,
            "prompt_cache_key": None,
            "metadata": about.metadata,
        }


def whole_response(job_id: UUID, payload: Mapping[str, Any], result: Any, ended_ms: int) -> dict[str, Any]:
    """The object of a response that nobody read along; its job is done with this result. Milliseconds since 1970."""
    about = remembered_in(payload)
    assert about is not None, "the payload is that of a response"
    reader = ResponseReader(job_id, payload, about)
    reader.read(made("queued", START, created_s(job_id) * 1000))
    reader.read(made("running", Cursor(1, 0), ended_ms))
    reader.read(made("done", Cursor(1, 1), ended_ms), result)
    return reader.as_json()


def _piece(delta: Delta) -> OutputPiece:
    if isinstance(delta, TextDelta):
        return OutputPiece("text", delta.text)
    if isinstance(delta, ReasoningDelta):
        return OutputPiece("reasoning", delta.text)
    return OutputPiece("call", delta.arguments, delta.call, delta.id, delta.name)


def _usage(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": _detail(counts, "prompt_tokens_details", "cached_tokens"),
            "cache_write_tokens": 0,
        },
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": _detail(counts, "completion_tokens_details", "reasoning_tokens")},
        "total_tokens": counts["total_tokens"],
    }


def _detail(counts: Mapping[str, Any], group: str, name: str) -> int:
    details = counts.get(group)
    value = details.get(name) if isinstance(details, dict) else None
    return value if isinstance(value, int) else 0


def _format(asked: Mapping[str, Any] | None) -> dict[str, Any]:
    kind = (asked or {}).get("type", "text")
    return {"type": kind, **(asked or {}).get(kind, {})}


def _choice(asked: str | Mapping[str, Any] | None) -> str | dict[str, Any]:
    if isinstance(asked, str):
        return asked
    return {"type": "function", "name": asked["function"]["name"]} if asked else "auto"


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
        "strict": function.get("strict", False),
    }
