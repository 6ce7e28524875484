"""`client.files` and `client.batches` of openai-python, unchanged."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import openai
import pytest

from tests.support.daemon import Jobd
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT: Final = "/v1/chat/completions"
CONFIG = """
[tickets]
enabled = false
[models.talker]
task = "chat"
"""


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    (folder / "jobd.toml").write_text(CONFIG)
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml")).start().until_ready()
    with openai.OpenAI(base_url=f"http://{daemon.address}/v1", api_key="any", max_retries=0) as client:
        yield client
    daemon.clean_up()
    shutil.rmtree(folder)


def lines(number: int, **fields: Any) -> bytes:
    body = {"model": "talker", "messages": [{"role": "user", "content": "hi"}], "seconds": 0, **fields}
    calls = ({"custom_id": str(n), "method": "POST", "url": CHAT, "body": body} for n in range(number))
    return b"".join(json.dumps(call).encode() + b"\n" for call in calls)


def send(client: openai.OpenAI, content: bytes) -> openai.types.FileObject:
    return client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")


def test_files_are_sent_listed_read_and_deleted(client: openai.OpenAI) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(file=("a.bin", b"\x00\xff"), purpose="user_data", expires_after=expiry)
    more = [send(client, b"x").id for _ in range(3)]

    assert (file.bytes, file.filename, file.purpose, file.status) == (2, "a.bin", "user_data", "processed")
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == b"\x00\xff"
    assert [each.id for each in client.files.list(limit=2, order="asc")][:4] == [file.id, *more]
    assert file.id not in [each.id for each in client.files.list(purpose="batch")]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=b"x", purpose="fine-tune")
    assert refused.value.param == "purpose"


def test_a_batch_is_made_waited_for_and_read(client: openai.OpenAI) -> None:
    file = send(client, lines(3))
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"of": "test"}
    )
    first = batch.status

    done = wait_until(lambda: (now := client.batches.retrieve(batch.id)).status == "completed" and now)
    assert done
    answers = [json.loads(text) for text in client.files.content(done.output_file_id or "").text.splitlines()]

    assert (first, batch.metadata) == ("validating", {"of": "test"})
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 3, 0)
    assert done.usage is not None
    assert [answer["custom_id"] for answer in answers] == ["0", "1", "2"]
    completion = openai.types.chat.ChatCompletion.model_validate(answers[0]["response"]["body"])
    assert completion.choices[0].message.content
    assert batch.id in [each.id for each in client.batches.list(limit=1)]


def test_a_batch_is_cancelled(client: openai.OpenAI) -> None:
    file = send(client, lines(20, seconds=600))
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    wait_until(lambda: client.batches.retrieve(batch.id).status == "cancelled")
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_a_bad_file_fails_with_the_number_of_its_line(client: openai.OpenAI) -> None:
    file = send(client, lines(1) + b"{\n")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

    failed = wait_until(lambda: (now := client.batches.retrieve(batch.id)).status == "failed" and now)

    assert failed
    assert failed.errors is not None
    assert failed.errors.data is not None
    assert [(fault.code, fault.line) for fault in failed.errors.data] == [("invalid_json_line", 2)]
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)
