"""`/v1/batches` from outside: a file of calls is answered in files, each line once; a bad file changes nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemon import Jobd
from tests.support.forms import send_file
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.http import Answer

CONFIG = """
[retry]
max_attempts = 1
[queues.default]
slots = 4
[tickets]
enabled = false
[models.talker]
task = "chat"
[queues.one]
slots = 1
[models.alone]
task = "chat"
queue = "one"
[models.vectors]
task = "embed"
"""
CHAT, EMBED, RESPOND = "/v1/chat/completions", "/v1/embeddings", "/v1/responses"
FINAL = ("failed", "completed", "expired", "cancelled")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Jobd]:
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(CONFIG)
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml")).start().until_ready()
    yield daemon
    daemon.clean_up()
    shutil.rmtree(folder)


@pytest.fixture
def api(daemon: Jobd) -> Api:
    return Api(daemon.address)


def line(custom_id: str, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    """The mock speaks for so many `seconds` and fails with the chance `fail_rate`."""
    body = {"model": "talker", "messages": [{"role": "user", "content": "hi"}], "tokens": 3, "seconds": 0, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(*lines: object) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def create(api: Api, content: bytes, endpoint: str = CHAT, **fields: Any) -> Answer:
    file_id = send_file(api, content).json["id"]
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **fields}
    return api("POST", "/v1/batches", body)


def ended(api: Api, batch_id: str) -> Any:
    def look() -> Any:
        batch = api("GET", f"/v1/batches/{batch_id}").json
        return batch if batch["status"] in FINAL else None

    return wait_until(look, lambda: api("GET", f"/v1/batches/{batch_id}").json)


def lines_of(api: Api, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    content = api("GET", f"/v1/files/{file_id}/content").body
    return [json.loads(text) for text in content.splitlines()]


# -- good files --------------------------------------------------------------------------------------------------------


def test_each_line_is_answered_once_in_one_of_two_files(api: Api) -> None:
    content = jsonl(line("good"), b"", line("bad", fail_rate=1), line("also good \N{SNOWMAN}"), b"  ")[:-1]

    made = create(api, content, metadata={"of": "test"})
    batch = ended(api, made.json["id"])
    output, errors = lines_of(api, batch["output_file_id"]), lines_of(api, batch["error_file_id"])

    assert made.status == 200, made
    assert (made.json["status"], made.json["expires_at"] - made.json["created_at"]) == ("validating", 86_400)
    assert (batch["status"], batch["model"], batch["metadata"]) == ("completed", "talker", {"of": "test"})
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert batch["errors"] is None
    times = ["created_at", "in_progress_at", "finalizing_at", "completed_at", "expires_at"]
    assert sorted(batch[name] for name in times) == [batch[name] for name in times]
    assert [batch[f"{name}_at"] for name in ("failed", "expired", "cancelling", "cancelled")] == [None] * 4

    assert [answer["custom_id"] for answer in output] == ["good", "also good \N{SNOWMAN}"]
    for answer in output:
        body = answer["response"]["body"]
        assert (answer["response"]["status_code"], answer["error"]) == (200, None)
        assert answer["id"] == f"batch_req_{answer['response']['request_id']}"
        assert (body["object"], body["model"]) == ("chat.completion", "talker")
        assert body["choices"][0]["message"]["content"]
    (failure,) = errors
    assert (failure["custom_id"], failure["response"]["status_code"]) == ("bad", 500)
    assert failure["response"]["body"]["error"]["code"] == "mock_failure"


def test_files_of_a_batch_say_so_and_expire_as_asked(api: Api) -> None:
    made = create(api, jsonl(line("a")), output_expires_after={"anchor": "created_at", "seconds": 7200})
    batch = ended(api, made.json["id"])

    file = api("GET", f"/v1/files/{batch['output_file_id']}").json

    assert (file["purpose"], file["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert file["expires_at"] - file["created_at"] == 7200
    assert batch["error_file_id"] is None
    assert file in api("GET", "/v1/files?purpose=batch_output").json["data"]


def test_embeddings_come_in_the_encoding_that_their_line_asks_for(api: Api) -> None:
    def embed(custom_id: str, **fields: Any) -> dict[str, Any]:
        body = {"model": "vectors", "input": "x", **fields}
        return {"custom_id": custom_id, "method": "POST", "url": EMBED, "body": body}

    batch = ended(api, create(api, jsonl(embed("a"), embed("b", encoding_format="base64")), EMBED).json["id"])

    numbers, text = (answer["response"]["body"] for answer in lines_of(api, batch["output_file_id"]))
    assert (numbers["object"], numbers["model"]) == ("list", "vectors")
    assert isinstance(numbers["data"][0]["embedding"][0], float)
    assert isinstance(text["data"][0]["embedding"], str)


def test_lines_may_ask_for_responses(api: Api) -> None:
    def respond(custom_id: str, **fields: Any) -> dict[str, Any]:
        body = {"model": "talker", "input": "hi", "metadata": {"of": custom_id}, "tokens": 3, "seconds": 0, **fields}
        return {"custom_id": custom_id, "method": "POST", "url": RESPOND, "body": body}

    batch = ended(api, create(api, jsonl(respond("a"), respond("b")), RESPOND).json["id"])

    first, second = (answer["response"]["body"] for answer in lines_of(api, batch["output_file_id"]))
    assert (first["object"], first["status"], first["model"]) == ("response", "completed", "talker")
    assert (first["metadata"], second["metadata"]) == ({"of": "a"}, {"of": "b"})
    assert first["output"][0]["content"][0]["text"]
    assert first["created_at"] <= first["completed_at"]
    assert api("GET", f"/v1/responses/{first['id']}").json["output"] == first["output"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"background": True}, "background"),
        ({"previous_response_id": f"resp_{'0' * 32}"}, "previous_response_id"),
        ({"input": None}, "input"),
    ],
)
def test_a_line_asks_for_a_response_that_stands_alone(api: Api, fields: dict[str, Any], param: str) -> None:
    body = {"model": "talker", "input": "hi", **fields}
    asked = {"custom_id": "a", "method": "POST", "url": RESPOND, "body": body}

    batch = ended(api, create(api, jsonl(asked), RESPOND).json["id"])

    assert batch["status"] == "failed"
    assert [fault["param"] for fault in batch["errors"]["data"]] == [f"body.{param}"]


def test_lines_are_ordinary_jobs_of_a_group_with_low_priority(api: Api) -> None:
    batch_id = create(api, jsonl(line("mine"))).json["id"]
    ended(api, batch_id)

    (job,) = api("GET", f"/v1/jobs?label=jobd.batch:{batch_id}").json["jobs"]
    group = api("GET", f"/v1/groups/{batch_id_as_uuid(batch_id)}").json

    assert (job["priority"], job["labels"]["jobd.custom_id"], job["status"]) == (-500, "mine", "done")
    assert (group["status"], group["members"], group["name"]) == ("done", 1, batch_id)


def batch_id_as_uuid(batch_id: str) -> str:
    digits = batch_id.removeprefix("batch_")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def test_a_call_that_somebody_waits_for_goes_before_all_lines_but_the_running_one(api: Api) -> None:
    batch_id = create(api, jsonl(*(line(str(n), model="alone", seconds=0.5) for n in range(50)))).json["id"]
    query = f"/v1/jobs?label=jobd.batch:{batch_id}&limit=100"
    wait_until(lambda: any(job["status"] == "running" for job in api("GET", query).json["jobs"]))

    answer = api("POST", CHAT, line("x", model="alone")["body"])
    api("POST", f"/v1/batches/{batch_id}/cancel")
    call = api("GET", f"/v1/jobs/{answer.headers['x-jobd-job-id']}").json
    lines = [api("GET", f"/v1/jobs/{job['job_id']}").json for job in api("GET", query).json["jobs"]]

    assert answer.status == 200, answer
    meanwhile = [job for job in lines if call["created_ts"] < (job["started_ts"] or 0) < call["started_ts"]]
    assert len(meanwhile) <= 1
    assert sum(job["started_ts"] is None for job in lines) > 40
    ended(api, batch_id)


def test_a_batch_that_is_cancelled_keeps_what_is_done(api: Api) -> None:
    quick, slow = [line(f"quick {n}") for n in range(3)], [line(f"slow {n}", seconds=600) for n in range(10)]
    batch_id = create(api, jsonl(*quick, *slow)).json["id"]
    path = f"/v1/batches/{batch_id}"
    wait_until(lambda: api("GET", path).json["request_counts"]["completed"] == 3, lambda: api("GET", path).json)

    asked = api("POST", f"{path}/cancel")
    batch = ended(api, batch_id)

    assert (asked.status, asked.json["status"] in ("cancelling", "cancelled")) == (200, True)
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    assert batch["request_counts"] == {"total": 13, "completed": 3, "failed": 10}
    assert [answer["custom_id"] for answer in lines_of(api, batch["output_file_id"])] == [
        one["custom_id"] for one in quick
    ]
    errors = lines_of(api, batch["error_file_id"])
    assert [answer["custom_id"] for answer in errors] == [one["custom_id"] for one in slow]
    assert {(answer["response"], answer["error"]["code"]) for answer in errors} == {(None, "batch_cancelled")}
    assert api("POST", f"{path}/cancel").json == batch


def test_a_batch_that_has_ended_cannot_be_cancelled(api: Api) -> None:
    batch = ended(api, create(api, jsonl(line("a"))).json["id"])

    refused = api("POST", f"/v1/batches/{batch['id']}/cancel")

    assert (refused.status, refused.json["error"]["code"]) == (400, "batch_ended")
    assert api("GET", f"/v1/batches/{batch['id']}").json == batch


def test_a_group_that_is_cancelled_ends_its_batch(api: Api) -> None:
    batch_id = create(api, jsonl(*(line(str(n), seconds=600) for n in range(600)))).json["id"]
    wait_until(lambda: api("GET", f"/v1/batches/{batch_id}").json["status"] == "in_progress")
    group = f"/v1/groups/{batch_id_as_uuid(batch_id)}"
    wait_until(lambda: api("GET", group).json["members"] == 500)

    before = None
    while True:
        answer = api("POST", f"{group}/cancel", {"limit": 500, **({} if before is None else {"before": before})}).json
        before = answer["next"]
        if before is None:
            break
    batch = ended(api, batch_id)

    assert batch["request_counts"]["failed"] == 600
    assert len({answer["custom_id"] for answer in lines_of(api, batch["error_file_id"])}) == 600


def test_a_file_that_a_batch_reads_cannot_be_deleted(api: Api) -> None:
    batch = create(api, jsonl(line("a", seconds=600))).json
    path = f"/v1/files/{batch['input_file_id']}"

    refused = api("DELETE", path)
    api("POST", f"/v1/batches/{batch['id']}/cancel")
    ended(api, batch["id"])

    assert (refused.status, refused.json["error"]["code"]) == (400, "file_in_use")
    assert api("DELETE", path).status == 200


def test_lists_have_pages(api: Api) -> None:
    mine = [ended(api, create(api, jsonl(line("a"))).json["id"])["id"] for _ in range(3)]

    first = api("GET", "/v1/batches?limit=2").json
    second = api("GET", f"/v1/batches?limit=1&after={first['last_id']}").json

    assert [batch["id"] for batch in first["data"]] == [mine[2], mine[1]] == [first["first_id"], first["last_id"]]
    assert (first["object"], first["has_more"]) == ("list", True)
    assert [batch["id"] for batch in second["data"]] == [mine[0]]


# -- bad files ---------------------------------------------------------------------------------------------------------

BODY = line("x")["body"]
BAD_LINES: dict[str, tuple[object, str, str | None]] = {
    "no JSON": (b"{", "invalid_json_line", None),
    "not UTF-8": (b'{"custom_id": "\xff"}', "invalid_json_line", None),
    "a key twice": (b'{"custom_id": "x", "custom_id": "y"}', "invalid_json_line", None),
    "a list": ([], "invalid_json_line", None),
    "no custom_id": ({"method": "POST", "url": CHAT, "body": BODY}, "invalid_custom_id", "custom_id"),
    "an empty custom_id": (line(""), "invalid_custom_id", "custom_id"),
    "a number as custom_id": ({**line("x"), "custom_id": 1}, "invalid_custom_id", "custom_id"),
    "a long custom_id": (line("x" * 513), "invalid_custom_id", "custom_id"),
    "a custom_id that was there": (line("first"), "duplicate_custom_id", "custom_id"),
    "another method": ({**line("x"), "method": "GET"}, "invalid_method", "method"),
    "no method": ({name: value for name, value in line("x").items() if name != "method"}, "invalid_method", "method"),
    "another url": (line("x", EMBED), "invalid_url", "url"),
    "no body": ({name: value for name, value in line("x").items() if name != "body"}, "invalid_request", "body"),
    "a body that is a list": ({**line("x"), "body": []}, "invalid_request", "body"),
    "an unknown field": ({**line("x"), "color": "red"}, "unknown_field", "color"),
    "an unknown model": (line("x", model="nobody"), "model_not_found", "body.model"),
    "no messages": ({**line("x"), "body": {"model": "talker"}}, "invalid_request", "body.messages"),
    "a stream": (line("x", stream=True), "unsupported_value", "body.stream"),
    "several answers": (line("x", n=2), "unsupported_value", "body.n"),
    "too much": (line("x", padding="x" * 210_000), "too_large", "body"),
    "far too much": (line("x", padding="x" * 3_000_000), "line_too_long", None),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_fails_the_batch_by_its_number_and_nothing_is_run(api: Api, name: str) -> None:
    bad, code, param = BAD_LINES[name]

    batch = ended(api, create(api, jsonl(line("first"), b"", bad, line("last"))).json["id"])

    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    assert batch["errors"]["object"] == "list"
    (fault,) = batch["errors"]["data"]
    assert (fault["code"], fault["line"], fault["param"]) == (code, 3, param), fault
    assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    assert (batch["in_progress_at"], batch["output_file_id"], batch["error_file_id"]) == (None, None, None)
    assert api("GET", f"/v1/jobs?label=jobd.batch:{batch['id']}").json["jobs"] == []
    assert api("GET", f"/v1/groups/{batch_id_as_uuid(batch['id'])}").status == 404


@pytest.mark.parametrize("content", [b"", b"\n\n", b"   "])
def test_a_file_without_lines_fails(api: Api, content: bytes) -> None:
    batch = ended(api, create(api, content).json["id"])

    assert [fault["code"] for fault in batch["errors"]["data"]] == ["empty_file"]


def test_faults_are_listed_up_to_a_hundred(api: Api) -> None:
    batch = ended(api, create(api, b"x\n" * 300).json["id"])

    assert [fault["line"] for fault in batch["errors"]["data"]] == list(range(1, 101))


GOOD_REQUEST = {"endpoint": CHAT, "completion_window": "24h"}
BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "no file": {"input_file_id": None},
    "an unknown file": {"input_file_id": "file-" + "0" * 32},
    "no id of a file": {"input_file_id": "x"},
    "an unknown endpoint": {"endpoint": "/v1/images"},
    "no endpoint": {"endpoint": None},
    "another window": {"completion_window": "1h"},
    "metadata of numbers": {"metadata": {"a": 1}},
    "too much metadata": {"metadata": {str(n): "" for n in range(17)}},
    "a long name": {"metadata": {"x" * 65: ""}},
    "a long value": {"metadata": {"x": "x" * 513}},
    "a short expiry": {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
    "a long expiry": {"output_expires_after": {"anchor": "created_at", "seconds": 2_592_001}},
    "another anchor": {"output_expires_after": {"anchor": "now", "seconds": 3600}},
    "an unknown field": {"color": "red"},
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_makes_no_batch(api: Api, name: str) -> None:
    file_id = send_file(api, jsonl(line("a"))).json["id"]
    before = api("GET", "/v1/batches?limit=1").json

    refused = api("POST", "/v1/batches", {"input_file_id": file_id, **GOOD_REQUEST, **BAD_REQUESTS[name]})

    assert refused.status in (400, 404), refused
    assert refused.json["error"]["type"] == "invalid_request_error"
    assert api("GET", "/v1/batches?limit=1").json == before


def test_a_file_of_another_purpose_is_no_input(api: Api) -> None:
    file_id = send_file(api, jsonl(line("a")), "user_data").json["id"]

    refused = api("POST", "/v1/batches", {"input_file_id": file_id, **GOOD_REQUEST})

    assert (refused.status, refused.json["error"]["param"]) == (400, "input_file_id")


@pytest.mark.parametrize("name", ["batch_", "x", "batch_" + "0" * 32])
def test_an_unknown_batch_is_unknown_everywhere(api: Api, name: str) -> None:
    for method, path in (("GET", f"/{name}"), ("POST", f"/{name}/cancel"), ("GET", f"?after={name}")):
        assert api(method, f"/v1/batches{path}").status == 404
