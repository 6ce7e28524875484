"""Calls that are refused: in OpenAI's shape, by the field that is to blame, and nothing is made of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.openai.conftest import MODEL, user

if TYPE_CHECKING:
    from tests.support.http import Answer, Api

CHAT = {"model": MODEL, "messages": user("hi")}
EMBED = {"model": MODEL, "input": "hi"}
TEXT = {"model": MODEL, "prompt": "hi"}


def with_content(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


#: Fields of a chat call, each with a value that makes it bad.
BAD_CHAT: list[tuple[str, Any]] = [
    *((name, "x") for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")),
    *((name, 1.5) for name in ("max_tokens", "max_completion_tokens", "seed", "top_logprobs")),
    *((name, "x") for name in ("stream", "logprobs", "parallel_tool_calls", "tools", "logit_bias")),
    ("response_format", []),
    ("tool_choice", []),
    ("user", []),
    ("reasoning_effort", []),
    ("metadata", []),
    ("model", 3),
    ("model", ""),
    ("model", {}),
    ("messages", None),
    ("messages", []),
    ("messages", {}),
    ("messages", ["hi"]),
    ("messages", [{}]),
    ("messages", [{"role": ""}]),
    ("messages", [{"role": 3}]),
    ("messages", [{"role": "user", "content": 3}]),
    ("messages", [{"role": "user", "content": ["hi"]}]),
    ("messages", with_content([{"text": "no type"}])),
    ("messages", with_content([{"type": "text"}])),
    ("messages", with_content([{"type": "image_url", "image_url": {}}])),
    ("messages", with_content([{"type": "image_url", "image_url": {"url": ""}}])),
    ("messages", [{"role": "assistant", "content": None, "tool_calls": {}}]),
    ("messages", [{"role": "tool", "content": "x", "tool_call_id": 3}]),
    ("stop", 3),
    ("stop", [3]),
    ("logit_bias", {"1": "x"}),
    ("metadata", {"a": 1}),
    ("n", 2),
    ("n", 0),
    ("n", "1"),
    ("modalities", ["audio"]),
    ("stream_options", {"include_usage": True}),  # without stream
    ("jobd", {"endpoint": "embeddings"}),
]
BAD_INPUTS: list[Any] = [None, 3, "", {}, 1.5, [], [""], ["a", ""], [[]], ["a", 1], [1, [2]], [{}], [1.5]]
BAD_PROMPTS: list[Any] = [None, 3, {}, ["a", "b"], [], ["a", 1], [[1], [2]]]
BAD_EMBED: list[tuple[str, Any]] = [
    *(("input", value) for value in BAD_INPUTS),
    ("dimensions", 0),
    ("dimensions", "x"),
    ("encoding_format", "int8"),
    ("user", 3),
    ("model", 3),
]
BAD_TEXT: list[tuple[str, Any]] = [
    *(("prompt", value) for value in BAD_PROMPTS),
    ("best_of", 2),
    ("n", 3),
    ("logprobs", "x"),
    ("echo", "x"),
    ("suffix", 3),
]
STREAM = {**CHAT, "stream": True}
#: Path, body, and the field that is to blame.
BAD: list[tuple[str, Any, str]] = [
    *(("chat/completions", {**CHAT, name: value}, name) for name, value in BAD_CHAT),
    *(("embeddings", {**EMBED, name: value}, name) for name, value in BAD_EMBED),
    *(("completions", {**TEXT, name: value}, name) for name, value in BAD_TEXT),
    ("chat/completions", {**STREAM, "stream_options": "x"}, "stream_options"),
    ("chat/completions", {**STREAM, "stream_options": {"include_usage": 1}}, "stream_options"),
    ("chat/completions", {"messages": user("hi")}, "model"),  # there are several
    ("chat/completions", {"model": MODEL}, "messages"),
    ("embeddings", {"model": MODEL}, "input"),
    ("completions", {"model": MODEL}, "prompt"),
]


def jobs_of(api: Api) -> int:
    count: int = api("POST", "/v1/jobs/count", {}).json["count"]
    return count


def refused(answer: Answer, status: int = 400) -> dict[str, Any]:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    assert answer.json.keys() == {"error"}
    error: dict[str, Any] = answer.json["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def test_bad_fields_are_refused_by_name_and_nothing_is_made(api: Api) -> None:
    before = jobs_of(api)
    for path, body, param in BAD:
        error = refused(api("POST", f"/v1/{path}", body))

        assert error["param"] == param, (path, body, error)
        assert error["type"] == "invalid_request_error"
        assert param in error["message"]
    assert jobs_of(api) == before


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "not_json"),
        (b"{", "not_json"),
        (b"[]", None),
        (b'"x"', None),
        (b"\xff", "not_utf8"),
        (b'{"model": "\\u0000", "messages": []}', "nul"),
        (b'{"model": "a", "model": "b"}', "duplicate_key"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "too_deep"),
        (b'{"temperature": NaN}', "nan"),
    ],
)
def test_bodies_that_are_no_good_json_are_refused_in_openais_shape(api: Api, body: bytes, code: str | None) -> None:
    for path in ("chat/completions", "embeddings", "completions"):
        assert refused(api("POST", f"/v1/{path}", body))["code"] == code


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-jobd-priority": "high"}, "x-jobd-priority"),
        ({"x-jobd-priority": "1001"}, "x-jobd-priority"),
        ({"x-jobd-priority": "1.5"}, "x-jobd-priority"),
        ({"x-jobd-labels": "team"}, "x-jobd-labels"),
        ({"x-jobd-labels": "jobd.x=1"}, "x-jobd-labels"),
        ({"x-jobd-labels": "a b=1"}, "x-jobd-labels"),
        ({"x-jobd-labels": ",".join(f"n{n}=1" for n in range(17))}, "x-jobd-labels"),
    ],
)
def test_bad_headers_are_refused_by_name(api: Api, headers: dict[str, str], param: str) -> None:
    before = jobs_of(api)

    error = refused(api("POST", "/v1/chat/completions", CHAT, headers))

    assert error["param"] == param
    assert jobs_of(api) == before


def test_other_refusals_have_the_shape_too(api: Api) -> None:
    chat = "/v1/chat/completions"

    assert refused(api("POST", chat, CHAT, {"x-jobd-queue": "none"}))["code"] == "unknown_queue"
    assert refused(api("POST", chat, {**CHAT, "model": "gpt-9"}), 404)["code"] == "model_not_found"
    assert refused(api("GET", chat), 405)["code"] == "method_not_allowed"
    assert refused(api("GET", "/v1/chat/completions/x"), 404)["code"] == "not_found"
    assert refused(api("GET", "/v1/models/no/such:model"), 404)["code"] == "model_not_found"
    assert refused(api("POST", chat, CHAT, {"Content-Type": "text/plain"}), 415)["code"] == "unsupported_media_type"
    assert refused(api("POST", chat, CHAT, {"Host": "elsewhere"}), 421)["code"] == "wrong_host"
    assert refused(api("POST", chat, CHAT, {"Idempotency-Key": "a b"}))["code"] == "bad_idempotency_key"
    image = with_content([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 500_000}}])
    error = refused(api("POST", chat, {**CHAT, "messages": image}), 413)
    assert error["code"] == "too_large"
    assert "limits.payload_bytes" in error["message"]


def test_an_unknown_host_is_told_which_key_lets_it_in(api: Api) -> None:
    error = refused(api("GET", "/v1/models", headers={"Host": "host.docker.internal:7433"}), 421)

    assert '"host.docker.internal" to server.allowed_hosts' in error["message"]


def test_paths_beside_the_interface_keep_their_problem_documents(api: Api) -> None:
    answer = api("POST", "/v1/jobs", {"task": "none", "payload": {}})

    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.body)["code"] == "unknown_task"


# -- pages of other servers -----------------------------------------------------------------------------------------


PAGE = "http://ui.example:3000"


def test_a_page_of_a_listed_origin_may_call_with_a_token_or_none(api: Api) -> None:
    asked = api(
        "OPTIONS",
        "/v1/chat/completions",
        headers={
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        },
    )
    answer = api("GET", "/v1/models", headers={"Origin": PAGE})
    written = api("POST", "/v1/chat/completions", {**CHAT, "n": 2}, {"Origin": PAGE})

    assert asked.status == 204
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == "authorization,content-type,x-stainless-os"
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert refused(written)["param"] == "n"
    assert written.headers["access-control-allow-origin"] == PAGE
    for each in (asked, answer, written):
        assert "access-control-allow-credentials" not in each.headers
        assert each.headers["vary"] == "Origin"


@pytest.mark.parametrize("origin", ["http://evil.example", f"{PAGE}.evil.example", "http://ui.example", "null"])
def test_a_page_of_another_origin_may_not_and_is_told_which_key_would_let_it(api: Api, origin: str) -> None:
    asked = api("OPTIONS", "/v1/models", headers={"Origin": origin, "Access-Control-Request-Method": "GET"})
    answer = api("POST", "/v1/chat/completions", CHAT, {"Origin": origin})

    assert "access-control-allow-origin" not in asked.headers
    error = refused(answer, 403)
    assert error["code"] == "foreign_origin"
    assert "server.cors_origins" in error["message"]
    assert "access-control-allow-origin" not in answer.headers


def test_the_cookie_of_a_session_does_not_count_for_a_listed_origin(api: Api) -> None:
    answer = api("POST", "/v1/chat/completions", CHAT, {"Origin": PAGE, "Cookie": "jobd_session=" + "a" * 43})

    assert refused(answer, 403)["code"] == "foreign_origin"
