"""What a job asks of a model server: its payload, in any of the forms below, as the body of a request. Pure.

    {"messages": [{"role": "user", "content": "…"}, …]}             as OpenAI has it
    {"prompt": "…"} or {"text": "…"}                                one message of the user
    {"question": "…", "documents": ["…", {"title": "…", "text": "…"}]}
                                                                    one message: the documents, then the question
    {"input": "…"} or {"input": ["…", …]} or {"text": "…"}          for the task `embed`

    {"model": "…", "messages": […], …, "jobd": {"endpoint": …}}     a call of jobd's own OpenAI interface, which has
                                                                    checked it: all its fields are passed on

All but the first may have a `system` message of their own, in place of the task's. Every form may name a `model`; the
fields of `ModelSettings` are passed on as they are. Anything else is refused by name: a setting that is silently left
out would be believed. Values are checked for their type only, since what a model can do is for its server to say; but
that much is needed, because some servers answer 500 for a word where a number belongs, and a 500 is retried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from jobd.openai.envelope import ENVELOPE, envelope_in, fields_in
from jobd.tasks.runner import TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.config.model import Task
    from jobd.openai.envelope import ServerPath

#: Where the documents of a question go; each is numbered, so that an answer can say which it used.
GROUNDED = "Answer the question from these documents. If they do not hold the answer, say so."
#: Roles of messages that instruct the model.
SYSTEM_ROLES = frozenset({"system", "developer"})
#: Every answer is streamed. Without the option vLLM and OpenAI do not report how many tokens there were.
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

#: Characters of a validation error that are shown; it may quote a long field name.
MAX_MESSAGE_CHARS = 500

_T = TypeVar("_T")
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_MaybeText: TypeAlias = _Text | UnsetType
_Number: TypeAlias = float | UnsetType | None
_Whole: TypeAlias = int | UnsetType | None


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Passed on as they are. `n` is not among them, since a job has one answer, nor is `stream`: it always streams."""

    temperature: _Number = UNSET
    top_p: _Number = UNSET
    #: Of llama.cpp and vLLM.
    top_k: _Whole = UNSET
    min_p: _Number = UNSET
    max_tokens: _Whole = UNSET
    max_completion_tokens: _Whole = UNSET
    stop: str | list[str] | UnsetType | None = UNSET
    seed: _Whole = UNSET
    presence_penalty: _Number = UNSET
    frequency_penalty: _Number = UNSET
    #: Of llama.cpp, and the same of vLLM.
    repeat_penalty: _Number = UNSET
    repetition_penalty: _Number = UNSET
    logit_bias: dict[str, float] | UnsetType | None = UNSET
    response_format: dict[str, Any] | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    tool_choice: str | dict[str, Any] | UnsetType | None = UNSET
    parallel_tool_calls: bool | UnsetType | None = UNSET
    reasoning_effort: str | UnsetType | None = UNSET
    #: Of llama.cpp and vLLM: {"enable_thinking": false}
    chat_template_kwargs: dict[str, Any] | UnsetType | None = UNSET
    user: str | UnsetType | None = UNSET


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of it (content, name, tool_calls, …) differs between servers and goes through unread."""

    role: _Text


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What else a search gave along with it (an id, a score) is not shown to the model."""

    text: str
    title: str = ""


class ChatPayload(ModelSettings, frozen=True, kw_only=True):
    model: _MaybeText = UNSET
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | UnsetType = UNSET
    prompt: _MaybeText = UNSET
    text: _MaybeText = UNSET
    question: _MaybeText = UNSET
    documents: Annotated[list[str | Document], Meta(min_length=1)] | UnsetType = UNSET
    system: str | UnsetType = UNSET


class EmbedPayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: _MaybeText = UNSET
    input: _Text | Annotated[list[_Text], Meta(min_length=1)] | UnsetType = UNSET
    text: _MaybeText = UNSET
    #: Passed on: the length of each vector, where a model leaves the choice.
    dimensions: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    user: str | UnsetType = UNSET


