"""The runner against a server process that speaks OpenAI's wire format and fails on request."""

from __future__ import annotations

import json
import logging
import re
import socket
import uuid
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.config.model import Config, Task, broken_rules
from jobd.errors import ConfigError
from jobd.tasks.openai import runner as openai
from jobd.tasks.openai.failures import MOST_PUT_OFFS
from jobd.tasks.openai.payload import GROUNDED, ModelSettings
from jobd.tasks.openai.runner import OpenAIRunner
from jobd.tasks.runner import Context, Snoozed, TaskFailed
from tests.support.wait import wait_until_async
from tests.tasks.openai_server import TOKENS, OpenAIServer, chunk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

pytestmark = pytest.mark.anyio

HELLO = "".join(TOKENS)
CANARY = "sk-canary-0123456789"
HI: dict[str, Any] = {"prompt": "hi"}


@pytest.fixture(scope="module")
def process() -> Iterator[OpenAIServer]:
    server = OpenAIServer()
    yield server
    server.stop()


@pytest.fixture
def server(process: OpenAIServer) -> OpenAIServer:
    process.script()
    return process


@pytest.fixture
async def runner(server: OpenAIServer) -> AsyncIterator[OpenAIRunner]:
    runner = OpenAIRunner(task(server))
    yield runner
    await runner.close()


def task(server: OpenAIServer, **settings: Any) -> Task:
    return Task(run="openai", **{"base_url": server.base_url, **settings})


class Events(list[tuple[str, str, "Mapping[str, Any]"]]):
    """All that a job emitted."""

    def __call__(self, kind: str, step: str, data: Mapping[str, Any]) -> None:
        self.append((kind, step, data))

    @property
    def tokens(self) -> list[str]:
        return [data["text"] for kind, _, data in self if kind == "token"]


def context(name: str = "chat", *, emit: Events | None = None, timeout_s: float = 15) -> Context:
    emitted = Events() if emit is None else emit
    return Context(job_id=uuid.uuid4(), task=name, attempt=1, max_attempts=3, timeout_s=timeout_s, emit=emitted)


async def failure(runner: OpenAIRunner, payload: Mapping[str, Any] = HI, running: Context | None = None) -> TaskFailed:
    with pytest.raises(TaskFailed) as caught:
        await runner.run(payload, running or context())
    return caught.value


def said(content: str | None = None, finish_reason: str | None = None, **delta: Any) -> str:
    return chunk({}, [{"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish_reason}])


# -- text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chat", "plan", "code", "rag", "tool", "my.own-task"])
async def test_each_piece_of_the_answer_becomes_a_token_event(runner: OpenAIRunner, name: str) -> None:
    emitted = Events()

    result = await runner.run(HI, context(name, emit=emitted))

    assert emitted.tokens == list(TOKENS)
    assert result["text"] == HELLO


async def test_tokens_come_while_the_server_still_computes(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"hang_after": 3})
    emitted = Events()

    async with anyio.create_task_group() as group:
        group.start_soon(runner.run, HI, context(emit=emitted))
        with anyio.fail_after(30):
            while len(emitted) < 2:
                await anyio.sleep(0.01)
        assert server.seen[0]["outcome"] == "open"
        group.cancel_scope.cancel()


async def test_result_tells_what_the_server_told_and_how_fast_it_was(
    server: OpenAIServer, runner: OpenAIRunner
) -> None:
    server.script({"delay_s": 0.01})

    result = await runner.run({**HI, "model": "m1"}, context())

    assert result.pop("time_to_first_token_s") > 0
    assert result.pop("tokens_per_s") > 0
    usage = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
    assert result == {"text": HELLO, "model": "m1", "finish_reason": "stop", "usage": usage, "tokens": 4}


async def test_pieces_are_counted_where_the_server_gives_no_usage(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"usage": False, "tokens": ["a", "b"]})

    result = await runner.run(HI, context())

    assert "usage" not in result
    assert result["tokens"] == 2


async def test_empty_answer_is_an_answer(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"tokens": []})

    result = await runner.run(HI, context())

    assert (result["text"], result["tokens"]) == ("", 0)
    assert (result["time_to_first_token_s"], result["tokens_per_s"]) == (None, None)


