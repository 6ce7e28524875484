"""The body of `POST /v1/chat/completions` as the payload of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from jobd.openai.envelope import enveloped
from jobd.openai.errors import InvalidCall
from jobd.openai.fields import ModelCall, check_one_answer, check_type, checked_fields, fields_for, model_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.config.model import Config

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Number: TypeAlias = float | None
_Whole: TypeAlias = int | None
_Object: TypeAlias = dict[str, Any] | None

#: Fields that every kind of call to a text model may have, with their types.
COMMON_FIELDS: dict[str, Any] = {
    "model": _Text | None,
    "stream": bool | None,
    "stream_options": _Object,
    "n": _Whole,
    "max_tokens": _Whole,
    "temperature": _Number,
    "top_p": _Number,
    "stop": str | list[str] | None,
    "seed": _Whole,
    "presence_penalty": _Number,
    "frequency_penalty": _Number,
    "logit_bias": dict[str, float] | None,
    "user": str | None,
}
CHAT_FIELDS: dict[str, Any] = {
    **COMMON_FIELDS,
    "messages": Annotated[list[dict[str, Any]], Meta(min_length=1)],
    "max_completion_tokens": _Whole,
    "logprobs": bool | None,
    "top_logprobs": _Whole,
    "response_format": _Object,
    "tools": list[dict[str, Any]] | None,
    "tool_choice": str | dict[str, Any] | None,
    "parallel_tool_calls": bool | None,
    "reasoning_effort": str | None,
    "metadata": dict[str, str] | None,
    "modalities": list[str] | None,
}
_MESSAGE_FIELDS: dict[str, Any] = {
    "role": _Text,
    "content": str | list[dict[str, Any]] | None,
    "name": str | None,
    "tool_call_id": str | None,
    "tool_calls": list[dict[str, Any]] | None,
}
#: Left out of the payload: they say how the answer is sent, which is not the server's business.
_NOT_PASSED_ON = frozenset({"stream", "stream_options", "n", "modalities", "verbosity"})


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


def chat_call(body: object, config: Config, *, more: Mapping[str, Any] | None = None) -> ModelCall:
    """Raises InvalidCall or ModelNotFound. `more` is kept in the envelope of the job."""
    fields = checked_fields(body, CHAT_FIELDS)
    model = model_in(fields, config)
    if "messages" not in fields:
        raise InvalidCall("messages", "messages is missing: a list of at least one message")
    check_messages(fields["messages"])
    check_one_answer(fields, "n")
    if fields.get("modalities") not in (None, ["text"]):
        raise InvalidCall("modalities", 'modalities must be ["text"]: no other are made here', "unsupported_value")
    is_stream, include_usage = stream_in(fields)
    payload = enveloped(fields_for(model, fields, _NOT_PASSED_ON), "chat/completions", told_once=is_stream, more=more)
    return ModelCall(model, payload, is_stream, include_usage)


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Each has a role, and content that is text or a list of parts with a type; the rest differs between servers."""
    for n, message in enumerate(messages):
        if "role" not in message:
            raise InvalidCall("messages", f"messages[{n}].role is missing: system, user, assistant or tool")
        for name, type_ in _MESSAGE_FIELDS.items():
            if name in message:
                _check_within(f"[{n}].{name}", message[name], type_)
        content = message.get("content")
        for at, part in enumerate(content if isinstance(content, list) else ()):
            _check_part(f"[{n}].content[{at}]", part)


def _check_part(place: str, part: dict[str, Any]) -> None:
    if not isinstance(part.get("type"), str):
        raise InvalidCall("messages", f"messages{place}.type is missing: text, image_url or another kind of part")
    if part["type"] == "text":
        _check_within(f"{place}.text", part.get("text"), str)
    if part["type"] == "image_url":
        image = part.get("image_url")
        _check_within(f"{place}.image_url.url", image.get("url") if isinstance(image, dict) else image, _Text)


def _check_within(place: str, value: object, type_: Any) -> None:
    try:
        check_type(f"messages{place}", value, type_)
    except InvalidCall as error:
        raise InvalidCall("messages", error.message, error.error_code) from None


def stream_in(fields: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether its usage is asked for."""
    is_stream = bool(fields.get("stream"))
    options = fields.get("stream_options")
    if options is None:
        return is_stream, False
    if not is_stream:
        raise InvalidCall("stream_options", "stream_options is only for stream = true")
    check_type("stream_options", options, _StreamOptions)
    return is_stream, bool(options.get("include_usage"))
