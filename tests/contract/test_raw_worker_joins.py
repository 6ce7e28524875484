"""A raw Redis worker joins and leaves a queue whose slots are busy: whoever takes a job, it is run once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.support.http import Api
from tests.support.recorded_runs import RecordedRuns, ask, more_than_once, until_all_are_done
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemon import Jobd

WORKER = Path(__file__).with_name("raw_worker.py")
STREAM, GROUP = "jobs:stream", "workers"
#: Jobs that wait while the load goes on: enough for slots and raw worker, and fewer than the stream's window.
DEPTH, BATCH = 200, 50
#: Jobs that a raw worker runs before it leaves, and slots before the next one joins.
SHARE = 10
#: How long it may take to see a worker and to give it jobs, in seconds.
SEEN_S = 60.0


class Load:
    """Keeps the queue filled, from a thread of its own, until the body ends; `least` jobs or more."""

    def __init__(self, daemon: Jobd, runs: RecordedRuns, client: Any, least: int) -> None:
        self._daemon = daemon
        self._runs = runs
        self._client = client
        self._least = least
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._submit_all)
        self._failed: list[BaseException] = []
        self.job_ids: list[str] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._failed:
            raise self._failed[0]

    def raw_runs(self) -> list[str]:
        found: list[str] = self._client.lrange("test:runs", 0, -1)
        return found

    def _submit_all(self) -> None:
        try:
            while not self._end.wait(0.02) or len(self.job_ids) < self._least:
                if len(self.job_ids) - len(self._runs.begun()) - len(self.raw_runs()) < DEPTH:
                    self._submit()
        except BaseException as error:
            self._failed.append(error)

    def _submit(self) -> None:
        jobs = [{"task": "double", "payload": {"n": len(self.job_ids) + n}} for n in range(BATCH)]
        answer = Api(self._daemon.address)("POST", "/v1/jobs/batch", jobs)
        assert answer.status == 202, answer
        self.job_ids += [entry["job_id"] for entry in answer.json["jobs"]]


@contextlib.contextmanager
def raw_worker(url: str, name: str) -> Iterator[None]:
    """There while the body runs; it finishes the job in its hands before it leaves."""
    process = subprocess.Popen([sys.executable, str(WORKER), url, name])
    try:
        yield
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("jobs", "joins"), [(1500, 3), pytest.param(5000, 12, marks=pytest.mark.slow)])
def test_every_job_is_run_once_while_raw_workers_join_and_leave_under_load(
    jobd: Callable[..., Jobd], folder: Path, jobs: int, joins: int
) -> None:
    runs = RecordedRuns(folder)
    daemon = jobd(None, *runs.arguments(), **runs.variables()).start().until_ready()
    url = daemon.addresses["REDIS_URL"]
    with redis.Redis.from_url(url, decode_responses=True) as client, Load(daemon, runs, client, jobs) as load:
        for n in range(joins):
            _wait_for_more(runs.begun)
            with raw_worker(url, f"raw-{n}"):
                _wait_for_more(load.raw_runs)
            if n % 2:  # some tell Redis that they left, most do not
                client.xgroup_delconsumer(STREAM, GROUP, f"raw-{n}")
    until_all_are_done(daemon)

    begun = [run.job_id for run in runs.begun()]
    with redis.Redis.from_url(url, decode_responses=True) as client:
        begun_by_raw = client.lrange("test:runs", 0, -1)
    assert more_than_once([*begun, *begun_by_raw]) == []
    assert {*begun, *begun_by_raw} == set(load.job_ids)
    assert len(begun_by_raw) >= joins * SHARE
    attempts = ask(daemon, "SELECT outcome::text, count(*) FROM jobd.attempts GROUP BY 1")
    assert [tuple(row) for row in attempts] == [("done", len(load.job_ids))]
    assert daemon.stop() == 0


def _wait_for_more(runs: Callable[[], list[Any]]) -> None:
    enough = len(runs()) + SHARE
    wait_until(lambda: len(runs()) >= enough, "nobody runs jobs", SEEN_S)