async def test_server_that_does_not_stream_is_understood(server: OpenAIServer, runner: OpenAIRunner) -> None:
    choice = {"message": {"role": "assistant", "content": "whole"}, "finish_reason": "length"}
    server.script({"body": json.dumps({"choices": [choice], "model": "m"})})
    emitted = Events()

    result = await runner.run(HI, context(emit=emitted))

    assert (emitted.tokens, result["text"], result["finish_reason"]) == (["whole"], "whole", "length")


def called(index: int, *, id_: str | None = None, name: str | None = None, arguments: str = "") -> str:
    function = {"name": name, "arguments": arguments}
    return said(tool_calls=[{"index": index, "id": id_, "type": "function", "function": function}])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            [
                called(0, id_="c1", name="look"),
                called(0, arguments='{"at":'),
                called(1, id_="c2", name="move", arguments="{}"),
                called(0, arguments='"x"}'),
            ],
            id="in pieces",
        ),
        pytest.param(
            [
                called(0, id_="c1", name="look", arguments='{"at":"x"}'),
                called(0, id_="c2", name="move", arguments="{}"),
            ],
            id="all with one index",
        ),
    ],
)
async def test_tool_calls_are_gathered(server: OpenAIServer, runner: OpenAIRunner, data: list[str]) -> None:
    server.script({"data": [*data, said(finish_reason="tool_calls"), "[DONE]"]})

    result = await runner.run(HI, context())

    assert result["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}},
        {"id": "c2", "type": "function", "function": {"name": "move", "arguments": "{}"}},
    ]
    assert (result["text"], result["finish_reason"]) == ("", "tool_calls")


async def test_reasoning_is_kept_apart_from_the_answer(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"data": [said(reasoning_content="hm"), said(reasoning="…"), said("yes"), said(None, "stop")]})
    emitted = Events()

    result = await runner.run(HI, context(emit=emitted))

    assert (emitted.tokens, result["text"], result["reasoning"]) == (["yes"], "yes", "hm…")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("line\u2028separator \x85 and \x0b", "line\u2028separator \x85 and \x0b"),
        ("nul \0 byte", "nul \ufffd byte"),
        ("日本語 🙂", "日本語 🙂"),
        ('data: [DONE]\n\n"', 'data: [DONE]\n\n"'),
    ],
)
async def test_text_arrives_as_it_was_written(server: OpenAIServer, runner: OpenAIRunner, sent: str, kept: str) -> None:
    server.script({"tokens": [sent]})

    assert (await runner.run(HI, context()))["text"] == kept


async def test_long_piece_becomes_several_events(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"tokens": ["é" * 5000]})
    emitted = Events()

    result = await runner.run(HI, context(emit=emitted))

    assert [len(text) for text in emitted.tokens] == [2000, 2000, 1000]
    assert result["text"] == "é" * 5000


# -- payloads -----------------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}
OWN = {"role": "system", "content": "be kind"}
DOCUMENTS = ["one", {"title": "Two", "text": "two", "score": 0.5}]
GROUNDED_PROMPT = f"{GROUNDED}\n\n[1]\none\n\n[2] Two\ntwo\n\nQuestion: why?"


