"""The body of `POST /v1/responses` as the payload of a job: that of a chat, and beside it what a chat does not have.

The messages of the payload are the whole conversation, so a response stands alone once its job is made: what became of
an earlier response, or that it was deleted, changes nothing. Of `instructions` only those of this response count, as
OpenAI has it. Fields that are not known go through to the server, as those of a chat do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta

from jobd.openai.chat_request import chat_call
from jobd.openai.envelope import ENVELOPE, fields_in
from jobd.openai.errors import InvalidCall
from jobd.openai.fields import check_type, checked_fields, model_in
from jobd.openai.responses_items import MAX_MESSAGES, check_calls, messages_of, too_long

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.config.model import Config
    from jobd.openai.fields import ModelCall

#: Ids of responses begin with it; the id of the job follows, without hyphens.
ID_PREFIX = "resp_"
#: The key of the envelope for what is remembered of a response beside its chat.
REMEMBERED = "response"
#: Between the instructions and a system message that follows, which become one: many servers allow one only.
BETWEEN_SYSTEM_TEXTS = "\n\n"

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class ReasoningField(msgspec.Struct, frozen=True):
    effort: Annotated[str, Meta(max_length=32)] | None = None
    summary: str | None = None


class TextFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextField(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class FunctionTool(msgspec.Struct, frozen=True):
    type: str
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(msgspec.Struct, frozen=True):
    type: Literal["function"]
    name: _Text


RESPONSE_FIELDS: dict[str, Any] = {
    "model": _Text | None,
    "input": str | Annotated[list[dict[str, Any]], Meta(min_length=1)],
    "instructions": str | None,
    "previous_response_id": str | None,
    "stream": bool | None,
    "stream_options": dict[str, Any] | None,
    "store": bool | None,
    "background": bool | None,
    "max_output_tokens": Annotated[int, Meta(ge=1)] | None,
    "max_tool_calls": Annotated[int, Meta(ge=1)] | None,
    "temperature": Annotated[float, Meta(ge=0, le=2)] | None,
    "top_p": Annotated[float, Meta(ge=0, le=1)] | None,
    "top_logprobs": Annotated[int, Meta(ge=0, le=20)] | None,
    "tools": list[dict[str, Any]] | None,
    "tool_choice": str | dict[str, Any] | None,
    "parallel_tool_calls": bool | None,
    "text": TextField | None,
    "reasoning": ReasoningField | None,
    "truncation": Literal["auto", "disabled"] | None,
    "include": list[str] | None,
    "metadata": _Metadata | None,
    "user": str | None,
}
#: Fields that would change the answer and that are not built, each with what to do instead.
REFUSED = {
    "messages": "is for /v1/chat/completions; send input",
    "response_format": "is for /v1/chat/completions; send text.format",
    "conversation": "is not supported; send previous_response_id",
    "prompt": "is not supported; send input and instructions",
    "context_management": "is not supported; send fewer items",
}
#: Passed on to the server under the same name, if they were sent.
_SAME_NAME = ("model", "temperature", "top_p", "user")


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the payload of a response's job holds beside the chat, under its key of the envelope."""

    #: Id of the model, as the configuration has it.
    model: str
    #: Number of messages before those of this response's own input, without its instructions.
    own_from: int = 0
    instructions: str | None = None
    #: The instructions stand in one message with the first of the conversation.
    is_joined: bool = False
    previous_response_id: str | None = None
    metadata: dict[str, str] = {}
    #: False: nobody but the call that made it may see it.
    store: bool = True
    background: bool = False
    stream: bool = False
    reasoning: ReasoningField = ReasoningField()
    verbosity: str | None = None
    max_tool_calls: int | None = None


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A body whose fields are good, before anything was looked up."""

    #: Body of the chat, without its messages.
    chat: dict[str, Any]
    #: Messages of the input.
    messages: list[dict[str, Any]]
    remembered: Remembered
    previous_id: UUID | None


def response_id(job_id: UUID) -> str:
    return f"{ID_PREFIX}{job_id.hex}"


def job_id_of(text: str) -> UUID | None:
    """The job of a response; None: this is the id of none."""
    digits = text.removeprefix(ID_PREFIX)
    if len(text) != len(ID_PREFIX) + 32 or len(digits) != 32 or digits.strip("0123456789abcdef"):
        return None
    return UUID(digits)


def read_request(body: object, config: Config) -> ResponseRequest:
    """Raises InvalidCall or ModelNotFound."""
    fields = checked_fields(body, RESPONSE_FIELDS)
    model = model_in(fields, config)
    _check_refused(fields)
    if "input" not in fields:
        raise InvalidCall("input", "input is missing: text, or a list of items")
    remembered = Remembered(
        model=model.id,
        instructions=fields.get("instructions") or None,
        previous_response_id=fields.get("previous_response_id"),
        metadata=fields.get("metadata") or {},
        store=fields.get("store") is not False,
        background=bool(fields.get("background")),
        stream=bool(fields.get("stream")),
        reasoning=msgspec.convert(fields.get("reasoning") or {}, ReasoningField),
        verbosity=(fields.get("text") or {}).get("verbosity"),
        max_tool_calls=fields.get("max_tool_calls"),
    )
    if remembered.background and not remembered.store:
        raise InvalidCall("store", "store must be true with background = true: else nobody could read the answer")
    return ResponseRequest(
        chat=_chat_fields(fields),
        messages=messages_of(fields["input"]),
        remembered=remembered,
        previous_id=_previous_id(remembered.previous_response_id),
    )


def response_call(request: ResponseRequest, config: Config, context: Sequence[Mapping[str, Any]] = ()) -> ModelCall:
    """The call with the conversation before it; raises InvalidCall or ModelNotFound."""
    conversation = [*context, *request.messages]
    if len(conversation) > MAX_MESSAGES:
        raise too_long(len(conversation))
    check_calls(conversation)
    messages, is_joined = _instructed(request.remembered.instructions, conversation)
    about = msgspec.structs.replace(request.remembered, own_from=len(context), is_joined=is_joined)
    # What a background response emits can be read as it comes, like a stream.
    chat = {**request.chat, "messages": messages, "stream": about.stream or about.background}
    return chat_call(chat, config, more={REMEMBERED: msgspec.to_builtins(about)})


def remembered_in(payload: Mapping[str, Any]) -> Remembered | None:
    """None: the job is no response."""
    envelope = payload.get(ENVELOPE)
    found = envelope.get(REMEMBERED) if isinstance(envelope, dict) else None
    try:
        return None if found is None else msgspec.convert(found, Remembered)
    except msgspec.ValidationError:
        return None


def conversation_in(payload: Mapping[str, Any], about: Remembered) -> list[dict[str, Any]]:
    """The messages of a response's payload without its instructions."""
    messages: list[dict[str, Any]] = fields_in(payload)["messages"]
    if about.instructions is None:
        return messages
    first, *others = messages
    if not about.is_joined:
        return others
    text = first["content"][len(about.instructions) + len(BETWEEN_SYSTEM_TEXTS) :]
    return [{**first, "content": text}, *others]


