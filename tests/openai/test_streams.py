"""The bytes of an answer, and what becomes of a job whose readers leave."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.openai.conftest import MODEL, user
from tests.support.wait import wait_until
from tests.tasks.openai_server import TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemon import Jobd
    from tests.support.http import Api
    from tests.tasks.openai_server import OpenAIServer

HELLO = "".join(TOKENS)
Calls: TypeAlias = "Callable[..., Reader]"


class Reader:
    """A call whose answer is being read."""

    def __init__(self, face: Jobd, *, headers: dict[str, str] | None = None, **body: Any) -> None:
        self._connection = http.client.HTTPConnection(face.address, timeout=60)
        content = json.dumps({"model": MODEL, "messages": user("hi"), **body})
        sent = {"Content-Type": "application/json", **(headers or {})}
        self._connection.request("POST", "/v1/chat/completions", content, sent)

    def answer(self) -> http.client.HTTPResponse:
        return self._connection.getresponse()

    def leave(self) -> None:
        self._connection.close()


@pytest.fixture
def calls(face: Jobd) -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(**body: Any) -> Reader:
        readers.append(Reader(face, **body))
        return readers[-1]

    yield make
    for reader in readers:
        reader.leave()


def test_a_stream_has_nothing_that_clients_stumble_over(calls: Calls, model_server: OpenAIServer) -> None:
    model_server.script({"delay_s": 0.6, "tokens": ["a", "b"], "usage": False})
    answer = calls(stream=True).answer()
    text = answer.read().decode()

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert not [line for line in text.split("\n") if line and not line.startswith(("data: ", ":"))]
    assert ": ping\ndata:" in text, "a keep-alive ends with one newline"
    assert text.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "a", "b", None]
    assert all("usage" not in chunk for chunk in chunks)


def test_an_error_in_a_stream_is_an_object_without_an_end_mark(calls: Calls, model_server: OpenAIServer) -> None:
    model_server.script({"cut_after": 3, "delay_s": 0.2})
    text = calls(stream=True).answer().read().decode()

    *_, last = [line for line in text.split("\n") if line]
    assert "[DONE]" not in text
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("stream_broken", "server_error")


def test_blank_bytes_come_before_the_answer_of_a_long_wait(calls: Calls, model_server: OpenAIServer) -> None:
    model_server.script({"delay_s": 0.2})
    answer = calls().answer()
    body = answer.read()

    assert answer.headers["content-type"] == "application/json"
    assert body.startswith(b"\n")
    assert json.loads(body)["choices"][0]["message"]["content"] == HELLO


def test_a_failure_after_blank_bytes_is_an_error_object(calls: Calls, model_server: OpenAIServer) -> None:
    model_server.script({"delay_s": 0.3, "cut_after": 4, "times": 2})
    answer = calls().answer()
    body = answer.read()

    assert answer.status == 200
    assert json.loads(body)["error"]["code"] == "upstream_cut"


def job_of(api: Api, label: str) -> dict[str, Any]:
    """The one job with this label."""

    def found() -> list[Any]:
        jobs: list[Any] = api("GET", f"/v1/jobs?label=test:{label}").json["jobs"]
        return jobs

    wait_until(lambda: len(found()) == 1, lambda: f"not one job: {found()}", 20)
    job: dict[str, Any] = api("GET", f"/v1/jobs/{found()[0]['job_id']}").json
    return job


def until_status(api: Api, job_id: str, status: str) -> None:
    wait_until(
        lambda: api("GET", f"/v1/jobs/{job_id}").json["status"] == status,
        lambda: str(api("GET", f"/v1/jobs/{job_id}").json),
        20,
    )


def test_a_running_call_that_nobody_reads_is_canceled(calls: Calls, model_server: OpenAIServer, api: Api) -> None:
    for stream in (False, True):
        model_server.script({"hang_after": 2})
        label = f"left-{stream}"
        reader = calls(stream=stream, headers={"x-jobd-labels": f"test={label}"})
        wait_until(lambda: len(model_server.seen) == 1, lambda: "the server was not asked", 20)
        reader.leave()

        model_server.until_hung_up()
        until_status(api, job_of(api, label)["job_id"], "canceled")


def test_a_waiting_call_that_nobody_reads_is_canceled(calls: Calls, api: Api) -> None:
    reader = calls(headers={"x-jobd-queue": "nobody", "x-jobd-labels": "test=waiting"})
    job = job_of(api, "waiting")
    assert job["status"] == "queued"

    reader.leave()

    until_status(api, job["job_id"], "canceled")


def test_a_call_that_is_taken_up_again_goes_on(calls: Calls, api: Api) -> None:
    labels = {"x-jobd-queue": "nobody", "x-jobd-labels": "test=again"}
    first = calls(stream=True, headers=labels)
    job = job_of(api, "again")
    second = calls(stream=True, headers={**labels, "x-stainless-retry-count": "1"})
    answer = second.answer()  # after the first keep-alive

    assert answer.headers["x-jobd-job-id"] == job["job_id"]
    first.leave()
    first_left = api("GET", f"/v1/jobs/{job['job_id']}?wait_s=2").json
    assert (first_left["status"], first_left["cancel_requested"]) == ("queued", False)
    second.leave()
    until_status(api, job["job_id"], "canceled")


def test_a_call_without_the_mark_of_a_retry_makes_a_job_of_its_own(calls: Calls, model_server: OpenAIServer) -> None:
    ids = set()
    for _ in range(2):
        answer = calls().answer()
        answer.read()
        ids.add(answer.headers["x-jobd-job-id"])

    assert len(ids) == 2


def test_an_idempotency_key_leads_to_the_answer_of_the_first_call(calls: Calls, model_server: OpenAIServer) -> None:
    answers = []
    for _ in range(2):
        answer = calls(headers={"Idempotency-Key": "the-same"}).answer()
        answers.append((answer.headers["x-jobd-job-id"], json.loads(answer.read())))

    assert answers[0] == answers[1]
    assert len(model_server.seen) == 1


def test_a_canceled_job_is_an_error_to_its_reader(calls: Calls, api: Api) -> None:
    reader = calls(stream=True, headers={"x-jobd-queue": "nobody", "x-jobd-labels": "test=cancel"})
    job = job_of(api, "cancel")
    assert api("POST", f"/v1/jobs/{job['job_id']}/cancel").status == 200
    answer = reader.answer()

    error = json.loads(answer.read().split(b"data: ")[-1])["error"]
    assert error["code"] == "job_canceled"