@pytest.mark.parametrize(
    ("payload", "messages"),
    [
        ({"prompt": "hi"}, [SYSTEM, USER]),
        ({"text": "hi"}, [SYSTEM, USER]),
        ({"text": "hi", "system": "be kind"}, [OWN, USER]),
        ({"text": "hi", "system": ""}, [USER]),
        ({"messages": [USER]}, [SYSTEM, USER]),
        ({"messages": [OWN, USER]}, [OWN, USER]),
        ({"messages": [USER, {"role": "developer", "content": "x"}]}, [USER, {"role": "developer", "content": "x"}]),
        (
            {"messages": [{"role": "tool", "tool_call_id": "c", "content": [{"type": "text"}]}]},
            [SYSTEM, {"role": "tool", "tool_call_id": "c", "content": [{"type": "text"}]}],
        ),
        ({"question": "why?", "documents": DOCUMENTS}, [SYSTEM, {"role": "user", "content": GROUNDED_PROMPT}]),
    ],
)
async def test_payload_becomes_messages(
    server: OpenAIServer, payload: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    runner = OpenAIRunner(task(server, system="be brief", base_url=server.base_url + "/"))

    await runner.run(payload, context())
    await runner.close()

    (request,) = server.seen
    assert request["path"] == "/v1/chat/completions"
    assert request["body"] == {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("payload", "model"), [(HI, "the task's"), ({**HI, "model": "the job's"}, "the job's")], ids=["task", "job"]
)
async def test_model_of_the_job_wins(server: OpenAIServer, payload: dict[str, Any], model: str) -> None:
    runner = OpenAIRunner(task(server, model="the task's"))

    result = await runner.run(payload, context())
    await runner.close()

    assert server.seen[0]["body"]["model"] == result["model"] == model


SETTINGS = {
    "temperature": 0,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "max_tokens": 5,
    "max_completion_tokens": None,
    "stop": ["\n"],
    "seed": 1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repeat_penalty": 1.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": -100},
    "response_format": {"type": "json_object"},
    "tools": [{"type": "function", "function": {"name": "look"}}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
    "user": "u",
}


async def test_settings_are_passed_on_as_they_are(server: OpenAIServer, runner: OpenAIRunner) -> None:
    assert set(SETTINGS) == set(ModelSettings.__struct_fields__)

    await runner.run({**HI, **SETTINGS}, context())

    assert {name: server.seen[0]["body"][name] for name in SETTINGS} == SETTINGS


@pytest.mark.parametrize(
    ("name", "payload", "message"),
    [
        ("chat", {}, r"payload must have one of messages, prompt, text, question \(got none of them\)"),
        ("chat", {"prompt": "a", "text": "b"}, r"payload must have one of .* \(got prompt and text\)"),
        ("chat", {"prompt": ""}, "payload.prompt: Expected `str` of length >= 1"),
        ("chat", {"prompt": 5}, "payload.prompt: Expected `str`, got `int`"),
        ("chat", {"messages": []}, "payload.messages: Expected `array` of length >= 1"),
        ("chat", {"messages": "hi"}, "payload.messages: Expected `array`, got `str`"),
        ("chat", {"messages": [USER, {"content": "x"}]}, r"payload.messages\[1\]: .* missing required field `role`"),
        ("chat", {"messages": [USER], "system": "x"}, "payload.system does not go with payload.messages"),
        ("chat", {**HI, "temperature": "hot"}, "payload.temperature: Expected `float . null`, got `str`"),
        ("chat", {**HI, "n": 2}, "payload: Object contains unknown field `n`"),
        ("chat", {**HI, "stream": False}, "payload: Object contains unknown field `stream`"),
        ("chat", {**HI, "documents": ["x"]}, "payload.documents is only for payload.question"),
        ("rag", {"question": "why?"}, "payload.documents is missing"),
        ("rag", {"question": "why?", "documents": []}, "payload.documents: Expected `array` of length >= 1"),
        ("rag", {"question": "why?", "documents": [{"title": "x"}]}, r"payload.documents\[0\]: .* `text`"),
        ("embed", {}, "payload must have one of input, text"),
        ("embed", {"input": []}, "payload.input: Expected `array` of length >= 1"),
        ("embed", {"input": ["a", 1]}, r"payload.input\[1\]: Expected `str`, got `int`"),
        ("embed", {"text": "x", "temperature": 1}, "payload: Object contains unknown field `temperature`"),
    ],
)
async def test_bad_payload_is_refused_by_the_name_of_its_field_and_never_sent(
    server: OpenAIServer, runner: OpenAIRunner, name: str, payload: dict[str, Any], message: str
) -> None:
    failed = await failure(runner, payload, context(name))

    assert (failed.code, failed.retryable) == ("invalid_payload", False)
    assert re.match(message, failed.message), failed.message
    assert server.seen == []


# -- vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "texts"),
    [
        ({"input": "abc"}, ["abc"]),
        ({"text": "abc"}, ["abc"]),
        ({"input": ["abc", "de"]}, ["abc", "de"]),
    ],
)
async def test_embed_returns_a_vector_for_each_text(
    server: OpenAIServer, runner: OpenAIRunner, payload: dict[str, Any], texts: list[str]
) -> None:
    emitted = Events()

    result = await runner.run({**payload, "model": "e5", "dimensions": 3}, context("embed", emit=emitted))

    (request,) = server.seen
    assert (request["path"], request["body"]) == (
        "/v1/embeddings",
        {"input": texts, "model": "e5", "dimensions": 3},
    )
    assert result == {
        "embeddings": [[len(text), index, 0.5] for index, text in enumerate(texts)],
        "model": "e5",
        "dimensions": 3,
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert emitted == []


async def test_vectors_are_in_the_order_of_their_texts(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"body": '{"data": [{"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1]}]}'})

    assert (await runner.run({"input": ["a", "b"]}, context("embed")))["embeddings"] == [[1], [2]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"data": [{"embedding": [1]}]}', "answered 2 texts with 1 vectors of 1 numbers"),
        ('{"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}', "answered 2 texts with 2 vectors of 1, 2 numbers"),
        ('{"data": [{"embedding": []}, {"embedding": []}]}', "answered 2 texts with 2 vectors of 0 numbers"),
        ('{"data": [{"embedding": [null]}, {"embedding": [1]}]}', "Expected `float`, got `null`"),
        ('{"data": [{"embedding": [NaN]}, {"embedding": [1]}]}', "malformed"),
        ("<html>", "malformed"),
        ("{}", "missing required field `data`"),
    ],
)
async def test_answer_without_the_vectors_is_an_error_of_the_server(
    server: OpenAIServer, runner: OpenAIRunner, body: str, message: str
) -> None:
    server.script({"body": body})

    failed = await failure(runner, {"input": ["a", "b"]}, context("embed"))

    assert (failed.code, failed.retryable) == ("upstream_error", True)
    assert message in failed.message