def _instructed(
    instructions: str | None, conversation: list[Mapping[str, Any]]
) -> tuple[list[Mapping[str, Any]], bool]:
    if instructions is None:
        return conversation, False
    first, *others = conversation
    if first["role"] == "system" and isinstance(first["content"], str):
        text = f"{instructions}{BETWEEN_SYSTEM_TEXTS}{first['content']}"
        return [{"role": "system", "content": text}, *others], True
    return [{"role": "system", "content": instructions}, *conversation], False


def _previous_id(text: str | None) -> UUID | None:
    if text is None:
        return None
    found = job_id_of(text)
    if found is None:
        raise previous_not_found(text)
    return found


def previous_not_found(text: str) -> InvalidCall:
    message = f"there is no response {text[:64]!r} to continue; send its items in input instead"
    return InvalidCall("previous_response_id", message, "previous_response_not_found")


def _check_refused(fields: Mapping[str, Any]) -> None:
    for name, why in REFUSED.items():
        if fields.get(name) is not None:
            raise InvalidCall(name, f"{name} {why}", "unsupported_parameter")
    if fields.get("truncation") == "auto":
        raise InvalidCall("truncation", "truncation must be disabled: items are never left out", "unsupported_value")
    if fields.get("top_logprobs"):
        raise InvalidCall("top_logprobs", "top_logprobs must be 0: no logprobs are kept", "unsupported_value")


def _chat_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    known = RESPONSE_FIELDS.keys() | REFUSED.keys()
    chat = {name: value for name, value in fields.items() if name not in known}
    chat.update({name: fields[name] for name in _SAME_NAME if fields.get(name) is not None})
    if fields.get("max_output_tokens") is not None:
        chat["max_tokens"] = fields["max_output_tokens"]
    if fields.get("tools"):
        chat["tools"] = [_chat_tool(n, tool) for n, tool in enumerate(fields["tools"])]
        if fields.get("parallel_tool_calls") is not None:
            chat["parallel_tool_calls"] = fields["parallel_tool_calls"]
    if fields.get("tool_choice") is not None:
        chat["tool_choice"] = _chat_choice(fields["tool_choice"], chat.get("tools", []))
    if (effort := (fields.get("reasoning") or {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if form := (fields.get("text") or {}).get("format"):
        chat.update(_chat_format(form))
    return chat


def _chat_tool(n: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        shown = f'"{kind[:40]}"' if isinstance(kind, str) else "nothing"
        message = f"tools[{n}].type must be function (got {shown}): no other tools are built"
        raise InvalidCall("tools", message, "unsupported_value")
    try:
        check_type(f"tools[{n}]", tool, FunctionTool)
    except InvalidCall as error:
        raise InvalidCall("tools", error.message, error.error_code) from None
    kept = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in kept if tool.get(name) is not None}}


def _chat_choice(choice: str | dict[str, Any], tools: Sequence[Mapping[str, Any]]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            message = f'tool_choice must be none, auto, required or a function (got "{choice[:40]}")'
            raise InvalidCall("tool_choice", message, "invalid_value")
        return choice
    check_type("tool_choice", choice, FunctionChoice)
    if choice["name"] not in {tool["function"]["name"] for tool in tools}:
        raise InvalidCall("tool_choice", f"tool_choice names {choice['name'][:64]}, which is not in tools")
    return {"type": "function", "function": {"name": choice["name"]}}


def _chat_format(form: Mapping[str, Any]) -> dict[str, Any]:
    kind = form.get("type", "text")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": kind}}
    for name in ("name", "schema"):
        if form.get(name) is None:
            raise InvalidCall("text", f"text.format.{name} is missing: a JSON schema has a name and a schema")
    kept = ("name", "schema", "strict", "description")
    return {"response_format": {"type": kind, kind: {name: form[name] for name in kept if form.get(name) is not None}}}
