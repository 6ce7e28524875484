"""Items of the responses interface as messages of a chat, and back. Pure.

    message                 a message; text parts alone become text, images stay parts
    function_call           a tool call of the assistant's message before it, or of one of its own
    function_call_output    a message with the role `tool`
    reasoning               `reasoning_content` of the message with the function call after it: models that think
                            between calls want it back; elsewhere it is left out, since some servers refuse it

The role `developer` becomes `system`, which every server knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobd.openai.errors import InvalidCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Most messages that one response may have before it, of its own and of earlier responses together: what a model reads
#: is far less, and every answer copies them.
MAX_MESSAGES = 2_000
ROLES = ("user", "assistant", "system", "developer")
#: Types of parts that are nothing but text.
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
ITEMS = "message, function_call, function_call_output and reasoning"


def messages_of(items: str | Sequence[Any]) -> list[dict[str, Any]]:
    """The messages of an input; raises InvalidCall with the place of what is wrong."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages = _Messages()
    for n, item in enumerate(items):
        messages.add(f"input[{n}]", item)
    if len(messages.found) > MAX_MESSAGES:
        raise too_long(len(messages.found))
    return messages.found


def too_long(count: int) -> InvalidCall:
    message = f"the conversation has {count} messages, the limit is {MAX_MESSAGES}; begin another, with a summary"
    return InvalidCall("input", message, "context_length_exceeded")


class _Messages:
    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        #: Of a reasoning item, for a function call that may follow in the same turn.
        self._thoughts = ""
        #: The last item was a part of the assistant's turn, so that a function call belongs to its message.
        self._is_in_turn = False

    def add(self, place: str, item: Any) -> None:
        if not isinstance(item, dict):
            raise _wrong(place, f"must be an object with a type: {ITEMS}")
        kind = item.get("type", "message")
        if kind == "message":
            self._add_message(place, item)
        elif kind == "function_call":
            self._add_call(place, item)
        elif kind == "function_call_output":
            self._add_output(place, item)
        elif kind == "reasoning":
            self._add_reasoning(place, item)
        else:
            raise _wrong(f"{place}.type", f"must be one of {ITEMS} (got {_shown(kind)})")

    def _add_message(self, place: str, item: Mapping[str, Any]) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise _wrong(f"{place}.role", f"must be {', '.join(ROLES[:-1])} or {ROLES[-1]} (got {_shown(role)})")
        content = _content(f"{place}.content", item.get("content"), role)
        self.found.append({"role": "system" if role == "developer" else role, "content": content})
        self._is_in_turn = role == "assistant"
        if not self._is_in_turn:
            self._thoughts = ""

    def _add_call(self, place: str, item: Mapping[str, Any]) -> None:
        function = {
            "name": _text_in(place, item, "name"),
            "arguments": _text_in(place, item, "arguments", may_be_empty=True),
        }
        call = {"id": _text_in(place, item, "call_id"), "type": "function", "function": function}
        if not self._is_in_turn:
            self.found.append({"role": "assistant", "content": None})
        message = self.found[-1]
        message.setdefault("tool_calls", []).append(call)
        if self._thoughts:
            message.setdefault("reasoning_content", self._thoughts)
        self._is_in_turn, self._thoughts = True, ""

    def _add_output(self, place: str, item: Mapping[str, Any]) -> None:
        content = _content(f"{place}.output", item.get("output"), "tool")
        self.found.append({"role": "tool", "tool_call_id": _text_in(place, item, "call_id"), "content": content})
        self._is_in_turn, self._thoughts = False, ""

    def _add_reasoning(self, place: str, item: Mapping[str, Any]) -> None:
        thoughts = item.get("content") or item.get("summary") or []
        parts = _parts(f"{place}.content", thoughts)
        self._thoughts = "".join(part["text"] for part in parts if part["type"] == "text")


def _content(place: str, content: Any, role: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    parts = _parts(place, content)
    if role == "assistant" or len(parts) == 1:
        texts = [part["text"] for part in parts if part["type"] == "text"]
        if len(texts) == len(parts):
            return "".join(texts)
        if role == "assistant":
            raise _wrong(place, "of the assistant must be text")
    return parts


def _parts(place: str, content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        raise _wrong(place, "must be text or a list of parts")
    return [_part(f"{place}[{n}]", part) for n, part in enumerate(content)]


def _part(place: str, part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise _wrong(place, "must be an object with a type: input_text or input_image")
    kind = part.get("type")
    if kind in TEXT_PARTS:
        return {"type": "text", "text": _text_in(place, part, "text", may_be_empty=True)}
    if kind == "refusal":
        return {"type": "text", "text": _text_in(place, part, "refusal", may_be_empty=True)}
    if kind == "input_image":
        if part.get("file_id") is not None:
            raise _wrong(f"{place}.file_id", "is not supported; send the image as image_url, with a data: URL")
        image = {"url": _text_in(place, part, "image_url")}
        detail = part.get("detail")
        if detail is not None:
            image["detail"] = _text_in(place, part, "detail")
        return {"type": "image_url", "image_url": image}
    raise _wrong(f"{place}.type", f"must be input_text, output_text, refusal or input_image (got {_shown(kind)})")


def _text_in(place: str, item: Mapping[str, Any], name: str, *, may_be_empty: bool = False) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise _wrong(f"{place}.{name}", f"must be text (got {_shown(value)})")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value[:40]}"'
    return "nothing" if value is None else type(value).__name__


def _wrong(place: str, fault: str) -> InvalidCall:
    return InvalidCall("input", f"{place} {fault}", "invalid_value")


def check_calls(messages: Sequence[Mapping[str, Any]]) -> None:
    """Every output of a function answers a call before it; raises InvalidCall."""
    called: set[str] = set()
    for message in messages:
        called.update(call["id"] for call in message.get("tool_calls", ()))
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            call_id = message["tool_call_id"][:64]
            raise InvalidCall(
                "input", f"there is no function call {call_id} before its output; send it, or previous_response_id"
            )


# -- back -------------------------------------------------------------------------------------------------------------


def items_of(messages: Sequence[Mapping[str, Any]], response_hex: str) -> list[dict[str, Any]]:
    """The messages as items of the input of this response."""
    found = [item for message in messages for item in _items_in(message)]
    return [{"id": f"{_id_prefix(item)}_{response_hex}_in{n}", **item} for n, item in enumerate(found)]


def _items_in(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    role, content = message["role"], message["content"]
    if role == "tool":
        output = content if isinstance(content, str) else _input_parts(content, "user")
        status = {"call_id": message["tool_call_id"], "status": "completed"}
        yield {"type": "function_call_output", "output": output, **status}
        return
    if thoughts := message.get("reasoning_content"):
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thoughts}]}
    if content is not None:
        yield {"type": "message", "role": role, "status": "completed", "content": _input_parts(content, role)}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], "status": "completed", **call["function"]}


def _input_parts(content: str | Sequence[Mapping[str, Any]], role: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if role == "assistant" else {}
    text_type = "output_text" if role == "assistant" else "input_text"
    return [
        {"type": text_type, "text": part["text"], **more}
        if part["type"] == "text"
        else {"type": "input_image", "detail": "auto", "file_id": None, **_image_of(part)}
        for part in content
    ]


def _image_of(part: Mapping[str, Any]) -> dict[str, Any]:
    image = part["image_url"]
    return {"image_url": image["url"], **({"detail": image["detail"]} if "detail" in image else {})}


def _id_prefix(item: Mapping[str, Any]) -> str:
    return {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}[item["type"]]