# -- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chat", "embed"])
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (302, "upstream_refused", False),
        (400, "upstream_refused", False),
        (401, "upstream_refused", False),
        (403, "upstream_refused", False),
        (404, "upstream_refused", False),
        (408, "upstream_error", True),
        (409, "upstream_error", True),
        (413, "upstream_refused", False),
        (422, "upstream_refused", False),
        (429, "upstream_busy", True),
        (500, "upstream_error", True),
        (502, "upstream_error", True),
        (503, "upstream_busy", True),
        (504, "upstream_error", True),
    ],
)
async def test_status_decides_whether_another_attempt_may_help(
    server: OpenAIServer, runner: OpenAIRunner, name: str, status: int, code: str, retryable: bool
) -> None:
    server.script({"status": status, "error": {"message": "because", "type": "t", "code": "c"}})

    failed = await failure(runner, {"text": "x"}, context(name))

    assert (failed.code, failed.retryable) == (code, retryable)
    assert failed.message == f"http://127.0.0.1:{server.port} answered {status}: because"


async def test_an_attempt_is_one_request(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"status": 500, "times": 2})

    await failure(runner)
    assert len(server.seen) == 1
    await failure(runner)

    assert (await runner.run(HI, context()))["text"] == HELLO
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("retry_after", "delay_s"), [("7", 7.0), ("0", 1.0), ("999999", 3600.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 1.0)]
)
@pytest.mark.parametrize("status", [429, 503])
async def test_wish_of_a_busy_server_is_obeyed(
    server: OpenAIServer, runner: OpenAIRunner, status: int, retry_after: str, delay_s: float
) -> None:
    server.script({"status": status, "headers": {"Retry-After": retry_after}})

    failed = await failure(runner)

    assert isinstance(failed, Snoozed)
    assert failed.delay_s == delay_s


