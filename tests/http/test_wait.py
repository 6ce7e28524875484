"""`GET /v1/jobs/{id}?wait_s=`: the answer comes when the job is final, when the time is over, or when jobd stops."""

from __future__ import annotations

import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from jobd.follow import jobs as tailer_module
from jobd.http.wait import wait_for_end
from jobd.job.history import HandlerEvent
from jobd.lifecycle.events import EventBatch, read_history
from tests.support.database_workers import database_workers
from tests.support.http import Api
from tests.support.node import tailing
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from uuid import UUID

    from jobd.follow.jobs import Tailer
    from jobd.job.history import Record
    from jobd.lifecycle.events import HistoryPlace
    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.node import Node


#: A session whose last statement read the job, before the wait.
#: The wait has read its job, or is being polled, which goes on: other statements take the place of the last one.
WAITS = """
    SELECT FROM pg_stat_activity
    WHERE (query LIKE '-- name: read_whole_job%' OR query LIKE '-- name: read_history%') AND pid <> pg_backend_pid()
"""


def submit(api: Api) -> str:
    job_id: str = api("POST", "/v1/jobs", {"task": "embed", "payload": {}}).json["job_id"]
    return job_id


# Over HTTP


def test_a_wait_ends_with_the_job(api: Api, workers: DatabaseWorkers) -> None:
    ids = [submit(api) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        answers = pool.map(lambda job_id: api("GET", f"/v1/jobs/{job_id}?wait_s=14"), ids)
        for job_id in ids[:10]:
            workers.finish(job_id)
        for job_id in ids[10:]:
            api("POST", f"/v1/jobs/{job_id}/cancel")

    found = list(answers)
    assert [answer.json["status"] for answer in found] == ["done"] * 10 + ["canceled"] * 10, found


@pytest.mark.parametrize("wait_s", ["0", "0.2"])
def test_a_wait_that_is_over_answers_with_the_job_as_it_stands(api: Api, wait_s: str) -> None:
    answer = api("GET", f"/v1/jobs/{submit(api)}?wait_s={wait_s}")

    assert (answer.status, answer.json["status"]) == (200, "queued")


def test_a_final_job_needs_no_wait(api: Api, workers: DatabaseWorkers) -> None:
    job_id = submit(api)
    workers.finish(job_id)

    assert api("GET", f"/v1/jobs/{job_id}?wait_s=60").json["status"] == "done"


@pytest.mark.parametrize("wait_s", ["-1", "61", "x", "", "nan", "inf", "1e400", "1&wait_s=2"])
def test_a_bad_wait_is_refused(api: Api, wait_s: str) -> None:
    answer = api("GET", f"/v1/jobs/{submit(api)}?wait_s={wait_s}")

    assert (answer.status, answer.code) == (422, "invalid")


def job_with(workers: DatabaseWorkers, mark: str) -> str:
    """The job that another thread submits with this mark in its payload, once it is there."""
    query = "SELECT id::text FROM jobs WHERE payload->>'mark' = $1"
    return str(wait_until(lambda: workers.rows(query, mark), f"no job has the mark {mark}", 10)[0][0])


def test_a_submit_that_waits_is_answered_with_the_job_that_has_ended(api: Api, workers: DatabaseWorkers) -> None:
    mark = uuid.uuid4().hex
    with ThreadPoolExecutor(1) as pool:
        body = {"task": "embed", "payload": {"mark": mark}}
        waiting = pool.submit(api, "POST", "/v1/jobs?wait_s=30", body)
        job_id = job_with(workers, mark)
        workers.finish(job_id)
        answer = waiting.result()

    assert (answer.status, answer.json["status"], answer.json["result"]) == (200, "done", {"ok": True})
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"


@pytest.mark.parametrize("wait_s", ["0", "0.2"])
def test_a_submit_whose_wait_is_over_is_accepted_all_the_same(api: Api, wait_s: str) -> None:
    answer = api("POST", f"/v1/jobs?wait_s={wait_s}", {"task": "embed", "payload": {}})

    assert (answer.status, answer.json["status"]) == (202, "queued")


def test_a_submit_with_a_key_that_waits_again_is_answered_with_the_same_job(api: Api, workers: DatabaseWorkers) -> None:
    body, key = {"task": "embed", "payload": {}}, {"Idempotency-Key": uuid.uuid4().hex}
    first = api("POST", "/v1/jobs?wait_s=0.1", body, key)
    workers.finish(first.json["job_id"])

    again = api("POST", "/v1/jobs?wait_s=30", body, key)

    assert (first.status, again.status, again.json["status"]) == (202, 200, "done")
    assert again.json["job_id"] == first.json["job_id"]


@pytest.mark.parametrize("wait_s", ["-1", "61", "x", "", "nan", "1&wait_s=2", "1&other=2"])
def test_a_submit_with_a_bad_wait_makes_no_job(api: Api, workers: DatabaseWorkers, wait_s: str) -> None:
    mark = uuid.uuid4().hex

    answer = api("POST", f"/v1/jobs?wait_s={wait_s}", {"task": "embed", "payload": {"mark": mark}})

    assert (answer.status, answer.code) == (422, "invalid")
    assert not workers.rows("SELECT FROM jobs WHERE payload->>'mark' = $1", mark)


def test_one_does_not_wait_for_an_unknown_job(api: Api) -> None:
    assert api("GET", f"/v1/jobs/{uuid.uuid4()}?wait_s=60").status == 404


def test_a_wait_ends_when_jobd_stops(jobd: Callable[..., Jobd], folder: Path) -> None:
    daemon = jobd(folder / "data", JOBD_QUEUES_DEFAULT_SLOTS="0").start().until_ready()
    api = Api(daemon.address)
    job_id = submit(api)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api, "GET", f"/v1/jobs/{job_id}?wait_s=60")
        with database_workers(daemon.addresses["DATABASE_URL"]) as workers:
            wait_until(lambda: workers.rows(WAITS), daemon.log, 10)

        daemon.signal(signal.SIGTERM)

        assert waiting.result().json["status"] == "queued"
    assert daemon.wait() == 0


