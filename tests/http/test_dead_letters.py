"""`/v1/dlq`: what ended in error, and running many of them again."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api


@pytest.fixture(autouse=True)
def no_letters(workers: DatabaseWorkers) -> None:
    workers.prune()


def bury(api: Api, workers: DatabaseWorkers, **fields: Any) -> str:
    job_id: str = api("POST", "/v1/jobs", {"task": "embed", "payload": {}, **fields}).json["job_id"]
    workers.fail(job_id)
    return job_id


def letters(api: Api, query: str = "") -> list[str]:
    return [letter["job_id"] for letter in api("GET", f"/v1/dlq{query}").json["letters"]]


def test_dead_letters_are_listed_newest_first_by_queue_and_task(api: Api, workers: DatabaseWorkers) -> None:
    first, second = bury(api, workers), bury(api, workers, queue="fast", task="chat")

    assert letters(api) == [second, first]
    assert letters(api, "?queue=fast") == letters(api, "?task=chat") == [second]
    assert letters(api, "?queue=fast&task=embed") == []
    (letter,) = api("GET", "/v1/dlq?queue=fast").json["letters"]
    assert (letter["reason"], letter["redriven_to"]) == ("not_retryable", None)


def test_dead_letters_are_grouped_by_error_and_task(api: Api, workers: DatabaseWorkers) -> None:
    first, second, other = bury(api, workers), bury(api, workers), bury(api, workers, task="chat")
    api("POST", "/v1/dlq/retry", {"ids": [first]})

    answer = api("GET", "/v1/dlq/groups").json

    shown = [(group["task"], group["count"], group["open"], group["example_id"]) for group in answer["groups"]]
    assert shown == [("chat", 1, 1, other), ("embed", 2, 1, second)]
    assert answer["exact"] is True
    assert api("GET", f"/v1/jobs?error={answer['groups'][0]['error']}&task=chat").json["jobs"][0]["job_id"] == other
    assert api("GET", "/v1/dlq/groups?queue=fast").code == "invalid"


def test_pages_of_dead_letters_follow_each_other(api: Api, workers: DatabaseWorkers) -> None:
    made = [bury(api, workers) for _ in range(3)]

    first = api("GET", "/v1/dlq?limit=2").json
    second = api("GET", f"/v1/dlq?limit=2&before={first['next']}").json

    assert [letter["job_id"] for page in (first, second) for letter in page["letters"]] == made[::-1]
    assert second["next"] is None


def test_a_filtered_redrive_runs_what_fits_and_each_once(api: Api, workers: DatabaseWorkers) -> None:
    fits = [bury(api, workers, queue="fast") for _ in range(3)]
    bury(api, workers)

    first = api("POST", "/v1/dlq/retry", {"queue": "fast"})
    again = api("POST", "/v1/dlq/retry", {"queue": "fast"})

    assert first.status == 200
    assert sorted(retry["from"] for retry in first.json["retried"]) == sorted(fits)
    for retry in first.json["retried"]:
        assert api("GET", f"/v1/jobs/{retry['to']}").json["redriven_from"] == retry["from"]
    assert again.json == {"retried": [], "next": None}


def test_a_redrive_goes_on_where_it_left_off(api: Api, workers: DatabaseWorkers) -> None:
    made = [bury(api, workers) for _ in range(3)]

    first = api("POST", "/v1/dlq/retry", {"limit": 2}).json
    second = api("POST", "/v1/dlq/retry", {"limit": 2, "before": first["next"]}).json

    assert [len(first["retried"]), len(second["retried"]), second["next"]] == [2, 1, None]
    assert {retry["from"] for retry in first["retried"] + second["retried"]} == set(made)


def test_a_redrive_by_ids_takes_dead_letters_only(api: Api, workers: DatabaseWorkers) -> None:
    dead = bury(api, workers)
    queued = api("POST", "/v1/jobs", {"task": "embed", "payload": {}}).json["job_id"]

    answer = api("POST", "/v1/dlq/retry", {"ids": [queued, dead, str(uuid.uuid4()), dead]})

    assert [retry["from"] for retry in answer.json["retried"]] == [dead]


def test_redrives_at_the_same_time_run_each_letter_once(api: Api, workers: DatabaseWorkers) -> None:
    made = [bury(api, workers) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: api("POST", "/v1/dlq/retry", {"ids": made}).json["retried"], range(8)))

    assert sorted(retry["from"] for answer in answers for retry in answer) == sorted(made)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"limit": 0}, 422, "invalid"),
        ({"limit": 1001}, 422, "invalid"),
        ({"ids": []}, 422, "invalid"),
        ({"ids": ["x"]}, 422, "invalid"),
        ({"ids": [str(uuid.uuid4())] * 1001}, 422, "invalid"),
        ({"ids": [str(uuid.uuid4())], "queue": "fast"}, 422, "invalid"),
        ({"before": "x"}, 422, "invalid"),
        ({"que": "fast"}, 422, "invalid"),
        ([], 422, "not_object"),
        (b"", 400, "not_json"),
        (b"x" * 70_000, 413, "body_too_large"),
    ],
)
def test_a_bad_redrive_is_refused_without_a_trace(
    api: Api, workers: DatabaseWorkers, body: Any, status: int, code: str
) -> None:
    bury(api, workers)
    before = workers.traces()

    answer = api("POST", "/v1/dlq/retry", body)

    assert (answer.status, answer.code) == (status, code)
    assert workers.traces() == before