@pytest.mark.parametrize(
    ("status", "headers"),
    [(429, {}), (429, {"Retry-After": "soon"}), (429, {"Retry-After": "-1"}), (500, {"Retry-After": "7"})],
)
async def test_server_that_names_no_time_or_is_not_busy_fails_the_attempt(
    server: OpenAIServer, runner: OpenAIRunner, status: int, headers: dict[str, str]
) -> None:
    server.script({"status": status, "headers": headers})

    failed = await failure(runner)

    assert not isinstance(failed, Snoozed)
    assert failed.retryable


async def test_server_that_is_always_busy_fails_the_attempt_in_the_end(
    server: OpenAIServer, runner: OpenAIRunner
) -> None:
    server.script({"status": 429, "headers": {"Retry-After": "7"}})
    late = context()
    late.attempt = MOST_PUT_OFFS + 1

    with pytest.raises(TaskFailed) as failed:
        await runner.run(HI, late)

    assert "answered 429 (Retry-After: 7): scripted" in failed.value.message
    assert not isinstance(failed.value, Snoozed)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("model not found", "model not found"),
        ({"detail": "no such route"}, "no such route"),
        ({"reasons": [1, 2]}, '{"reasons": [1, 2]}'),
        ({"message": "two\r\nlines\0"}, "two lines "),
    ],
)
async def test_error_is_told_in_the_words_of_the_server(
    server: OpenAIServer, runner: OpenAIRunner, error: Any, message: str
) -> None:
    server.script({"status": 400, "error": error})

    assert (await failure(runner)).message.endswith(f"answered 400: {message}")


async def test_long_error_is_cut(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"status": 400, "error": "é" * 100_000})

    assert 1000 < len((await failure(runner)).message.encode()) <= 1024


BEGUN = [said(None, role="assistant"), said("Hel")]


@pytest.mark.parametrize(
    ("step", "code", "retryable"),
    [
        pytest.param({"cut_after": 0}, "upstream_unreachable", True, id="closed instead of an answer"),
        pytest.param({"cut_after": 1}, "upstream_cut", True, id="closed before the first token"),
        pytest.param({"cut_after": 3}, "upstream_cut", True, id="closed in the middle"),
        pytest.param({"data": BEGUN}, "upstream_cut", True, id="ended without an end mark"),
        pytest.param({"data": [*BEGUN, "{broken"]}, "upstream_error", True, id="not JSON"),
        pytest.param({"data": [*BEGUN, '"text"']}, "upstream_error", True, id="not an object"),
        pytest.param({"data": [*BEGUN, '{"error": "lost"}']}, "upstream_error", True, id="error in the stream"),
        pytest.param(
            {"data": [*BEGUN, '{"error": {"message": "too long", "code": 400}}']},
            *("upstream_refused", False),
            id="error in the stream with its status",
        ),
        pytest.param({"body": "{}"}, "upstream_cut", True, id="an object without an answer"),
    ],
)
async def test_broken_stream_is_no_answer(
    server: OpenAIServer, runner: OpenAIRunner, step: dict[str, Any], code: str, retryable: bool
) -> None:
    server.script(step)

    failed = await failure(runner)

    assert (failed.code, failed.retryable) == (code, retryable)
    assert (await runner.run(HI, context()))["text"] == HELLO


@pytest.mark.parametrize(
    "step",
    [
        pytest.param({"data": [*BEGUN, said(None, "stop")]}, id="a finish reason and no end mark"),
        pytest.param({"data": [*BEGUN, "[DONE]"]}, id="an end mark and no finish reason"),
        pytest.param({"data": [*BEGUN, said(None, "stop")], "cut_after": 3}, id="closed after the finish reason"),
        pytest.param({"data": [*BEGUN, "[DONE]"], "hang_after": 3}, id="left open after the end mark"),
        pytest.param({"data": [*BEGUN, "[DONE]", "{broken"]}, id="rubbish after the end mark"),
    ],
)
async def test_answer_is_whole_when_the_server_said_so(
    server: OpenAIServer, runner: OpenAIRunner, step: dict[str, Any]
) -> None:
    server.script(step)

    assert (await runner.run(HI, context()))["text"] == "Hel"