# One tailer for all


async def wait_for_job(tailer: Tailer, request: Request, job_id: UUID, wait_s: float) -> None:
    with tailer.waiting(job_id) as waiter:
        await wait_for_end(request, waiter, wait_s)


async def test_many_waits_share_one_statement(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    async def watched(connection: Any, places: Sequence[HistoryPlace]) -> list[Record | None]:
        reads.append(len(places))
        return await read_history(connection, places)

    monkeypatch.setattr(tailer_module, "read_history", watched)
    jobs = [await node.enqueue() for _ in range(100)]

    with anyio.fail_after(30):
        async with tailing(node, elsewhere=True) as tailer, anyio.create_task_group() as tasks:
            for job in jobs:
                tasks.start_soon(wait_for_job, tailer, request_from(anyio.sleep_forever), job.id, 60)
            while not reads:
                await anyio.sleep(0.01)
            await node.engine.cancel([job.id for job in jobs])

    assert max(reads) == 100
    assert len(reads) < 40


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_wait_is_told_of_the_end_alone(node: Node, elsewhere: bool) -> None:
    async with tailing(node, elsewhere=elsewhere) as tailer:
        waiting = await node.enqueue()
        with anyio.fail_after(30), tailer.waiting(waiting.id) as waiter:
            job = await node.claim(waiting)
            told = EventBatch(job_id=job.job_id, lease_token=job.lease_token, events=[HandlerEvent("token", 1)])
            await node.engine.emit(told)
            assert not waiter.is_over
            await node.done(job)
            while not waiter.is_over:
                assert await waiter.next(10) == b""


async def test_a_wait_that_came_too_late_is_over_all_the_same(node: Node) -> None:
    job = await node.claim(await node.enqueue())
    await node.done(job)

    async with tailing(node) as tailer:
        with anyio.fail_after(30):
            await wait_for_job(tailer, request_from(anyio.sleep_forever), job.job_id, 60)


async def test_a_job_that_is_deleted_ends_its_wait(node: Node) -> None:
    async with tailing(node) as tailer:
        with anyio.fail_after(30):
            await wait_for_job(tailer, request_from(anyio.sleep_forever), uuid.uuid4(), 60)


async def test_a_wait_outlasts_a_database_that_is_away(node: Node) -> None:
    job = await node.enqueue()

    with anyio.fail_after(30):
        async with tailing(node) as tailer, anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_job, tailer, request_from(anyio.sleep_forever), job.id, 60)
            pool, node.database._pool = node.database._pool, None
            await anyio.sleep(0.2)
            node.database._pool = pool
            await node.engine.cancel([job.id])


def request_from(receive: Any) -> Request:
    app = Starlette()
    app.state.in_flight = SimpleNamespace(closing=anyio.Event(), on_closing=set())
    return Request({"type": "http", "app": app}, receive)


async def test_a_wait_ends_when_the_client_hangs_up(node: Node) -> None:
    messages = iter(["http.request", "http.disconnect"])

    async def receive() -> dict[str, Any]:
        return {"type": next(messages)}

    job = await node.enqueue()
    async with tailing(node) as tailer:
        with anyio.fail_after(30):
            await wait_for_job(tailer, request_from(receive), job.id, 60)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_wait_ends_when_the_gateway_closes(node: Node, when: str) -> None:
    request = request_from(anyio.sleep_forever)
    job = await node.enqueue()
    in_flight = request.app.state.in_flight
    if when == "before":
        in_flight.closing.set()

    async with tailing(node) as tailer:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_job, tailer, request, job.id, 60)
                while when == "meanwhile" and not in_flight.on_closing:
                    await anyio.sleep(0.01)
                for call in list(in_flight.on_closing):
                    call()
