"""OpenAI's own client, unchanged, against jobd and a model server of real wire format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.openai.conftest import MODEL, user
from tests.tasks.openai_server import TOKENS, chunk

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.support.http import Api
    from tests.tasks.openai_server import OpenAIServer

HELLO = "".join(TOKENS)
USAGE = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}


def said(finish_reason: str | None = None, **delta: Any) -> str:
    return chunk({}, [{"index": 0, "delta": delta, "finish_reason": finish_reason}])


def call(index: int, arguments: str, **first: str) -> dict[str, Any]:
    name = {"name": first.pop("name")} if "name" in first else {}
    return {"tool_calls": [{"index": index, **first, "function": {**name, "arguments": arguments}}]}


#: A model that thinks, speaks, and calls two functions in pieces.
TOOLS = [
    said(role="assistant", content=None),
    said(reasoning_content="Let me "),
    said(reasoning_content="see."),
    said(content="I look it up."),
    said(**call(0, "", id="call_a", type="function", name="weather")),
    said(**call(0, '{"city": ')),
    said(**call(0, '"Bonn"}')),
    said(**call(1, '{"at": 3}', id="call_b", type="function", name="clock")),
    said("tool_calls"),
    chunk({}, [], usage=USAGE),
    "[DONE]",
]


def test_chat(client: OpenAI, model_server: OpenAIServer) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=user("hi"), top_p=0.9, extra_body={"top_k": 7})

    assert answer.choices[0].message.content == HELLO
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.total_tokens == 11
    (request,) = model_server.seen
    assert request["path"] == "/v1/chat/completions"
    passed_on = {name: request["body"][name] for name in ("model", "temperature", "top_p", "top_k", "messages")}
    assert passed_on == {
        "model": MODEL,
        "temperature": 0.25,
        "top_p": 0.9,
        "top_k": 7,
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert "jobd" not in request["body"]


def test_chat_stream(client: OpenAI) -> None:
    with client.chat.completions.create(model=MODEL, messages=user("hi"), stream=True) as stream:
        chunks = list(stream)

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == HELLO
    assert [each.choices[0].finish_reason for each in chunks][-1] == "stop"
    assert len({(each.id, each.created, each.model) for each in chunks}) == 1
    assert all(each.choices for each in chunks), "the usage was not asked for"


def test_chat_stream_with_usage(client: OpenAI) -> None:
    options: Any = {"include_usage": True}
    *others, last = client.chat.completions.create(
        model=MODEL, messages=user("hi"), stream=True, stream_options=options
    )

    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (7, 4)
    assert all(each.usage is None for each in others)


def test_tool_calls_and_thoughts_as_a_stream_and_whole(client: OpenAI, model_server: OpenAIServer) -> None:
    model_server.script({"data": TOOLS, "times": 2})
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]

    whole = client.chat.completions.create(model=MODEL, messages=user("hi"), tools=tools).choices[0]
    with client.chat.completions.stream(model=MODEL, messages=user("hi"), tools=tools) as stream:
        streamed = stream.get_final_completion().choices[0]
    deltas = [
        each.choices[0].delta
        for each in client.chat.completions.create(
            model=MODEL, messages=user(json.dumps({"data": TOOLS})), tools=tools, stream=True
        )
    ]

    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look it up."
        assert choice.message.tool_calls is not None
        calls = [(each.id, each.function.name, each.function.arguments) for each in choice.message.tool_calls]  # type: ignore[union-attr]
        assert calls == [("call_a", "weather", '{"city": "Bonn"}'), ("call_b", "clock", '{"at": 3}')]
    assert whole.message.model_extra == {"reasoning_content": "Let me see."}
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == "Let me see."
    assert model_server.seen[0]["body"]["tools"] == tools


def test_answers_name_their_job(client: OpenAI, api: Api) -> None:
    whole = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=user("hi"),
        extra_headers={"x-jobd-labels": "team=search,note=a%2Cb", "x-jobd-priority": "7"},
    )
    streamed = client.chat.completions.with_raw_response.create(model="gpt-4o-mini", messages=user("hi"), stream=True)
    assert streamed.http_response.read()

    job = api("GET", f"/v1/jobs/{whole.headers['x-jobd-job-id']}").json
    assert job["status"] == "done"
    assert job["labels"] == {"team": "search", "note": "a,b"}
    assert job["priority"] == 7
    assert job["payload"]["messages"] == [{"role": "user", "content": "hi"}]
    assert whole.parse().id == "chatcmpl-" + job["job_id"].replace("-", "")
    assert api("GET", f"/v1/jobs/{streamed.headers['x-jobd-job-id']}").json["status"] == "done"


def test_embeddings(client: OpenAI, model_server: OpenAIServer) -> None:
    base64 = client.embeddings.create(model=MODEL, input=["one", "three"])  # the client asks for base64
    plain = client.embeddings.create(model=MODEL, input="four", encoding_format="float")
    tokens = client.embeddings.create(model=MODEL, input=[[1, 2, 3], [4]], encoding_format="float")
    one = client.embeddings.create(model=MODEL, input=[1, 2], encoding_format="float")

    assert [each.embedding for each in base64.data] == [[3.0, 0.0, 0.5], [5.0, 1.0, 0.5]]
    assert base64.usage.total_tokens == 3
    assert [each.embedding for each in plain.data] == [[4.0, 0.0, 0.5]]
    assert [each.embedding[0] for each in tokens.data] == [3.0, 1.0]
    assert [each.embedding[0] for each in one.data] == [2.0]
    assert [request["body"]["input"] for request in model_server.seen] == [
        ["one", "three"],
        "four",
        [[1, 2, 3], [4]],
        [1, 2],
    ]
    assert all("encoding_format" not in request["body"] for request in model_server.seen)


def test_completions(client: OpenAI, model_server: OpenAIServer) -> None:
    whole = client.completions.create(model=MODEL, prompt="Once", max_tokens=9)
    chunks = list(client.completions.create(model=MODEL, prompt="Once", stream=True))

    assert whole.choices[0].text == HELLO
    assert whole.usage is not None
    assert whole.usage.total_tokens == 11
    assert "".join(each.choices[0].text for each in chunks) == HELLO
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {request["path"] for request in model_server.seen} == {"/v1/completions"}
    assert model_server.seen[0]["body"]["max_tokens"] == 9


def test_models(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]

    assert names == [MODEL, "gpt-4o-mini", "made-up", "once", "silent", "tiny"]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("maker/large")
    assert caught.value.code == "model_not_found"
    assert MODEL in caught.value.message


def test_a_task_without_tokens_is_streamed_all_the_same(client: OpenAI) -> None:
    fast: Any = {"seconds": 0, "tokens": 3}
    whole = client.chat.completions.create(model="made-up", messages=user("hi"), extra_body=fast)
    chunks = list(client.chat.completions.create(model="made-up", messages=user("hi"), stream=True, extra_body=fast))

    assert whole.choices[0].message.content == "this answer is "
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == "this answer is "


# -- errors ----------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_openai(client: OpenAI, model_server: OpenAIServer) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=user("hi"))
    with pytest.raises(openai.BadRequestError) as two:
        client.chat.completions.create(model=MODEL, messages=user("hi"), n=2)
    model_server.script({"status": 400, "error": {"message": "too long"}})
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=user("hi"))
    model_server.script({"status": 400, "error": {"message": "too long"}})
    with pytest.raises(openai.BadRequestError) as refused_stream:
        client.chat.completions.create(model=MODEL, messages=user("hi"), stream=True)
    with pytest.raises(openai.InternalServerError) as down:
        client.chat.completions.create(model="silent", messages=user("hi"))

    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert (two.value.code, two.value.param, two.value.type) == ("unsupported_value", "n", "invalid_request_error")
    for error in (refused, refused_stream):
        assert error.value.code == "upstream_refused"
        assert "too long" in error.value.message
    assert (down.value.status_code, down.value.code) == (502, "upstream_unreachable")
    assert down.value.response.headers["x-should-retry"] == "false"
    assert "x-jobd-job-id" in down.value.response.headers


def test_a_failure_before_the_first_delta_is_tried_again_silently(client: OpenAI, model_server: OpenAIServer) -> None:
    model_server.script({"status": 500}, {})
    with client.chat.completions.create(model=MODEL, messages=user("hi"), stream=True) as stream:
        text = "".join(each.choices[0].delta.content or "" for each in stream)

    assert text == HELLO
    assert len(model_server.seen) == 2


def test_a_failure_after_the_first_delta_ends_the_stream_with_an_error(
    client: OpenAI, model_server: OpenAIServer, api: Api
) -> None:
    model_server.script({"cut_after": 3, "delay_s": 0.1}, {})
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("hi"), stream=True)
    text = ""
    with pytest.raises(openai.APIError) as caught:
        for each in raw.parse():
            text += each.choices[0].delta.content or ""

    assert HELLO.startswith(text)
    assert text
    assert caught.value.code == "stream_broken"
    assert len(model_server.seen) == 1
    job = api("GET", f"/v1/jobs/{raw.headers['x-jobd-job-id']}").json
    assert (job["status"], job["error"]["code"], job["attempt_count"]) == ("error", "stream_broken", 1)
    assert "upstream_cut" in job["error"]["message"]


def test_an_answer_that_is_not_streamed_is_tried_again_after_a_cut(client: OpenAI, model_server: OpenAIServer) -> None:
    model_server.script({"cut_after": 3}, {})

    answer = client.chat.completions.create(model=MODEL, messages=user("hi"))

    assert answer.choices[0].message.content == HELLO
    assert len(model_server.seen) == 2


def test_a_wait_of_minutes_is_kept_alive(client: OpenAI, model_server: OpenAIServer) -> None:
    """Several keep-alives come before the answer: blank bytes in front of JSON, comments in a stream."""
    model_server.script({"delay_s": 0.5, "tokens": ["a", "b", "c"], "times": 2})
    whole = client.chat.completions.create(model=MODEL, messages=user("hi"))
    slow: Any = {"seconds": 1.6, "tokens": 1}
    chunks = list(client.chat.completions.create(model="made-up", messages=user("hi"), stream=True, extra_body=slow))

    assert whole.choices[0].message.content == "abc"
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == "this "


class CutsTheFirst(httpx.HTTPTransport):
    """Gives up on the first request after a moment; the client then sends it again by itself."""

    requests = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.requests == 1:
            request.extensions["timeout"] = {**request.extensions["timeout"], "read": 0.2}
        return super().handle_request(request)


@pytest.mark.parametrize("stream", [False, True])
def test_a_retried_call_leads_to_the_same_job(client: OpenAI, model_server: OpenAIServer, stream: bool) -> None:
    model_server.script({"delay_s": 0.4, "tokens": ["slow"]})
    transport = CutsTheFirst()
    http: Any = httpx.Client(transport=transport)
    with openai.OpenAI(base_url=client.base_url, api_key="none", http_client=http) as impatient:
        text = text_of(impatient, stream, "once", f"only once {stream}")

    assert text == "slow"
    assert transport.requests == 2
    assert len(model_server.seen) == 1


def text_of(client: OpenAI, stream: bool, model: str, words: str) -> str:
    if not stream:
        return client.chat.completions.create(model=model, messages=user(words)).choices[0].message.content or ""
    chunks = client.chat.completions.create(model=model, messages=user(words), stream=True)
    return "".join(each.choices[0].delta.content or "" for each in chunks)
