"""`GET /v1/rollups`: what ended, by minute and hour, for charts; it survives a kill -9."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
COUNTS = ("done", "error", "canceled", "failed", "expired")


def points(api: Api, **query: Any) -> list[dict[str, Any]]:
    answer = api("GET", "/v1/rollups?" + "&".join(f"{name}={value}" for name, value in query.items()))
    assert (answer.status, answer.json["next_ts"]) == (200, None), answer
    found: list[dict[str, Any]] = answer.json["points"]
    return found


def totals(api: Api, **query: Any) -> dict[str, int]:
    found = points(api, **query)
    return {name: sum(point[name] for point in found) for name in COUNTS}


def until_totals(api: Api, wanted: dict[str, int], **query: Any) -> None:
    wait_until(lambda: totals(api, **query) == wanted, lambda: str(totals(api, **query)))


def test_what_clients_and_workers_end_is_counted_by_queue_and_task(api: Api, workers: DatabaseWorkers) -> None:
    wanted = {"queue": "fast", "task": "rolled"}
    until_totals(api, dict.fromkeys(COUNTS, 0), **wanted)
    made = [api("POST", "/v1/jobs", {"task": "embed", "payload": {}, "queue": "fast"}).json["job_id"] for _ in range(4)]
    workers.rows("UPDATE jobs SET task = 'rolled' WHERE id::text = ANY ($1)", made)  # a name that no other test uses
    workers.finish(made[0])
    workers.fail(made[1])
    workers.fail(made[2], retryable=True)
    api("POST", f"/v1/jobs/{made[3]}/cancel")

    until_totals(api, {"done": 1, "error": 1, "canceled": 1, "failed": 2, "expired": 0}, **wanted)
    until_totals(api, {"done": 1, "error": 1, "canceled": 1, "failed": 2, "expired": 0}, **wanted, step="hour")
    for point in points(api, **wanted):
        assert point["ts"] % MINUTE_MS == 0
        assert len(point["waits"]) == len(point["runs"]) == 14
    assert totals(api, **wanted, until_ts=int(time.time() * 1000) - 2 * HOUR_MS) == dict.fromkeys(COUNTS, 0)


def test_the_bounds_of_the_buckets_are_in_the_answer(api: Api) -> None:
    answer = api("GET", "/v1/rollups?step=hour").json

    assert answer["step"] == "hour"
    assert len(answer["bounds_s"]) == 13
    assert answer["bounds_s"] == sorted(answer["bounds_s"])


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("step=second", "step"),
        ("since_ts=-1", "since_ts"),
        ("since_ts=0", "1440 steps of a minute"),
        ("step=hour&since_ts=0", "744 steps of a hour"),
        (f"since_ts=0&until_ts={DAY_MS + 1}", "1440 steps"),
        ("queue=No%20Name", "queue"),
        ("by=task", "unknown parameter"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(api: Api, query: str, says: str) -> None:
    answer = api("GET", f"/v1/rollups?{query}")

    assert (answer.status, answer.code) == (422, "invalid")
    assert says in answer.json["detail"]


@pytest.mark.parametrize("query", [f"since_ts=0&until_ts={DAY_MS}", "since_ts=5&until_ts=3", "until_ts=0"])
def test_a_time_in_which_nothing_ended_has_no_points(api: Api, query: str) -> None:
    answer = api("GET", f"/v1/rollups?{query}")

    assert (answer.status, answer.json["points"]) == (200, [])


def test_jobs_that_ended_before_a_kill_are_counted_after_it(jobd: Callable[..., Jobd]) -> None:
    daemon = jobd().start().until_ready()
    api = Api(daemon.address)
    for _ in range(5):
        assert api("POST", "/v1/jobs?wait_s=30", {"task": "embed", "payload": {}}).json["status"] == "done"

    daemon.kill()  # before or after the parts were added to their minute
    daemon.start().until_ready()

    until_totals(Api(daemon.address), {"done": 5, "error": 0, "canceled": 0, "failed": 0, "expired": 0})
