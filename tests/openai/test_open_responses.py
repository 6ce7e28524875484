"""The cases by which Open Responses judges a server: what they send, and the shape that each answer must have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.openai.conftest import MODEL
from tests.openai.test_openai_python import TOOLS

if TYPE_CHECKING:
    from tests.support.http import Api
    from tests.tasks.openai_server import OpenAIServer

NUMBER = (int, float)
NONE = type(None)
#: Every field that a response object must have, with its types.
RESOURCE: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "object": (str,),
    "created_at": (int,),
    "completed_at": (int, NONE),
    "status": (str,),
    "incomplete_details": (dict, NONE),
    "model": (str,),
    "previous_response_id": (str, NONE),
    "instructions": (str, NONE),
    "output": (list,),
    "error": (dict, NONE),
    "tools": (list,),
    "tool_choice": (str, dict),
    "truncation": (str,),
    "parallel_tool_calls": (bool,),
    "text": (dict,),
    "top_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "top_logprobs": (int,),
    "temperature": NUMBER,
    "reasoning": (dict, NONE),
    "usage": (dict, NONE),
    "max_output_tokens": (int, NONE),
    "max_tool_calls": (int, NONE),
    "store": (bool,),
    "background": (bool,),
    "service_tier": (str,),
    "metadata": (dict,),
    "safety_identifier": (str, NONE),
    "prompt_cache_key": (str, NONE),
}
#: The fields that an item of each type must have.
ITEMS = {
    "message": {"type", "id", "status", "role", "content"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status"},
    "reasoning": {"type", "id", "summary"},
}
#: The fields that an event of each type must have, beside `type` and `sequence_number`.
OF_ITEM, OF_PART = {"output_index", "item"}, {"item_id", "output_index", "content_index"}
EVENTS = {
    **{kind: {"response"} for kind in ("created", "queued", "in_progress", "completed")},
    **dict.fromkeys(("output_item.added", "output_item.done"), OF_ITEM),
    **{kind: OF_PART | {"part"} for kind in ("content_part.added", "content_part.done")},
    "output_text.delta": OF_PART | {"delta", "logprobs"},
    "output_text.done": OF_PART | {"text", "logprobs"},
    "reasoning_text.delta": OF_PART | {"delta"},
    "reasoning_text.done": OF_PART | {"text"},
    "function_call_arguments.delta": {"item_id", "output_index", "delta"},
    "function_call_arguments.done": {"item_id", "output_index", "arguments"},
}
#: A red dot of one pixel.
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5Er"
    "kJggg=="
)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather at a place",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def check_resource(found: dict[str, Any]) -> None:
    for name, types in RESOURCE.items():
        assert name in found, f"{name} is missing"
        assert isinstance(found[name], types), f"{name} is {found[name]!r}"
    assert found["object"] == "response"
    assert found["truncation"] in ("auto", "disabled")
    assert found["text"]["format"]["type"] == "text"
    for item in found["output"]:
        assert item.keys() >= ITEMS[item["type"]]
        for part in item.get("content", ()):
            assert isinstance(part["text"], str)
            assert part["type"] != "output_text" or part.keys() >= {"annotations", "logprobs"}
    for tool in found["tools"]:
        assert tool.keys() >= {"type", "name", "description", "parameters", "strict"}
    if found["usage"] is not None:
        assert found["usage"]["input_tokens_details"].keys() >= {"cached_tokens"}
        assert found["usage"]["output_tokens_details"].keys() >= {"reasoning_tokens"}


CASES = {
    "basic": {"input": [message("user", "Say hello in three words.")]},
    "system prompt": {"input": [message("system", "Talk like a sailor."), message("user", "Say hello.")]},
    "tools": {"input": [message("user", "How is the weather in Bonn?")], "tools": [WEATHER]},
    "image": {
        "input": [
            message(
                "user",
                [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": IMAGE}],
            )
        ]
    },
    "multi-turn": {
        "input": [
            message("user", "My name is Ann."),
            message("assistant", "Hello Ann!"),
            message("user", "What is my name?"),
        ]
    },
}
#: What the model server gets of each.
MESSAGES: dict[str, list[Any]] = {
    "basic": [("user", "Say hello in three words.")],
    "system prompt": [("system", "Talk like a sailor."), ("user", "Say hello.")],
    "tools": [("user", "How is the weather in Bonn?")],
    "image": [
        ("user", [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": IMAGE}}])
    ],
    "multi-turn": [("user", "My name is Ann."), ("assistant", "Hello Ann!"), ("user", "What is my name?")],
}


def asked_of(model_server: OpenAIServer) -> list[Any]:
    return [(each["role"], each["content"]) for each in model_server.seen[-1]["body"]["messages"]]


@pytest.mark.parametrize("case", CASES)
def test_answered_at_once(api: Api, model_server: OpenAIServer, case: str) -> None:
    if case == "tools":
        model_server.script({"data": TOOLS})

    answer = api("POST", "/v1/responses", {"model": MODEL, **CASES[case]})

    assert answer.status == 200, answer
    check_resource(answer.json)
    assert answer.json["status"] == "completed"
    assert answer.json["output"]
    assert case != "tools" or "function_call" in [item["type"] for item in answer.json["output"]]
    assert asked_of(model_server) == MESSAGES[case]


@pytest.mark.parametrize("case", ["basic", "tools"])
def test_streamed(api: Api, model_server: OpenAIServer, case: str) -> None:
    if case == "tools":
        model_server.script({"data": TOOLS})

    text = api("POST", "/v1/responses", {"model": MODEL, "stream": True, **CASES[case]}).body.decode()

    kinds = []
    for block in text.removesuffix("\n\n").replace(": ping\n", "").split("\n\n"):
        first, second = block.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        kind = event["type"].removeprefix("response.")
        assert event.keys() >= EVENTS[kind] | {"sequence_number"}, event
        if "response" in event:
            check_resource(event["response"])
        kinds.append(kind)
    assert kinds[-1] == "completed"
    wanted = {"output_text.delta", "output_text.done"}
    if case == "tools":
        wanted = {"function_call_arguments.delta", "function_call_arguments.done"}
    assert wanted <= set(kinds)


def test_previous_response_id(api: Api, model_server: OpenAIServer) -> None:
    first = api("POST", "/v1/responses", {"model": MODEL, "input": "My name is Ann."}).json

    second = api(
        "POST", "/v1/responses", {"model": MODEL, "input": "What is my name?", "previous_response_id": first["id"]}
    ).json

    check_resource(second)
    assert second["previous_response_id"] == first["id"]
    said = first["output"][0]["content"][0]["text"]
    assert asked_of(model_server) == [
        ("user", "My name is Ann."),
        ("assistant", said),
        ("user", "What is my name?"),
    ]
