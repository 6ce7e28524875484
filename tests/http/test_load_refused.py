"""Load that would hurt is refused with a time to come back, and what is there stays as it was."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from jobd.http.heartbeat_limit import MOST_PER_S
from tests.http.test_events import claim, submit
from tests.support.http import Api
from tests.support.sse import Stream
from tests.support.wait import wait_until
from tests.support.workerless import CONFIG, workerless_daemon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd


def test_a_storm_of_heartbeats_is_refused_and_the_lease_is_unharmed(api: Api) -> None:
    held = claim(api, submit(api))
    lease = {name: held[name] for name in ("job_id", "lease_token")}

    before = api("POST", "/internal/worker/heartbeat", {"worker_id": "w1", **lease})
    refused = api("POST", "/internal/worker/heartbeat", {"worker_id": "w1", "jobs": [lease] * (MOST_PER_S + 1)})
    ended = api("POST", "/internal/worker/complete", {**held, "result": 1})

    assert before.json["ok"]
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_heartbeats", "1")
    assert ended.json["ok"]


def test_submits_are_refused_while_the_disk_is_low(jobd: Callable[..., Jobd]) -> None:
    api = Api(jobd(None, JOBD_LIMITS_MIN_FREE_MB="10000000").start().until_ready().address)
    job = {"task": "chat", "payload": {}}

    single, batch = api("POST", "/v1/jobs", job), api("POST", "/v1/jobs/batch", [job])

    for answer in (single, batch):
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "disk_low", "30")
    assert api("GET", "/v1/jobs").json["jobs"] == []


def test_running_dead_letters_again_is_refused_while_their_queue_is_full() -> None:
    with workerless_daemon(CONFIG + "[limits]\nmax_queued = 1\n") as workerless:
        held = workerless.running()
        workerless.fail(held, retryable=False)
        waiting, retry = workerless.submit(), f"/v1/jobs/{held['job_id']}/retry"

        answers = [
            workerless.api("POST", retry),
            workerless.api("POST", "/v1/dlq/retry", {"ids": [held["job_id"]]}),
            workerless.api("POST", "/v1/dlq/retry", {}),
        ]
        workerless.api("POST", f"/v1/jobs/{waiting}/cancel")
        again = workerless.api("POST", retry)

    assert [(answer.status, answer.code) for answer in answers] == [(429, "queue_full")] * 3
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers)
    assert again.status == 202


def test_jobs_that_run_while_the_disk_gets_low_drop_their_log_and_end_well(
    jobd: Callable[..., Jobd], folder: Path
) -> None:
    file = folder / "jobd.toml"
    file.write_text("[queues.told]\nslots = 0\n")
    daemon = jobd(None, "--config", str(file)).start().until_ready()
    api = Api(daemon.address)
    held = claim(api, submit(api))

    def emit(*kinds: str) -> None:
        events = [{"type": kind, "data": {}} for kind in kinds]
        body = {name: held[name] for name in ("worker_id", "job_id", "lease_token")} | {"events": events}
        assert api("POST", "/internal/worker/events", body).json["ok"]

    emit("log", "progress")
    file.write_text("[queues.told]\nslots = 0\n[limits]\nmin_free_mb = 10000000\n")
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: api("POST", "/v1/jobs", {"task": "chat", "payload": {}}).code == "disk_low", daemon.log, 20)
    emit("log", "progress", "token")
    emit("log", "log")
    ended = api("POST", "/internal/worker/complete", {**held, "result": 1})

    with Stream(daemon.address, f"/v1/jobs/{held['job_id']}/events") as stream:
        sent = list(stream)
    assert ended.json["ok"]
    assert [event.type for event in sent] == [
        *("hello", "queued", "running", "log", "progress", "progress", "dropped", "done")
    ]
    assert sent[-2].data["data"] == {"count": 4, "reason": "min_free_mb"}
