"""What workers are told while a server is away: without Redis they work on, without Postgres nobody says `ack`."""

from __future__ import annotations

import contextlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import servers
from tests.support.workerless import CONFIG, workerless_daemon

if TYPE_CHECKING:
    from pathlib import Path


def post(address: str, path: str, body: Any) -> tuple[http.client.HTTPResponse, Any]:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=50)) as line:
        line.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = line.getresponse()
        return answer, json.loads(answer.read())


@pytest.mark.timeout(180)
def test_without_redis_a_claim_still_names_the_stream(folder: Path) -> None:
    with servers.valkey(folder) as redis_url, workerless_daemon(CONFIG, JOBD_REDIS_URL=redis_url) as workerless:
        servers.kill_valkey(folder)
        job_id = workerless.submit(queue="gpu")

        claimed = workerless.claim("jobs:stream", "jobs:stream:gpu", max_wait_ms=15_000)

        assert (claimed["job_id"], claimed["stream"], claimed["message_id"]) == (job_id, "jobs:stream:gpu", "")
        proof = {name: claimed[name] for name in ("job_id", "attempt_id", "lease_token", "stream", "message_id")}
        assert workerless.complete({"worker_id": "w-1", **proof}, 1) == {"ok": True, "ack": True}


@pytest.mark.timeout(300)
def test_without_postgres_neither_a_report_nor_a_submit_is_taken(folder: Path) -> None:
    with contextlib.ExitStack() as outside:
        url = outside.enter_context(servers.postgres(folder))
        with workerless_daemon(CONFIG, JOBD_POSTGRES_URL=url) as workerless:
            held = workerless.running()
            outside.close()

            proof = {name: value for name, value in held.items() if name != "worker_id"}
            sent: list[tuple[str, Any]] = [
                ("/internal/worker/complete", {**held, "result": {}}),
                ("/internal/worker/complete/batch", {"worker_id": "w-1", "jobs": [{**proof, "result": {}}]}),
                ("/v1/jobs", {"task": "chat", "payload": {}}),
            ]
            with ThreadPoolExecutor() as at_once:  # each is answered only when jobd has waited for Postgres
                answers = list(at_once.map(lambda one: post(workerless.daemon.address, *one), sent))

            for answer, said in answers:
                assert (answer.status, said["code"], answer.headers["Retry-After"]) == (503, "unavailable", "1")
                assert "ack" not in said
                assert "job_id" not in said
            assert held["lease_token"] not in workerless.daemon.log_file.read_text()