async def test_event_without_end_is_given_up(
    server: OpenAIServer, runner: OpenAIRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "MAX_EVENT_BYTES", 1000)
    server.script({"data": ["x" * 100_000 + "\ndata: more"] * 2})

    failed = await failure(runner)

    assert (failed.code, failed.retryable) == ("upstream_error", False)
    assert failed.message.endswith("sent more than 1000 bytes")


@pytest.mark.parametrize("name", ["chat", "embed"])
async def test_nobody_listening_is_worth_another_attempt(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    runner = OpenAIRunner(Task(run="openai", base_url=f"http://me:{CANARY}@127.0.0.1:{port}/v1"))

    failed = await failure(runner, {"text": "x"}, context(name))
    await runner.close()

    assert (failed.code, failed.retryable) == ("upstream_unreachable", True)
    assert failed.message.startswith(f"no answer from http://127.0.0.1:{port}: ")
    assert CANARY not in failed.message


# -- stopping -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [
        pytest.param("chat", {"hang_after": 0}, id="before the answer"),
        pytest.param("chat", {"hang_after": 2}, id="in the middle"),
        pytest.param("chat", {"tokens": ["x"] * 10_000, "delay_s": 0.02}, id="between slow tokens"),
        pytest.param("embed", {"hang_after": 0}, id="before the vectors"),
    ],
)
async def test_cancelling_hangs_up(server: OpenAIServer, runner: OpenAIRunner, name: str, step: dict[str, Any]) -> None:
    server.script(step)
    emitted = Events()

    async with anyio.create_task_group() as group:
        group.start_soon(runner.run, {"text": "x"}, context(name, emit=emitted))
        with anyio.fail_after(30):
            while not server.seen or (step.get("hang_after") != 0 and not emitted):
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()

    server.until_hung_up()
    emitted.clear()
    assert (await runner.run({"text": "x"}, context("chat")))["text"] == HELLO
    assert emitted == []


async def test_cancelling_again_and_again_leaves_no_connection(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"tokens": ["x"] * 10_000, "delay_s": 0.005, "times": 40})

    for number in range(40):
        with anyio.move_on_after(0.002 * number):
            await runner.run(HI, context())

    await until_closed(server)


@pytest.mark.parametrize("step", [{"hang_after": 0}, {"hang_after": 2}])
async def test_silence_until_the_deadline_ends_the_attempt(
    server: OpenAIServer, runner: OpenAIRunner, step: dict[str, Any]
) -> None:
    server.script(step)

    failed = await failure(runner, HI, context(timeout_s=0.3))

    assert (failed.code, failed.retryable) == ("timeout", True)
    server.until_hung_up()


# -- connections --------------------------------------------------------------------------------------------------


