"""Results, queues, workers and dead letters, by both clients; and following a job from now on."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from jobd.client import Gone, NotFound, Refused
from tests.client.test_client_events import Reading, shown
from tests.http.test_events import claim, complete, emit

if TYPE_CHECKING:
    from jobd import Client
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api

#: More than stands in the job itself.
LARGE = {"text": "é" * 60_000}


def dead(client: Client, workers: DatabaseWorkers, task: str) -> str:
    job_id = str(client.submit(task, {}, queue="fast").job_id)
    workers.fail(job_id)
    return job_id


@pytest.mark.parametrize("result", [None, {"a": [1, "é"]}, LARGE], ids=["null", "small", "large"])
def test_a_result_is_read_however_large_it_is(client: Client, api: Api, result: object) -> None:
    job_id = client.submit("chat", {}, queue="told").job_id
    held = claim(api, str(job_id))
    assert api("POST", "/internal/worker/complete", {**held, "result": result}).json["ok"]

    assert client.result(job_id) == result
    assert (client.get(job_id).result_ref is not None) == (result is LARGE)
    assert bytes(client.result_json(job_id))[:1] in (b"n", b"{")


def test_a_job_without_a_result_has_none_to_read(client: Client) -> None:
    job_id = client.submit("chat", {}).job_id

    with pytest.raises(NotFound, match=f"result of job {job_id}: .* is queued and has no result"):
        client.result(job_id)


def test_workers_and_what_they_hold(client: Client, workers: DatabaseWorkers) -> None:
    job_id = client.submit("chat", {}).job_id
    workers.start(str(job_id))

    found = client.workers(limit=1000)

    (worker,) = (worker for worker in found.workers if worker.worker_id == "worker-1")
    assert (worker.kind, worker.jobs >= 1, found.held) == ("http", True, [])
    assert found.total == len(found.workers)
    assert len(client.workers(limit=1, held=1).held) == 1
    with pytest.raises(Refused, match=r"workers: .*limit"):
        client.workers(limit=0)


def test_queues_are_paused_and_resumed(client: Client) -> None:
    paused = client.pause("fast")
    resumed = client.resume("fast")

    assert (paused.name, paused.paused, resumed.paused) == ("fast", True, False)
    with pytest.raises(NotFound, match=r"pause of queue a/b: .*a/b"):
        client.pause("a/b")


def test_jobs_are_counted_and_changed_by_a_filter(client: Client, workers: DatabaseWorkers) -> None:
    labels = {"run": str(uuid.uuid4())}
    waiting = [client.submit("plan", {}, labels=labels).job_id for _ in range(3)]
    dead_ones = [client.submit("plan", {}, labels=labels).job_id for _ in range(2)]
    for job_id in dead_ones:
        workers.fail(str(job_id))

    counts = [client.count(labels=labels, action=action).count for action in ("cancel", "retry", "delete")]
    canceled = client.cancel_jobs(labels=labels, limit=2)
    rest = client.cancel_jobs(labels=labels, before=canceled.next)
    retried = client.retry_jobs(labels=labels, status="error", since=datetime(2020, 1, 1, tzinfo=timezone.utc))
    kept = client.delete_jobs(labels=labels, until=datetime(2020, 1, 1, tzinfo=timezone.utc))
    deleted = client.delete_jobs(labels=labels)

    assert counts == [3, 2, 2]
    assert (canceled.changed, rest.changed, retried.changed) == (2, 1, 2)
    assert (kept.changed, deleted.changed, client.count(labels=labels).count) == (0, 5, 2)
    with pytest.raises(Gone):
        client.get(waiting[0])
    client.cancel_jobs(labels=labels)


def test_dead_letters_are_paged_and_run_again_once(client: Client, workers: DatabaseWorkers) -> None:
    letters = [dead(client, workers, "plan") for _ in range(3)]

    first = client.dead_letters(task="plan", queue="fast", limit=2)
    second = client.dead_letters(task="plan", queue="fast", limit=1, before=first.next)
    by_id = client.retry_dead_letters(ids=letters[:1])
    the_rest = client.retry_dead_letters(task="plan", queue="fast", limit=1000)
    nothing = client.retry_dead_letters(ids=letters)

    assert [str(letter.job_id) for letter in (*first.letters, *second.letters)] == letters[::-1]
    assert (first.letters[0].reason, first.letters[0].redriven_to) == ("not_retryable", None)
    assert [str(retry.old) for retry in by_id.retried] == letters[:1]
    assert {str(retry.old) for retry in the_rest.retried} >= {*letters[1:]}
    assert (nothing.retried, the_rest.next) == ([], None)
    assert str(client.get(by_id.retried[0].new).redriven_from) == letters[0]


def test_dead_letters_are_grouped(client: Client, workers: DatabaseWorkers) -> None:
    job_id = dead(client, workers, "plan")

    group = client.dead_letter_groups().groups[0]

    assert (group.task, str(group.example_id), group.open >= 1) == ("plan", job_id, True)


def test_following_from_now_on_passes_over_what_was(client: Client, api: Api) -> None:
    job_id = str(client.submit("chat", {}, queue="told").job_id)
    held = claim(api, job_id)
    emit(api, held, "a", "b")
    reading = Reading(client, job_id, after="1-1")
    reading.until_seen(1)
    from_now = Reading(client, job_id, after="now")

    complete(api, held)

    assert reading.until_over() == ["1-2 token", "1-3 done"]
    assert from_now.until_over() in (["1-3 done"], [])  # it may have come when all was over
    assert shown(list(client.events(job_id, after="now"))) == []
