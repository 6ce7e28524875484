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

from tests.support.daemon import poll
from tests.support.depot import Depot, InBackground, depot

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
def yard() -> Iterator[Depot]:
    with depot(SHORT_LEASES + CONFIG, JOBD_LOG_LEVEL="debug") as made:
        yield made


@pytest.fixture(scope="module")
def calm_yard() -> Iterator[Depot]:
    with depot(LONG_LEASES + CONFIG) as made:
        yield made


@contextlib.contextmanager
def worker(yard: Depot, language: str, name: str, work_s: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    url = yard.daemon.addresses["JOBD_URL"]
    process = subprocess.Popen([*WORKERS[language], url, name, str(work_s)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(yard: Depot, job_id: str, status: str) -> Any:
    poll(lambda: yard.read(job_id)["status"] == status, 15, lambda: yard.read(job_id))
    return yard.read(job_id)


def attempts_of(yard: Depot, job_id: str) -> list[tuple[Any, ...]]:
    return yard.rows("SELECT owner_id, outcome FROM attempts WHERE job_id = $1 ORDER BY number", job_id)


@pytest.mark.parametrize("language", LANGUAGES)
def test_jobs_of_both_streams_are_done(yard: Depot, language: str) -> None:
    jobs = [yard.submit(queue=queue, payload={"n": n}) for n, queue in enumerate(["default", "urgent"] * 5)]

    with worker(yard, language, "one"):
        done = [until(yard, job_id, "done") for job_id in jobs]

    assert [job["result"] for job in done] == [{"echo": {"n": n}} for n in range(10)]
    assert {tuple(attempts_of(yard, job_id)) for job_id in jobs} == {(("one", "done"),)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_failure_is_the_jobs_error(yard: Depot, language: str) -> None:
    job_id = yard.submit(payload={"fail": True})

    with worker(yard, language, "one"):
        job = until(yard, job_id, "error")

    assert (job["error"]["message"], job["error"]["retryable"]) == ("asked to", False)
    assert "http_worker" in job["error"]["stack"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_job_that_takes_longer_than_a_lease_is_kept_by_heartbeats(yard: Depot, language: str) -> None:
    job_id = yard.submit()

    with worker(yard, language, "one", 4.5):
        until(yard, job_id, "done")

    assert attempts_of(yard, job_id) == [("one", "done")]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("language", LANGUAGES)
def test_job_of_a_killed_worker_is_finished_by_another(yard: Depot, language: str) -> None:
    job_id = yard.submit()
    with worker(yard, language, "first", 60) as first:
        until(yard, job_id, "running")
        first.kill()

    with worker(yard, language, "second"):
        until(yard, job_id, "done")

    assert attempts_of(yard, job_id) == [("first", "expired"), ("second", "done")]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("language", LANGUAGES)
def test_frozen_worker_that_thaws_changes_nothing(calm_yard: Depot, language: str) -> None:
    yard = calm_yard
    job_id = yard.submit(payload={"fail": True})
    with worker(yard, language, "frozen", 0.5) as frozen:
        until(yard, job_id, "running")
        frozen.send_signal(signal.SIGSTOP)
        held: dict[str, Any] = {"claimed": False}
        while not held["claimed"]:  # a heartbeat that was under way may renew the lease once more
            yard.expire({"job_id": job_id})
            yard.reap()
            held = yard.claim("jobs:stream", worker_id="second", max_wait_ms=2000)
        assert held["job_id"] == job_id

        frozen.send_signal(signal.SIGCONT)
        sent_since = yard.submit(queue="urgent")
        until(yard, sent_since, "done")  # the thawed one is at its next job

    proof = {name: held[name] for name in ("job_id", "attempt_id", "lease_token")}
    assert yard.complete({"worker_id": "second", **proof}, "mine") == {"ok": True, "ack": True}
    assert (yard.read(job_id)["status"], yard.read(job_id)["result"]) == ("done", "mine")


def test_no_lease_token_and_no_payload_is_found_in_the_most_talkative_log(yard: Depot) -> None:
    job_id = yard.submit(payload={"marker": "canary-4711"})
    with worker(yard, "python", "one"):
        until(yard, job_id, "done")

    log = yard.daemon.log_file.read_text()
    tokens = [str(token) for (token,) in yard.rows("SELECT lease_token FROM attempts")]
    assert tokens
    assert [token for token in tokens if token in log] == []
    assert "canary-4711" not in log


@pytest.mark.timeout(180)
def test_stop_ends_waiting_claims_at_once_and_tells_holders_to_be_quiet() -> None:
    with depot() as yard:
        finishing, staying = yard.running(), yard.running()
        waiting = InBackground(yard.claim, "jobs:stream:gpu", max_wait_ms=60_000)
        with yard.locked("attempts"):
            completing = InBackground(yard.complete, finishing, "at last")
            yard.until_someone_waits_for_a_lock()  # a request under way keeps the gateway for a moment
            yard.daemon.signal(signal.SIGTERM)

            no_job = waiting.answer()
            quiet = yard.beat(staying)["quiet"]
            another = yard.claim("jobs:stream:gpu", max_wait_ms=60_000)
        completed = completing.answer()

        assert no_job == another == {"claimed": False, "max_wait_ms": 60_000}
        assert quiet is True
        assert completed == {"ok": True, "ack": True}
        assert yard.daemon.wait() == 0
