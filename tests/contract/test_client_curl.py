"""The client side of the public contract by nothing but curl; its tasks, fields and types are written out here."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.daemon import Jobd

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELDS: dict[str, type | tuple[type, ...]] = {
    "job_id": str,
    "task": str,
    "payload": dict,
    "status": str,
    "created_ts": int,
    "updated_ts": int,
    "ttl_s": int,
    "result": (dict, type(None)),
    "error": (dict, type(None)),
}


class CurlAnswer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Curl:
    def __init__(self, url: str) -> None:
        self._url = url
        self._curl = shutil.which("curl")
        assert self._curl, "curl is missing; this test is about it: apt-get install curl"

    def __call__(self, path: str, *arguments: str) -> CurlAnswer:
        assert self._curl
        run = subprocess.run(
            [self._curl, "--silent", "--show-error", "--include", "--max-time", "15", *arguments, f"{self._url}{path}"],
            capture_output=True,
            text=True,
            check=True,
        )
        head, _, body = run.stdout.replace("\r\n", "\n").partition("\n\n")
        first, *lines = head.splitlines()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return CurlAnswer(int(first.split()[1]), headers, json.loads(body))

    def post(self, path: str, body: str, *arguments: str) -> CurlAnswer:
        return self(path, "--header", "Content-Type: application/json", "--data-binary", body, *arguments)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Jobd]:
    """As it comes, but nobody runs jobs: the worker's part is not this contract's."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    daemon = Jobd(folder / "data", JOBD_QUEUES_DEFAULT_SLOTS="0").start().until_ready()
    yield daemon
    daemon.clean_up()
    shutil.rmtree(folder)


@pytest.fixture
def curl(daemon: Jobd) -> Curl:
    return Curl(daemon.addresses["JOBD_URL"])


@pytest.mark.parametrize("task", ["chat", "plan", "code", "tool", "rag", "embed"])
def test_every_task_of_the_contract_is_accepted_and_can_be_read(curl: Curl, task: str) -> None:
    made = curl.post("/v1/jobs", json.dumps({"task": task, "payload": {"text": "hello"}, "ttl_s": 600}))
    read = curl(made.headers["location"])

    assert (made.status, read.status) == (202, 200)
    for said in (made, read):
        assert list(said.body)[: len(FIELDS)] == list(FIELDS)
        assert all(isinstance(said.body[name], kind) for name, kind in FIELDS.items())
        assert (said.body["task"], said.body["payload"], said.body["ttl_s"]) == (task, {"text": "hello"}, 600)
        assert said.body["status"] == "queued"
    assert str(uuid.UUID(made.body["job_id"])) == made.body["job_id"] == read.body["job_id"]
    assert made.body["created_ts"] == read.body["created_ts"] > 1_600_000_000_000


def test_the_time_to_live_has_a_default(curl: Curl) -> None:
    made = curl.post("/v1/jobs", '{"task": "chat", "payload": {}}')

    assert made.body["ttl_s"] == 86_400


@pytest.mark.parametrize(
    "body",
    ['{"task": "dance", "payload": {}}', '{"task": "chat"}', '{"task": "chat", "payload": "x"}', '{"payload": {}}'],
)
def test_what_is_not_in_the_contract_is_refused(curl: Curl, body: str) -> None:
    said = curl.post("/v1/jobs", body)

    assert (said.status, said.headers["content-type"]) == (422, "application/problem+json")
    assert said.body["detail"]


def test_a_payload_beyond_the_limit_is_refused(curl: Curl, tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_text(json.dumps({"task": "chat", "payload": {"text": "x" * 205_000}}))

    said = curl.post("/v1/jobs", f"@{file}")

    assert said.status == 413


def test_the_same_idempotency_key_leads_to_the_same_job(curl: Curl) -> None:
    header = ("--header", f"Idempotency-Key: {uuid.uuid4()}")

    first, again = (curl.post("/v1/jobs", '{"task": "chat", "payload": {"n": 1}}', *header) for _ in range(2))
    other = curl.post("/v1/jobs", '{"task": "chat", "payload": {"n": 2}}', *header)

    assert (first.status, again.status, other.status) == (202, 202, 422)
    assert first.body["job_id"] == again.body["job_id"]


def test_an_unknown_job_is_not_found(curl: Curl) -> None:
    assert curl(f"/v1/jobs/{uuid.uuid4()}").status == 404


def test_many_jobs_go_as_lines(curl: Curl, tmp_path: Path) -> None:
    file = tmp_path / "jobs.ndjson"
    file.write_text('{"task": "embed", "payload": {"n": 1}}\n{"task": "embed", "payload": {"n": 2}}\n')

    said = curl("/v1/jobs/batch", "--header", "Content-Type: application/x-ndjson", "--data-binary", f"@{file}")

    assert said.status == 202
    reads = [curl(f"/v1/jobs/{job['job_id']}").body["payload"] for job in said.body["jobs"]]
    assert reads == [{"n": 1}, {"n": 2}]


def test_a_canceled_job_ends_a_wait(curl: Curl) -> None:
    made = curl.post("/v1/jobs", '{"task": "chat", "payload": {}}')

    canceled = curl(f"{made.headers['location']}/cancel", "--request", "POST")
    waited = curl(f"{made.headers['location']}?wait_s=10")

    assert (canceled.status, canceled.body["status"]) == (200, "canceled")
    assert waited.body["status"] == "canceled"
