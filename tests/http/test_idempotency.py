"""Idempotency-Key: the same request again leads to the same job, whoever else sends the same key."""

from __future__ import annotations

import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Answer

BODY = b'{"task":"embed","payload":{"n":1},"ttl_s":77}'


def send(api: Api, key: str, body: bytes = BODY, path: str = "/v1/jobs") -> Answer:
    return api("POST", path, body, {"Idempotency-Key": key})


@pytest.fixture
def key() -> str:
    return f"order/{uuid.uuid4()}"


def test_the_same_key_and_body_lead_to_the_same_job(api: Api, key: str) -> None:
    first, again = send(api, key), send(api, key)

    assert (first.status, again.status) == (202, 202)
    assert again.headers["location"] == first.headers["location"]
    assert "existing" not in first.json
    assert again.json["existing"] is True
    known = first.json.keys()
    assert {name: again.json[name] for name in known} == first.json


@pytest.mark.parametrize("other", [BODY.replace(b":1", b":2"), BODY + b" "])
def test_another_body_with_the_same_key_is_a_mistake(
    api: Api, workers: DatabaseWorkers, key: str, other: bytes
) -> None:
    send(api, key)
    before = workers.traces()

    answer = send(api, key, other)

    assert (answer.status, answer.code) == (422, "idempotency_mismatch")
    assert workers.traces() == before


def test_a_key_outlives_its_job_being_finished(api: Api, workers: DatabaseWorkers, key: str) -> None:
    first = send(api, key).json
    workers.finish(first["job_id"])

    again = send(api, key).json

    assert (again["job_id"], again["status"], again["existing"]) == (first["job_id"], "done", True)


def test_a_key_whose_job_is_gone_says_so(api: Api, workers: DatabaseWorkers, key: str) -> None:
    workers.finish(send(api, key).json["job_id"])
    workers.prune()

    answer = send(api, key)

    assert (answer.status, answer.code) == (410, "gone_job")


def test_a_refused_submit_leaves_the_key_free(api: Api, key: str) -> None:
    refused = send(api, key, BODY.replace(b"embed", b"fly"))

    assert (refused.status, send(api, key).status) == (422, 202)


def test_fifty_at_once_with_one_key_make_one_job(api: Api, workers: DatabaseWorkers, key: str) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: send(api, key), range(50)))

    assert [answer.status for answer in answers] == [202] * 50
    (job_id,) = {answer.json["job_id"] for answer in answers}
    assert [answer.json.get("existing", False) for answer in answers].count(False) == 1
    assert workers.rows("SELECT job_id::text FROM idempotency_keys WHERE key = $1", key) == [(job_id,)]


@pytest.mark.parametrize("key", ["!", "~" * 255, '"quoted"', "a,b;c=d"])
def test_every_visible_character_may_stand_in_a_key(api: Api, key: str) -> None:
    assert send(api, key).json["job_id"] == send(api, key).json["job_id"]


# Batches


def test_the_same_batch_again_leads_to_the_same_jobs(api: Api, key: str) -> None:
    batch = b"[%s,%s]" % (BODY, BODY)

    first, again = (send(api, key, batch, "/v1/jobs/batch").json["jobs"] for _ in range(2))

    assert [one["job_id"] for one in again] == [one["job_id"] for one in first]
    assert [one["existing"] for one in (*first, *again)] == [False, False, True, True]
    assert first[0]["job_id"] != first[1]["job_id"]


@pytest.mark.parametrize("other", [b"[%s]" % BODY, b"[%s,%s,%s]" % (BODY, BODY, BODY)])
def test_another_batch_with_the_same_key_is_a_mistake(
    api: Api, workers: DatabaseWorkers, key: str, other: bytes
) -> None:
    send(api, key, b"[%s,%s]" % (BODY, BODY), "/v1/jobs/batch")
    before = workers.traces()

    answer = send(api, key, other, "/v1/jobs/batch")

    assert (answer.status, answer.code, answer.json["index"]) == (422, "idempotency_mismatch", 0)
    assert workers.traces() == before


def test_a_batch_and_a_single_job_may_have_the_same_key(api: Api, key: str) -> None:
    batch = send(api, key, b"[%s]" % BODY, "/v1/jobs/batch").json["jobs"]

    single = send(api, key)

    assert single.status == 202
    assert single.json["job_id"] != batch[0]["job_id"]


# The copy in Redis


def client(daemon: Jobd) -> Any:
    return redis.Redis.from_url(daemon.addresses["REDIS_URL"], decode_responses=True)


def test_redis_learns_which_job_a_key_stands_for(api: Api, daemon: Jobd, key: str) -> None:
    job = send(api, key).json

    with client(daemon) as connection:
        wait_until(lambda: connection.get(f"idempotency:{key}") is not None, daemon.log, 10)
        assert connection.get(f"idempotency:{key}") == job["job_id"]
        assert 0 < connection.ttl(f"idempotency:{key}") <= 77


def test_redis_learns_of_all_keys_though_they_come_at_once(api: Api, daemon: Jobd, key: str) -> None:
    keys = [f"{key}-{n}" for n in range(50)]

    with ThreadPoolExecutor(10) as pool:
        jobs = [answer.json["job_id"] for answer in pool.map(lambda one: send(api, one), keys)]

    with client(daemon) as connection:
        wait_until(lambda: connection.mget([f"idempotency:{one}" for one in keys]) == jobs, daemon.log, 10)


def test_a_redis_that_hangs_or_is_away_changes_no_answer(jobd: Callable[..., Jobd], folder: Any) -> None:
    daemon = jobd(folder / "data", JOBD_QUEUES_DEFAULT_SLOTS="0").start().until_ready()
    api, valkey = Api(daemon.address), daemon.server_pid("valkey")
    answers = []

    for number in (signal.SIGSTOP, signal.SIGKILL):
        os.kill(valkey, number)
        answers += [send(api, "one"), send(api, "two"), send(api, "one")]

    assert [answer.status for answer in answers] == [202] * 6
    assert len({answer.json["job_id"] for answer in answers}) == 2
    assert api("GET", "/v1/stats").json["totals"]["queued"] == 2
