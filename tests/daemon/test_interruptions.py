"""A job that takes its node down with it: the others go on, and it ends as a dead letter that says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemon import READY_S, run_jobd
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

CONFIG = """
[retry]
max_attempts = 1
base_s = 0.05
cap_s = 0.1
[tasks.poison]
run = "python"
handler = "jobd.chaos.handlers:take_down"
max_interruptions = 2
[tasks.chaos]
run = "python"
handler = "jobd.chaos.handlers:work"
"""


@pytest.mark.timeout(240)
def test_job_that_kills_its_node_ends_as_a_dead_letter_and_others_do_not(
    jobd: Callable[..., Jobd], folder: Path
) -> None:
    (folder / "jobd.toml").write_text(CONFIG)
    daemon = jobd(None, "--config", str(folder / "jobd.toml"), CHAOS_RUNS_FILE=str(folder / "runs")).start()
    api = submit_to(daemon.until_ready())
    beside = api("POST", "/v1/jobs", {"task": "chaos", "payload": {"kind": "long", "n": 1}}).json["job_id"]
    poison = api("POST", "/v1/jobs", {"task": "poison", "payload": {}}).json["job_id"]

    for _ in range(3):
        daemon.wait()
        daemon.start()  # the job may run, and kill it, before it is ready
    daemon.until_ready()

    job = ended(daemon, poison)
    assert (job["status"], job["error"]["code"]) == ("error", "interruptions_exhausted")
    assert (job["attempt_count"], job["interruptions"]) == (0, 3)
    assert [attempt["outcome"] for attempt in job["attempts"]] == ["interrupted"] * 3
    letters = submit_to(daemon)("GET", "/v1/dlq").json["letters"]
    assert [(letter["job_id"], letter["reason"]) for letter in letters] == [(poison, "interruptions_exhausted")]
    assert ended(daemon, beside)["status"] == "done"
    shown = run_jobd("get", poison, "--url", daemon.addresses["JOBD_URL"]).stdout
    assert "3 times by the stop of its node" in shown
    assert daemon.stop() == 0


def submit_to(daemon: Jobd) -> Api:
    return Api(daemon.address)


def ended(daemon: Jobd, job_id: str) -> dict[str, Any]:
    def final() -> dict[str, Any] | None:
        job: dict[str, Any] = submit_to(daemon)("GET", f"/v1/jobs/{job_id}").json
        return job if job["status"] in ("done", "error", "canceled") else None

    job = wait_until(final, daemon.log, READY_S)
    assert job is not None
    return job
