"""`/v1/responses` by OpenAI's own client, unchanged, against jobd and a model server of real wire format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import openai
import pytest

from tests.openai.conftest import MODEL
from tests.openai.test_openai_python import TOOLS, said
from tests.openai.test_responses_request import BAD
from tests.support.responses import Reader
from tests.support.sse import Stream
from tests.support.wait import wait_until
from tests.tasks.openai_server import TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.daemon import Jobd
    from tests.support.http import Api
    from tests.tasks.openai_server import OpenAIServer

#: Of `openai.OpenAI`; its types are unions of dozens of items and events, which a test would have to tell apart.
Client: TypeAlias = Any
HELLO = "".join(TOKENS)
WEATHER: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
#: Begins to answer, and then says nothing more.
HANGS = json.dumps({"tokens": ["Well", ", "], "hang_after": 3})


def until_ended(client: Client, response_id: str) -> Any:
    found: list[Any] = [None]

    def has_ended() -> bool:
        found[0] = client.responses.retrieve(response_id)
        return found[0].status not in ("queued", "in_progress")

    wait_until(has_ended, lambda: f"{found[0].status}", 30)
    return found[0]


def until_begun(client: Client, response_id: str) -> None:
    """Until some of its text is there."""
    wait_until(lambda: bool(client.responses.retrieve(response_id).output_text), lambda: "no text has come", 30)


def deltas_in(events: Iterable[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def replayed(client: Client, response_id: str, after: int | None = None) -> list[Any]:
    more: dict[str, Any] = {} if after is None else {"starting_after": after}
    with client.responses.retrieve(response_id, stream=True, **more) as stream:
        return list(stream)


# -- make -------------------------------------------------------------------------------------------------------------


def test_create(client: Client, model_server: OpenAIServer) -> None:
    response = client.responses.create(
        model=MODEL, input="hi", instructions="Be kind.", max_output_tokens=99, metadata={"team": "a b"}
    )

    assert response.output_text == HELLO
    assert response.status == "completed"
    assert response.model == MODEL
    assert response.instructions == "Be kind."
    assert response.metadata == {"team": "a b"}
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 4, 11)
    assert response.completed_at is not None and response.completed_at >= response.created_at
    (request,) = model_server.seen
    assert request["body"]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]
    assert request["body"]["max_tokens"] == 99
    assert not {"jobd", "metadata", "store", "background", "input"} & request["body"].keys()
    assert client.responses.retrieve(response.id) == response


def test_create_is_one_job(client: Client, api: Api) -> None:
    raw = client.responses.with_raw_response.create(
        model=MODEL, input="hi", extra_headers={"x-jobd-labels": "team=search"}
    )

    job = api("GET", f"/v1/jobs/{raw.headers['x-jobd-job-id']}").json
    assert raw.parse().id == f"resp_{job['job_id'].replace('-', '')}"
    assert (job["status"], job["labels"]) == ("done", {"team": "search"})


def test_a_task_of_any_kind_can_answer(client: Client) -> None:
    response = client.responses.create(model="made-up", input="hi")

    assert response.status == "completed"
    assert response.output_text


def test_a_model_that_thinks_and_calls_functions(client: Client, model_server: OpenAIServer) -> None:
    model_server.script({"data": TOOLS})

    response = client.responses.create(model=MODEL, input="hi", tools=WEATHER)

    thoughts, message, weather, clock = response.output
    assert thoughts.type == "reasoning" and thoughts.content is not None
    assert thoughts.content[0].text == "Let me see."
    assert message.type == "message" and response.output_text == "I look it up."
    assert weather.type == clock.type == "function_call"
    assert (weather.call_id, weather.name, weather.arguments) == ("call_a", "weather", '{"city": "Bonn"}')
    assert (clock.call_id, clock.name, clock.arguments) == ("call_b", "clock", '{"at": 3}')
    assert [tool.type for tool in response.tools] == ["function"]


def test_a_conversation_with_functions_goes_on(client: Client, model_server: OpenAIServer) -> None:
    model_server.script({"data": TOOLS}, {}, {})
    first = client.responses.create(model=MODEL, input="hi", tools=WEATHER, instructions="Be brief.")
    outputs: Any = [
        {"type": "function_call_output", "call_id": call_id, "output": "fine"} for call_id in ("call_a", "call_b")
    ]

    second = client.responses.create(model=MODEL, input=outputs, previous_response_id=first.id)
    third = client.responses.create(model=MODEL, input="bye", previous_response_id=second.id)

    assert third.previous_response_id == second.id
    calls = [
        {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}},
        {"id": "call_b", "type": "function", "function": {"name": "clock", "arguments": '{"at": 3}'}},
    ]
    assert model_server.seen[-1]["body"]["messages"] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I look it up.",
            "tool_calls": calls,
            "reasoning_content": "Let me see.",
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "fine"},
        {"role": "tool", "tool_call_id": "call_b", "content": "fine"},
        {"role": "assistant", "content": HELLO},
        {"role": "user", "content": "bye"},
    ]


def test_a_conversation_goes_on_though_its_beginning_was_deleted(client: Client, model_server: OpenAIServer) -> None:
    first = client.responses.create(model=MODEL, input="one")
    second = client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    client.responses.delete(first.id)

    client.responses.create(model=MODEL, input="three", previous_response_id=second.id)

    contents = [message["content"] for message in model_server.seen[-1]["body"]["messages"]]
    assert contents == ["one", HELLO, "two", HELLO, "three"]


def test_an_answer_that_reaches_its_limit_is_incomplete(client: Client, model_server: OpenAIServer) -> None:
    model_server.script({"data": [said(content="Once upon"), said("length"), "[DONE]"]})

    response = client.responses.create(model=MODEL, input="hi")

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"


def test_a_job_that_fails_is_a_failed_response(client: Client, model_server: OpenAIServer) -> None:
    model_server.script({"status": 400, "error": {"message": "too long"}})

    response = client.responses.create(model=MODEL, input="hi")

    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "invalid_prompt"
    assert "too long" in response.error.message
    assert client.responses.retrieve(response.id).status == "failed"


# -- stream -----------------------------------------------------------------------------------------------------------


def test_stream(client: Client, model_server: OpenAIServer) -> None:
    model_server.script({"data": TOOLS})

    with client.responses.create(model=MODEL, input="hi", tools=WEATHER, stream=True) as stream:
        events = [event.to_dict() for event in stream]

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    reader = Reader()
    for event in events:
        if "response" not in event:
            reader.take(str(event["type"]), event)
    last: Any = events[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"] == reader.items


def test_the_stream_helper_of_the_client(client: Client) -> None:
    with client.responses.stream(model=MODEL, input="hi") as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()

    assert texts[-1] == final.output_text == HELLO


def test_a_stream_has_neither_ids_nor_blank_keep_alives(client: Client, face: Jobd) -> None:
    step = {"tokens": ["a"], "delay_s": 0.6}
    response = client.responses.create(model=MODEL, input=json.dumps(step), background=True)

    with Stream(face.address, f"/v1/responses/{response.id}?stream=true") as stream:
        text = stream.answer.read().decode()

    assert ": ping\n" in text
    assert ": ping\n\n" not in text
    assert not [line for line in text.splitlines() if line.startswith(("id:", "retry:"))]
    assert text.endswith("\n\n")


def test_an_attempt_that_fails_after_its_first_delta_fails_the_response(
    client: Client, model_server: OpenAIServer
) -> None:
    model_server.script({"tokens": ["Well", ",", " no"], "cut_after": 3})

    with client.responses.create(model=MODEL, input="hi", stream=True) as stream:
        events = list(stream)

    assert events[-1].type == "response.failed"
    assert deltas_in(events) == events[-1].response.output_text == "Well,"
    assert len(model_server.seen) == 1, "what was told was told again"
    assert replayed(client, events[-1].response.id) == events


def test_an_attempt_that_fails_before_its_first_delta_is_repeated_silently(
    client: Client, model_server: OpenAIServer
) -> None:
    model_server.script({"status": 500}, {})

    with client.responses.create(model=MODEL, input="hi", stream=True) as stream:
        events = list(stream)

    assert len(model_server.seen) == 2
    assert events[-1].type == "response.completed"
    assert [event.type for event in events].count("response.in_progress") == 1
    assert deltas_in(events) == HELLO


def test_a_caller_who_waits_for_the_whole_gets_nothing_of_an_attempt_that_failed(
    client: Client, model_server: OpenAIServer
) -> None:
    model_server.script({"tokens": ["Well", ",", " no"], "cut_after": 3}, {})

    response = client.responses.create(model=MODEL, input="hi")

    assert len(model_server.seen) == 2
    assert response.output_text == HELLO
    assert [item.status for item in response.output] == ["completed"]
    events = replayed(client, response.id)
    assert deltas_in(events) == HELLO


# -- background -------------------------------------------------------------------------------------------------------


def test_background_and_retrieve(client: Client) -> None:
    raw = client.responses.with_raw_response.create(model=MODEL, input="hi", background=True)

    made = raw.parse()
    assert made.status in ("queued", "in_progress", "completed")
    assert made.background is True
    if made.status != "completed":
        assert int(raw.headers["openai-poll-after-ms"]) > 0
    response = until_ended(client, made.id)
    assert (response.status, response.output_text) == ("completed", HELLO)


def test_a_queued_response_says_when_to_ask_again(client: Client) -> None:
    raw = client.responses.with_raw_response.create(
        model=MODEL, input="hi", background=True, extra_headers={"x-jobd-queue": "nobody"}
    )

    assert raw.parse().status == "queued"
    assert raw.headers["openai-poll-after-ms"] == "1000"
    assert client.responses.cancel(raw.parse().id).status == "cancelled"


def test_a_call_that_is_sent_again_leads_to_the_same_response(client: Client) -> None:
    def send(tries: int) -> str:
        made = client.responses.create(
            model=MODEL,
            input="once",
            background=True,
            extra_headers={"x-jobd-queue": "nobody", "x-stainless-retry-count": str(tries)},
        )
        return str(made.id)

    first, again, another = send(0), send(1), send(0)

    assert first == again != another
    for response_id in (first, another):
        client.responses.cancel(response_id)


def test_an_answer_too_large_for_its_row_is_read_and_streamed(client: Client, api: Api) -> None:
    step = {"tokens": [f"{n:06d}" * 250 for n in range(100)]}
    made = client.responses.create(model=MODEL, input=json.dumps(step), background=True)

    response = until_ended(client, made.id)

    assert response.output_text == "".join(step["tokens"])
    job_id = client.responses.with_raw_response.retrieve(made.id).headers["x-jobd-job-id"]
    assert api("GET", f"/v1/jobs/{job_id}").json["result_ref"] is not None
    events = replayed(client, made.id)
    assert deltas_in(events) == response.output_text
    assert events[-1].response == response


def test_a_background_response_goes_on_without_its_reader(client: Client) -> None:
    step = {"tokens": list("abcdefghij"), "delay_s": 0.1}
    with client.responses.create(model=MODEL, input=json.dumps(step), background=True, stream=True) as stream:
        first = next(iter(stream))
        assert first.type == "response.created"

    response = until_ended(client, first.response.id)

    assert (response.status, response.output_text) == ("completed", "abcdefghij")


def test_a_response_whose_caller_left_is_cancelled(client: Client, model_server: OpenAIServer) -> None:
    with client.responses.create(model=MODEL, input=HANGS, stream=True) as stream:
        for event in stream:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                break

    response = until_ended(client, response_id)

    assert response.status == "cancelled"
    model_server.until_hung_up()


def test_cancel_may_be_said_twice(client: Client, model_server: OpenAIServer) -> None:
    made = client.responses.create(model=MODEL, input=HANGS, background=True)
    until_begun(client, made.id)

    first = client.responses.cancel(made.id)
    second = client.responses.cancel(made.id)

    assert first.status == "cancelled"
    assert first == second
    assert first.output_text == "Well, "
    assert first.output[0].status == "incomplete"
    events = replayed(client, made.id)
    assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")
    model_server.until_hung_up()


def test_cancel_leaves_what_has_ended(client: Client) -> None:
    response = client.responses.create(model=MODEL, input="hi")

    assert client.responses.cancel(response.id) == response


def test_starting_after_any_event_gives_the_rest(client: Client, model_server: OpenAIServer) -> None:
    model_server.script({"data": TOOLS})
    with client.responses.create(model=MODEL, input="hi", tools=WEATHER, background=True, stream=True) as stream:
        events = list(stream)
    response_id = events[-1].response.id

    assert replayed(client, response_id) == events
    for after in range(len(events)):
        assert replayed(client, response_id, after) == events[after + 1 :]
    with client.responses.stream(response_id=response_id, starting_after=9) as helper:
        assert [event.sequence_number for event in helper] == list(range(10, len(events)))


def test_a_stream_of_a_response_that_is_deleted_says_so(client: Client) -> None:
    made = client.responses.create(model=MODEL, input="hi", background=True, extra_headers={"x-jobd-queue": "nobody"})
    with client.responses.retrieve(made.id, stream=True) as stream:
        events = iter(stream)
        assert [next(events).type, next(events).type] == ["response.created", "response.queued"]
        client.responses.delete(made.id)
        rest = list(events)

    # It was canceled first; whether that is still read depends on who is faster.
    assert rest[-1].type in ("response.incomplete", "error")


def test_two_readers_of_one_stream_get_the_same(client: Client) -> None:
    step = {"tokens": list("abcdef"), "delay_s": 0.05}
    made = client.responses.create(model=MODEL, input=json.dumps(step), background=True)

    with client.responses.retrieve(made.id, stream=True) as one, client.responses.retrieve(made.id, stream=True) as two:
        assert list(one) == list(two)


# -- keep, delete, list -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_stored_is_gone_after_the_answer(client: Client, api: Api, stream: bool) -> None:
    if stream:
        with client.responses.create(model=MODEL, input="hi", store=False, stream=True) as events:
            response: Any = list(events)[-1].response
    else:
        response = client.responses.create(model=MODEL, input="hi", store=False)

    assert (response.output_text, response.store) == (HELLO, False)
    responses = client.responses
    for call in (responses.retrieve, responses.cancel, responses.delete, responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.BadRequestError, match="no response"):
        client.responses.create(model=MODEL, input="hi", previous_response_id=response.id)
    job_id = response.id.removeprefix("resp_")
    text = "-".join((job_id[:8], job_id[8:12], job_id[12:16], job_id[16:20], job_id[20:]))
    wait_until(lambda: api("GET", f"/v1/jobs/{text}").status == 410, lambda: "the job is still there", 10)


def test_delete(client: Client) -> None:
    response = client.responses.create(model=MODEL, input="hi")

    client.responses.delete(response.id)

    with pytest.raises(openai.NotFoundError, match="no response"):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)


def test_delete_ends_what_runs(client: Client, model_server: OpenAIServer) -> None:
    made = client.responses.create(model=MODEL, input=HANGS, background=True)
    until_begun(client, made.id)

    client.responses.delete(made.id)

    model_server.until_hung_up()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_input_items(client: Client) -> None:
    first = client.responses.create(model=MODEL, input="zero", instructions="Be kind.")
    items: Any = [{"role": "user", "content": word} for word in ("one", "two", "three")]
    response = client.responses.create(model=MODEL, input=items, previous_response_id=first.id, instructions="No.")

    newest = client.responses.input_items.list(response.id)
    page = client.responses.input_items.list(response.id, order="asc", limit=2)

    assert [item.content[0].text for item in newest.data] == ["three", "two", "one"]
    assert [item.content[0].text for item in page.data] == ["one", "two"]
    assert page.has_more is True
    assert [item.content[0].text for item in page] == ["one", "two", "three"]  # all pages
    with pytest.raises(openai.BadRequestError, match="has no input item"):
        client.responses.input_items.list(response.id, after="msg_1")


# -- refused ----------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_openais_shape_and_nothing_is_stored(api: Api) -> None:
    def count() -> int:
        number: int = api("POST", "/v1/jobs/count", {"since_ts": 0}).json["count"]
        return number

    before = count()

    for fields, param, word in BAD:
        answer = api("POST", "/v1/responses", {"model": MODEL, "input": "hi", **fields})
        assert answer.status in (400, 404), (fields, answer)
        error = answer.json["error"]
        assert error.keys() == {"message", "type", "param", "code"}, fields
        assert (error["type"], error["param"]) == ("invalid_request_error", param), fields
        assert word in error["message"], (fields, error)
    assert count() == before


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("resp_1", 404),
        (f"resp_{'0' * 32}", 404),
        (f"resp_{'0' * 32}/input_items", 404),
        (f"resp_{'0' * 32}?stream=true", 404),
        (f"resp_{'0' * 32}?stream=maybe", 400),
        (f"resp_{'0' * 32}?stream=true&starting_after=-1", 400),
        (f"resp_{'0' * 32}?limit=1", 400),
        (f"resp_{'0' * 32}/input_items?limit=101", 400),
        (f"resp_{'0' * 32}/input_items?order=up", 400),
    ],
)
def test_bad_reads_are_refused_in_openais_shape(api: Api, path: str, status: int) -> None:
    answer = api("GET", f"/v1/responses/{path}")

    assert answer.status == status
    assert answer.json["error"]["type"] == "invalid_request_error"


def test_starting_after_is_for_streams(client: Client, api: Api) -> None:
    response = client.responses.create(model=MODEL, input="hi")

    answer = api("GET", f"/v1/responses/{response.id}?starting_after=1")

    assert (answer.status, answer.json["error"]["param"]) == (400, "starting_after")


def test_a_job_that_is_no_response_is_none(client: Client, api: Api) -> None:
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    job_id = raw.headers["x-jobd-job-id"].replace("-", "")

    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(f"resp_{job_id}")
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="hi", previous_response_id=f"resp_{job_id}")


def test_what_has_failed_or_runs_cannot_be_continued(client: Client, model_server: OpenAIServer) -> None:
    model_server.script({"status": 400})
    failed = client.responses.create(model=MODEL, input="hi")
    queued = client.responses.create(model=MODEL, input="hi", background=True, extra_headers={"x-jobd-queue": "nobody"})

    for response, word in ((failed, "is failed"), (queued, "is queued")):
        with pytest.raises(openai.BadRequestError, match=word):
            client.responses.create(model=MODEL, input="go on", previous_response_id=response.id)
    client.responses.cancel(queued.id)
