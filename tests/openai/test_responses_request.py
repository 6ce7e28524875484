"""The body of a response as the payload of a job, and items as messages and back."""

from __future__ import annotations

from typing import Any

import pytest

from jobd.config.model import Config, ModelConfig
from jobd.openai.errors import OpenAIError
from jobd.openai.responses_items import MAX_MESSAGES, items_of, messages_of
from jobd.openai.responses_request import (
    conversation_in,
    job_id_of,
    read_request,
    remembered_in,
    response_call,
)

CONFIG = Config(models={"small": ModelConfig(task="chat", defaults={"max_tokens": 64})})
HEX = "0189" + "0" * 28
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def payload_of(body: dict[str, Any], context: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return response_call(read_request({"input": "Hello", **body}, CONFIG), CONFIG, context or []).payload


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


#: Field and value, the `param` of the refusal, and a word of its message.
BAD: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": 1}, "model", "str"),
    ({"model": "large"}, "model", "there is no model large"),
    ({"input": 1}, "input", "input"),
    ({"input": []}, "input", "length"),
    ({"input": [1]}, "input", "object"),
    ({"input": [{"role": "robot", "content": "a"}]}, "input", "input[0].role must be user"),
    ({"input": [{"content": "a"}]}, "input", "input[0].role"),
    ({"input": [user(None)]}, "input", "input[0].content must be text"),
    ({"input": [user(["a"])]}, "input", "input[0].content[0] must be an object"),
    ({"input": [user([{"type": "input_audio"}])]}, "input", "input[0].content[0].type"),
    ({"input": [user([{"type": "input_text"}])]}, "input", "input[0].content[0].text must be text"),
    ({"input": [user([{"type": "input_image"}])]}, "input", "input[0].content[0].image_url"),
    ({"input": [user([{"type": "input_image", "file_id": "file-1"}])]}, "input", "file_id is not supported"),
    ({"input": [user([{"type": "input_image", "image_url": "data:", "detail": 1}])]}, "input", "detail"),
    ({"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "text"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", 'got "item_reference"'),
    ({"input": [{"type": ["message"]}]}, "input", "input[0].type"),
    ({"input": [{**CALL, "name": ""}]}, "input", "input[0].name must be text"),
    ({"input": [{**CALL, "arguments": {}}]}, "input", "input[0].arguments must be text (got dict)"),
    ({"input": [{**CALL, "call_id": None}]}, "input", "input[0].call_id"),
    ({"input": [{**OUTPUT, "output": 42}]}, "input", "input[0].output must be text"),
    ({"input": [OUTPUT]}, "input", "there is no function call c1 before its output"),
    ({"input": [OUTPUT, CALL]}, "input", "there is no function call c1"),
    ({"input": [{"type": "reasoning", "summary": "a"}]}, "input", "input[0].content must be text or a list"),
    ({"input": [user("a")] * (MAX_MESSAGES + 1)}, "input", f"limit is {MAX_MESSAGES}"),
    ({"instructions": ["a"]}, "instructions", "str"),
    ({"previous_response_id": 1}, "previous_response_id", "str"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "no response 'resp_1'"),
    ({"previous_response_id": "resp_" + "g" * 32}, "previous_response_id", "no response"),
    ({"stream": "yes"}, "stream", "bool"),
    ({"stream_options": 1}, "stream_options", "object"),
    ({"store": 1}, "store", "bool"),
    ({"background": "true"}, "background", "bool"),
    ({"background": True, "store": False}, "store", "store must be true with background"),
    ({"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
    ({"max_output_tokens": "9"}, "max_output_tokens", "int"),
    ({"max_tool_calls": 0}, "max_tool_calls", ">= 1"),
    ({"temperature": 2.5}, "temperature", "<= 2"),
    ({"temperature": "warm"}, "temperature", "float"),
    ({"top_p": -0.1}, "top_p", ">= 0"),
    ({"top_logprobs": 21}, "top_logprobs", "<= 20"),
    ({"top_logprobs": 2}, "top_logprobs", "no logprobs"),
    ({"tools": {}}, "tools", "array"),
    ({"tools": [{"type": "web_search"}]}, "tools", 'tools[0].type must be function (got "web_search")'),
    ({"tools": [{"name": "f"}]}, "tools", "got nothing"),
    ({"tools": [{"type": "function"}]}, "tools", "tools[0]: Object missing required field `name`"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools", "tools[0].name"),
    ({"tools": [{**TOOL, "parameters": "{}"}]}, "tools", "tools[0].parameters"),
    ({"tool_choice": "maybe"}, "tool_choice", 'got "maybe"'),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice", "not in tools"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "tool_choice"),
    ({"tool_choice": 1}, "tool_choice", "tool_choice"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "bool"),
    ({"text": "json"}, "text", "object"),
    ({"text": {"format": {"type": "xml"}}}, "text", "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text", "text.format.name is missing"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text", "text.format.schema is missing"),
    ({"text": {"verbosity": "loud"}}, "text", "text.verbosity"),
    ({"reasoning": "high"}, "reasoning", "object"),
    ({"reasoning": {"effort": 1}}, "reasoning", "reasoning.effort"),
    ({"truncation": "auto"}, "truncation", "must be disabled"),
    ({"truncation": "some"}, "truncation", "Invalid enum"),
    ({"include": "all"}, "include", "array"),
    ({"metadata": {"a": 1}}, "metadata", "str"),
    ({"metadata": {"a": "b" * 513}}, "metadata", "512"),
    ({"metadata": {"a" * 65: "b"}}, "metadata", "64"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "16"),
    ({"user": 1}, "user", "str"),
    ({"conversation": "conv_1"}, "conversation", "send previous_response_id"),
    ({"prompt": {"id": "p"}}, "prompt", "send input"),
    ({"messages": [user("a")]}, "messages", "send input"),
    ({"response_format": {"type": "json_object"}}, "response_format", "send text.format"),
    ({"context_management": []}, "context_management", "not supported"),
    ({"jobd": {}}, "jobd", "jobd's own"),
    ({"n": 2}, "n", "must be 1"),
]


@pytest.mark.parametrize(("fields", "param", "word"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], param: str | None, word: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        payload_of(fields)

    assert refused.value.param == param
    assert word in refused.value.message
    assert refused.value.status in (400, 404)


@pytest.mark.parametrize("body", [None, [], "a", 1])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(OpenAIError, match="must be a JSON object"):
        read_request(body, CONFIG)


def test_a_body_without_input_is_refused() -> None:
    with pytest.raises(OpenAIError, match="input is missing"):
        read_request({"model": "small"}, CONFIG)


def test_fields_become_those_of_a_chat() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}

    payload = payload_of(
        {
            "instructions": "Be brief.",
            "max_output_tokens": 9,
            "temperature": 0.5,
            "tools": [{**TOOL, "strict": True}],
            "tool_choice": {"type": "function", "name": "f"},
            "parallel_tool_calls": False,
            "text": {"format": schema, "verbosity": "low"},
            "reasoning": {"effort": "low"},
            "user": "u",
            "service_tier": "auto",
            "include": ["reasoning.encrypted_content"],
            "top_k": 40,
        }
    )

    payload.pop("jobd")
    assert payload == {
        "model": "small",
        "messages": [{"role": "system", "content": "Be brief."}, user("Hello")],
        "max_tokens": 9,
        "temperature": 0.5,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "reasoning_effort": "low",
        "user": "u",
        "top_k": 40,
    }


@pytest.mark.parametrize(
    ("fields", "told_once"),
    [({}, False), ({"stream": True}, True), ({"background": True}, True), ({"stream": False}, False)],
)
def test_what_can_be_read_as_it_comes_is_told_once(fields: dict[str, Any], told_once: bool) -> None:
    assert payload_of(fields)["jobd"].get("told_once", False) is told_once


def test_items_become_messages_and_are_the_same_items_again() -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be kind."},
        user(
            [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": "data:x", "detail": "low"}]
        ),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call."}]},
        CALL,
        {**CALL, "call_id": "c2"},
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "43"}]},
        user("And?"),
    ]

    messages = messages_of(items)

    function = {"name": "f", "arguments": "{}"}
    assert messages == [
        {"role": "system", "content": "Be kind."},
        user(
            [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}]
        ),
        {
            "role": "assistant",
            "content": "I call.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "content": "43"},
        user("And?"),
    ]
    again = items_of(messages, HEX)
    assert messages_of(again) == messages
    assert [item["type"] for item in again] == [
        *("message", "message", "reasoning", "message"),
        *("function_call", "function_call", "function_call_output", "function_call_output", "message"),
    ]
    assert len({item["id"] for item in again}) == len(again)


@pytest.mark.parametrize("instructions", [None, "Be brief."])
@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Be kind."}]])
def test_a_conversation_goes_on_without_the_instructions_before(
    instructions: str | None, system: list[dict[str, Any]]
) -> None:
    first = payload_of({"instructions": instructions, "input": [*system, user("Hello")]})
    about = remembered_in(first)
    assert about is not None
    context = [*conversation_in(first, about), {"role": "assistant", "content": "Hi"}]

    second = payload_of({"instructions": "Be long.", "input": "Go on"}, context)

    found = remembered_in(second)
    assert found is not None
    conversation = conversation_in(second, found)
    assert conversation == [*system, user("Hello"), {"role": "assistant", "content": "Hi"}, user("Go on")]
    assert conversation[found.own_from :] == [user("Go on")]
    leading = [message["role"] for message in second["messages"]]
    assert leading.count("system") == 1 and leading[0] == "system"
    assert second["messages"][0]["content"].startswith("Be long.")


@pytest.mark.parametrize(
    "text", ["", "resp_", HEX, f"resp_{HEX}0", f"resp_{HEX[:-1]}G", f"RESP_{HEX}", "resp_" + "-" * 32]
)
def test_what_is_no_id_of_a_response_is_none(text: str) -> None:
    assert job_id_of(text) is None


def test_an_id_of_a_response_is_that_of_its_job() -> None:
    found = job_id_of(f"resp_{HEX}")

    assert found is not None and found.hex == HEX