async def test_connection_is_kept_for_the_next_job(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({}, {"status": 400}, {})

    await runner.run(HI, context())
    await failure(runner)
    await runner.run({"text": "x"}, context("embed"))

    assert len({request["port"] for request in server.seen}) == 1


async def test_many_jobs_run_at_once(server: OpenAIServer, runner: OpenAIRunner) -> None:
    server.script({"delay_s": 0.02, "times": 120})
    results: list[str] = []

    async def run() -> None:
        results.append((await runner.run(HI, context()))["text"])

    async with anyio.create_task_group() as group:
        for _ in range(120):
            group.start_soon(run)

    assert results == [HELLO] * 120


async def test_close_lets_go_of_the_connections(server: OpenAIServer) -> None:
    runner = OpenAIRunner(task(server))
    await runner.run(HI, context())
    assert server.connections == 1

    await runner.close()

    await until_closed(server)


async def until_closed(server: OpenAIServer) -> None:
    """Without holding up the loop, which does the closing."""

    await wait_until_async(lambda: server.connections == 0, lambda: f"{server.connections} are open")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_no_proxy_stands_before_a_server_on_this_machine(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    runner = OpenAIRunner(task(server, base_url=server.base_url.replace("127.0.0.1", "localhost")))

    assert (await runner.run(HI, context()))["text"] == HELLO
    await runner.close()


async def test_proxy_of_the_environment_is_used_for_other_servers(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
    runner = OpenAIRunner(task(server, base_url="http://model.invalid/v1"))

    assert (await runner.run(HI, context()))["text"] == HELLO
    await runner.close()

    assert server.seen[0]["path"] == "http://model.invalid/v1/chat/completions"


# -- the key ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chat", "embed"])
@pytest.mark.parametrize("around", ["", "\n"], ids=["bare", "with a line end"])
async def test_key_goes_into_its_header_and_nowhere_else(
    server: OpenAIServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    around: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MODEL_KEY", CANARY + around)
    runner = OpenAIRunner(task(server, api_key_env="MODEL_KEY"))
    emitted = Events()

    result = await runner.run({"text": "x"}, context(name, emit=emitted))
    server.script({"status": 500, "error": f"with {CANARY}"}, {"cut_after": 0})
    failed = [await failure(runner, {"text": "x"}, context(name, emit=emitted)) for _ in range(2)]
    await runner.close()

    assert [request["authorization"] for request in server.seen] == [f"Bearer {CANARY}"] * 2
    assert CANARY not in repr((result, emitted, [each.message + each.stack for each in failed]))
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (f"Incorrect API key provided: {CANARY}.", "Incorrect API key provided: ***."),
        ("Incorrect API key provided: sk-can*****6789. See", "Incorrect API key provided: sk-*** See"),
        ("got Authorization: Bearer abc.def", "got Authorization: Bearer ***"),
        ("x" * 990 + CANARY * 5, None),
    ],
)
async def test_key_that_a_server_repeats_is_masked(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, error: str, message: str | None
) -> None:
    monkeypatch.setenv("MODEL_KEY", CANARY)
    server.script({"status": 401, "error": {"message": error, "code": "invalid_api_key"}})
    runner = OpenAIRunner(task(server, api_key_env="MODEL_KEY"))

    failed = await failure(runner)
    await runner.close()

    assert failed.code == "upstream_refused"
    assert "canary" not in failed.message
    assert message is None or failed.message.endswith(f"answered 401: {message}")


async def test_the_trace_of_the_job_is_sent_to_the_model_server(server: OpenAIServer, runner: OpenAIRunner) -> None:
    traced = context()
    traced.traceparent, traced.tracestate = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1"

    await runner.run(HI, traced)
    await runner.run(HI, context())

    assert [request["trace"] for request in server.seen] == [[traced.traceparent, "a=1"], [None, None]]


async def test_no_key_is_sent_when_none_is_configured(server: OpenAIServer, runner: OpenAIRunner) -> None:
    await runner.run(HI, context())

    assert server.seen[0]["authorization"] is None


@pytest.mark.parametrize("value", [None, "", " ", "sk-canary\nX-More: 1", "sk-canäry"])
async def test_key_that_no_header_can_hold_is_not_shown(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("MODEL_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MODEL_KEY", value)
    runner = OpenAIRunner(task(server, api_key_env="MODEL_KEY"))

    failed = await failure(runner)
    await runner.close()

    assert (failed.code, failed.retryable) == ("bad_api_key", False)
    assert failed.message.startswith("the variable MODEL_KEY must hold the API key")
    assert "sk-can" not in failed.message
    assert server.seen == []


# -- settings -----------------------------------------------------------------------------------------------------

URL = "http://127.0.0.1:8080/v1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run": "mock", "model": "m"}, 'tasks.t.model is only for run = "openai" (tasks.t.run is "mock")'),
        ({"run": "mock", "system": "s"}, 'tasks.t.system is only for run = "openai" (tasks.t.run is "mock")'),
        ({"run": "mock", "api_key_env": "K"}, 'tasks.t.api_key_env is only for run = "openai" (tasks.t.run is "mock")'),
        *(
            (
                {"run": "openai", "base_url": url},
                "tasks.t.base_url must have a host, a port of at most 65535 if any, and neither ? nor #",
            )
            for url in ("http://:80/v1", "http://h:0/v1", "http://h:70000/v1", "http://[::1/v1", "http://h/v1?key=k")
        ),
        (
            {"run": "openai", "base_url": "http://me:pw@h/v1", "api_key_env": "K"},
            "tasks.t.api_key_env does not go with a password in base_url: a request has one of them",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    assert [rule.message for rule in broken_rules(Config(tasks={"t": Task(**settings)}))] == [message]


def test_settings_of_a_model_server_break_no_rule() -> None:
    settings = Task(run="openai", base_url=URL, model="m", api_key_env="MODEL_KEY", system="be brief")

    assert list(broken_rules(Config(tasks={"t": settings}))) == []


def test_url_that_httpx_cannot_read_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="base_url is no URL"):
        OpenAIRunner(Task(run="openai", base_url="http://a\x7fb/v1"))


# -- calls of jobd's own OpenAI interface ------------------------------------------------------------------------------


CHAT_CALL = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "jobd": {"endpoint": "chat/completions"}}