def server_path(payload: Mapping[str, Any], *, is_embed: bool) -> ServerPath:
    """Where the server is asked: what the call says, or else what the task is for."""
    envelope = envelope_in(payload)
    if envelope is not None:
        return envelope.endpoint
    if ENVELOPE in payload:
        raise _invalid(f"payload.{ENVELOPE} is not what jobd's OpenAI interface writes there; leave it out")
    return "embeddings" if is_embed else "chat/completions"


def chat_body(payload: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Raises TaskFailed for a payload that asks for nothing, for two things, or for something unknown."""
    if ENVELOPE in payload:
        return {**_passed_on(payload, task), **STREAMED}
    asked = _read(payload, ChatPayload)
    form = _only_one(payload, ("messages", "prompt", "text", "question"))
    if form != "question" and "documents" in payload:
        raise _invalid("payload.documents is only for payload.question")
    if form == "messages" and "system" in payload:
        raise _invalid("payload.system does not go with payload.messages: make it the first of the messages")
    return {
        **{name: payload[name] for name in ModelSettings.__struct_fields__ if name in payload},
        **_model(asked.model, task),
        "messages": _messages(payload, form, asked, task),
        **STREAMED,
    }


def embed_body(payload: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """`input` is always a list, so that one vector comes back for each of it."""
    if ENVELOPE in payload:
        return _passed_on(payload, task)
    asked = _read(payload, EmbedPayload)
    wanted = payload[_only_one(payload, ("input", "text"))]
    return {
        **{name: payload[name] for name in ("dimensions", "user") if name in payload},
        **_model(asked.model, task),
        "input": [wanted] if isinstance(wanted, str) else wanted,
    }


def _passed_on(payload: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """A call as it came, with the task's model and system message where it has none."""
    fields = fields_in(payload)
    if task.model:
        fields.setdefault("model", task.model)
    messages = fields.get("messages")
    if task.system and isinstance(messages, list):
        fields["messages"] = _with_system(messages, task)
    return fields


def _with_system(messages: list[Mapping[str, Any]], task: Task) -> list[Mapping[str, Any]]:
    has_system = any(isinstance(message, dict) and message.get("role") in SYSTEM_ROLES for message in messages)
    return messages if has_system else [*_system_message(task.system), *messages]


def _read(payload: Mapping[str, Any], type_: type[_T]) -> _T:
    try:
        return msgspec.convert(payload, type_)
    except msgspec.ValidationError as error:
        fault, _, path = str(error).rpartition(" - at `$")
        raise _invalid(f"payload{path[:-1]}: {fault}" if fault else f"payload: {error}") from None


def _only_one(payload: Mapping[str, Any], forms: Sequence[str]) -> str:
    given = [form for form in forms if form in payload]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise _invalid(f"payload must have one of {', '.join(forms)} (got {got})")
    return given[0]


def _model(asked: str | UnsetType, task: Task) -> dict[str, str]:
    """Nothing when nobody names one: a server with a single model needs no name."""
    model = task.model if asked is UNSET else asked
    return {"model": model} if model else {}


def _messages(payload: Mapping[str, Any], form: str, asked: ChatPayload, task: Task) -> list[Mapping[str, Any]]:
    if form == "messages":
        return _with_system(list(payload["messages"]), task)
    content = _grounded(asked) if form == "question" else payload[form]
    system = task.system if asked.system is UNSET else asked.system
    return [*_system_message(system), {"role": "user", "content": content}]


def _system_message(text: str) -> list[Mapping[str, Any]]:
    return [{"role": "system", "content": text}] if text else []


def _grounded(asked: ChatPayload) -> str:
    """The instruction, each document as `[1] title` over its text, and the question last, nearest to the answer."""
    if asked.documents is UNSET:
        raise _invalid("payload.documents is missing: the question is to be answered from them")
    documents = [Document(text=each) if isinstance(each, str) else each for each in asked.documents]
    shown = (f"[{number}] {each.title}".rstrip() + f"\n{each.text}" for number, each in enumerate(documents, 1))
    return "\n\n".join([GROUNDED, *shown, f"Question: {asked.question}"])


def _invalid(message: str) -> TaskFailed:
    return TaskFailed("invalid_payload", message[:MAX_MESSAGE_CHARS], retryable=False)
