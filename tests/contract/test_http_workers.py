"""Workers that know only the worker contract, in two languages, run jobs of a real jobd, die, and stop with it."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.workerless import InBackground, WorkerlessDaemon, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
NODE = shutil.which("node")
WORKERS = {
    "python": [sys.executable, str(HERE / "http_worker.py")],
    "node": [NODE or "node", str(HERE / "http_worker.mjs")],
}
LANGUAGES = ["python", pytest.param("node", marks=pytest.mark.skipif(NODE is None, reason="there is no node here"))]
CONFIG = """
[retry]
base_s = 0
cap_s = 0
[queues.default]
slots = 0
[queues.urgent]
slots = 0
"""
#: Of three seconds, so that a death is noticed soon.
SHORT_LEASES = """
[leases]
ttl_s = 3
heartbeat_s = 0.3
"""
#: That a busy machine does not end by itself.
LONG_LEASES = """
[leases]
ttl_s = 60
heartbeat_s = 0.3
"""


@pytest.fixture(scope="module")
def workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(SHORT_LEASES + CONFIG, JOBD_LOG_LEVEL="debug") as made:
        yield made


@pytest.fixture(scope="module")
def calm_workerless() -> Iterator[WorkerlessDaemon]:
    with workerless_daemon(LONG_LEASES + CONFIG) as made:
        yield made


@contextlib.contextmanager
def worker(
    workerless: WorkerlessDaemon, language: str, name: str, work_s: float = 0.0
) -> Iterator[subprocess.Popen[bytes]]:
    url = workerless.daemon.addresses["JOBD_URL"]
    process = subprocess.Popen([*WORKERS[language], url, name, str(work_s)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def attempts_of(workerless: WorkerlessDaemon, job_id: str) -> list[tuple[Any, ...]]:
    return workerless.rows("SELECT owner_id, outcome FROM attempts WHERE job_id = $1 ORDER BY number", job_id)


@pytest.mark.parametrize("language", LANGUAGES)
def test_jobs_of_both_streams_are_done(workerless: WorkerlessDaemon, language: str) -> None:
    jobs = [workerless.submit(queue=queue, payload={"n": n}) for n, queue in enumerate(["default", "urgent"] * 5)]

    with worker(workerless, language, "one"):
        done = [workerless.wait_for_status(job_id, "done") for job_id in jobs]

    assert [job["result"] for job in done] == [{"echo": {"n": n}} for n in range(10)]
    assert {tuple(attempts_of(workerless, job_id)) for job_id in jobs} == {(("one", "done"),)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_failure_is_the_jobs_error(workerless: WorkerlessDaemon, language: str) -> None:
    job_id = workerless.submit(payload={"fail": True})

    with worker(workerless, language, "one"):
        job = workerless.wait_for_status(job_id, "error")

    assert (job["error"]["message"], job["error"]["retryable"]) == ("asked to", False)
    assert "http_worker" in job["error"]["stack"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_job_that_takes_longer_than_a_lease_is_kept_by_heartbeats(workerless: WorkerlessDaemon, language: str) -> None:
    job_id = workerless.submit()

    with worker(workerless, language, "one", 4.5):
        workerless.wait_for_status(job_id, "done")

    assert attempts_of(workerless, job_id) == [("one", "done")]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("language", LANGUAGES)
def test_job_of_a_killed_worker_is_finished_by_another(workerless: WorkerlessDaemon, language: str) -> None:
    job_id = workerless.submit()
    with worker(workerless, language, "first", 60) as first:
        workerless.wait_for_status(job_id, "running")
        first.kill()

    with worker(workerless, language, "second"):
        workerless.wait_for_status(job_id, "done")

    assert attempts_of(workerless, job_id) == [("first", "expired"), ("second", "done")]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("language", LANGUAGES)
def test_frozen_worker_that_thaws_changes_nothing(calm_workerless: WorkerlessDaemon, language: str) -> None:
    workerless = calm_workerless
    job_id = workerless.submit(payload={"fail": True})
    with worker(workerless, language, "frozen", 0.5) as frozen:
        workerless.wait_for_status(job_id, "running")
        frozen.send_signal(signal.SIGSTOP)
        held: dict[str, Any] = {"claimed": False}
        while not held["claimed"]:  # a heartbeat that was under way may renew the lease once more
            workerless.expire({"job_id": job_id})
            workerless.reap()
            held = workerless.claim("jobs:stream", worker_id="second", max_wait_ms=2000)
        assert held["job_id"] == job_id

        frozen.send_signal(signal.SIGCONT)
        sent_since = workerless.submit(queue="urgent")
        workerless.wait_for_status(sent_since, "done")  # the thawed one is at its next job

    proof = {name: held[name] for name in ("job_id", "attempt_id", "lease_token")}
    assert workerless.complete({"worker_id": "second", **proof}, "mine") == {"ok": True, "ack": True}
    assert (workerless.read(job_id)["status"], workerless.read(job_id)["result"]) == ("done", "mine")


def test_no_lease_token_and_no_payload_is_found_in_the_most_talkative_log(workerless: WorkerlessDaemon) -> None:
    job_id = workerless.submit(payload={"marker": "canary-4711"})
    with worker(workerless, "python", "one"):
        workerless.wait_for_status(job_id, "done")

    log = workerless.daemon.log_file.read_text()
    tokens = [str(token) for (token,) in workerless.rows("SELECT lease_token FROM attempts")]
    assert tokens
    assert [token for token in tokens if token in log] == []
    assert "canary-4711" not in log


@pytest.mark.timeout(180)
def test_stop_ends_waiting_claims_at_once_and_tells_holders_to_be_quiet() -> None:
    with workerless_daemon() as workerless:
        finishing, staying = workerless.running(), workerless.running()
        waiting = InBackground(workerless.claim, "jobs:stream:gpu", max_wait_ms=60_000)
        with workerless.locked("attempts"):
            completing = InBackground(workerless.complete, finishing, "at last")
            workerless.until_someone_waits_for_a_lock()  # a request under way keeps the gateway for a moment
            workerless.daemon.signal(signal.SIGTERM)

            no_job = waiting.answer()
            quiet = workerless.beat(staying)["quiet"]
            another = workerless.claim("jobs:stream:gpu", max_wait_ms=60_000)
        completed = completing.answer()

        assert no_job == another == {"claimed": False, "max_wait_ms": 60_000}
        assert quiet is True
        assert completed == {"ok": True, "ack": True}
        assert workerless.daemon.wait() == 0