async def test_thoughts_and_tool_calls_are_events_of_their_own(server: OpenAIServer, runner: OpenAIRunner) -> None:
    first = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}
    rest = {"index": 0, "function": {"arguments": ": 1}"}}
    other = {"index": 0, "id": "b", "function": {"name": "g", "arguments": ""}}  # the same index, and a new id
    server.script(
        {
            "data": [
                said(reasoning_content="hm "),
                said("ok"),
                said(tool_calls=[first]),
                said(tool_calls=[rest, other]),
                said(None, "tool_calls"),
                "[DONE]",
            ]
        }
    )
    emitted = Events()

    result = await runner.run(HI, context(emit=emitted))

    assert [(kind, data) for kind, _, data in emitted] == [
        ("reasoning", {"text": "hm "}),
        ("token", {"text": "ok"}),
        ("tool_call", {"index": 0, "id": "a", "name": "f", "arguments": ""}),
        ("tool_call", {"index": 0, "arguments": '{"x"'}),
        ("tool_call", {"index": 0, "arguments": ": 1}"}),
        ("tool_call", {"index": 1, "id": "b", "name": "g", "arguments": ""}),
    ]
    assert [call["function"]["arguments"] for call in result["tool_calls"]] == ['{"x": 1}', ""]


@pytest.mark.parametrize("kind", ["content", "reasoning_content"])
async def test_long_pieces_are_split_so_that_none_is_cut(server: OpenAIServer, runner: OpenAIRunner, kind: str) -> None:
    text = "ä\n" * 9000
    server.script({"data": [said(**{kind: text}), said(None, "stop"), "[DONE]"]})
    emitted = Events()

    await runner.run(HI, context(emit=emitted))

    assert "".join(data["text"] for _, _, data in emitted) == text
    assert max(len(data["text"]) for _, _, data in emitted) <= 2000


async def test_a_call_is_passed_on_as_it_came_and_says_itself_where_to(
    server: OpenAIServer, runner: OpenAIRunner
) -> None:
    await runner.run({**CHAT_CALL, "mirostat": 2}, context("embed"))
    await runner.run({"prompt": "hi", "jobd": {"endpoint": "completions"}}, context())
    await runner.run({"input": [1, 2], "jobd": {"endpoint": "embeddings"}}, context())

    chat, text, vectors = server.seen
    assert (chat["path"], text["path"], vectors["path"]) == tuple(
        f"/v1/{path}" for path in ("chat/completions", "completions", "embeddings")
    )
    assert chat["body"]["mirostat"] == 2
    assert chat["body"]["stream"] is True
    assert vectors["body"] == {"input": [1, 2]}
    assert not [request for request in server.seen if "jobd" in request["body"]]


@pytest.mark.parametrize("mark", [3, {}, {"endpoint": "../admin"}, {"endpoint": "completions", "told_once": 3}])
async def test_a_made_up_envelope_is_refused(runner: OpenAIRunner, mark: Any) -> None:
    failed = await failure(runner, {**CHAT_CALL, "jobd": mark})

    assert (failed.code, failed.retryable) == ("invalid_payload", False)
