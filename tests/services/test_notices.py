"""Notices: every commit of the engine says which jobs it changed and how, and one that changes nothing says nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.config.model import Config, Limits
from jobd.engine.engine import Engine
from jobd.job.history import HandlerEvent
from jobd.job.model import AlreadyFinished
from jobd.lifecycle.claim import Ask, ClaimedJob
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.enqueue import Existing, QueueFull
from jobd.lifecycle.events import EventBatch
from jobd.lifecycle.fail import Failure
from jobd.lifecycle.notices import Notice
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from tests.support.claims import take_any
from tests.support.factories import new_job
from tests.support.node import new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from uuid import UUID

    from jobd.lifecycle.enqueue import NewJob
    from jobd.lifecycle.notices import Changes


class HeardEngine(Engine):
    """An engine that keeps its notices."""

    def __init__(self, database: Database, config: Config) -> None:
        super().__init__(database, lambda: config, on_changes=self._keep)
        self.commits: list[Changes] = []

    def _keep(self, changes: Changes) -> None:
        self.commits.append(changes)

    def notices(self) -> list[Notice]:
        """Those since the last call."""
        commits, self.commits = self.commits, []
        return [notice for changes in commits for notice in changes.all()]

    async def queued(self, **values: Any) -> NewJob:
        job = new_job(**values)
        await self.enqueue(job)
        return job

    async def running(self, job: NewJob) -> ClaimedJob:
        (claimed,) = await self.claim([Ask(job_id=job.id, enqueue_id=1, owner_id="test")])
        assert isinstance(claimed, ClaimedJob)
        self.notices()
        return claimed


@contextlib.asynccontextmanager
async def heard_engine(url: str, config: Config) -> AsyncIterator[HeardEngine]:
    database, handle = Database(url, 4), Handle(lambda: None)
    engine = HeardEngine(database, config)
    async with database.opened(), anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run, handle)
        yield engine
        handle.stop.set()


@pytest.fixture
async def url(shared_postgres: str) -> str:
    return await new_database(shared_postgres)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[HeardEngine]:
    async with heard_engine(url, Config()) as engine:
        yield engine


def types(notices: list[Notice]) -> list[tuple[UUID, str]]:
    return [(notice.job_id, notice.type) for notice in notices]


async def test_new_job_is_announced_with_all_that_its_caller_sent(engine: HeardEngine) -> None:
    job = new_job(task="embed", queue="fast")
    await engine.enqueue(job)

    (notice,) = engine.notices()

    assert notice == Notice(job.id, "queued", 0, 1, notice.at, "embed", "fast")
    assert notice.at is not None


@pytest.mark.parametrize("way", ["message", "poll"])
async def test_claimed_job_is_announced_with_its_attempt(engine: HeardEngine, way: str) -> None:
    job = await engine.queued(task="embed")
    engine.notices()
    if way == "message":
        claimed, other = await engine.claim([Ask(job_id=job.id, enqueue_id=1, owner_id="test")] * 2)
        assert not isinstance(other, ClaimedJob)
    else:
        (claimed,) = await take_any(engine, "default", 10)

    assert isinstance(claimed, ClaimedJob)
    assert engine.notices() == [Notice(job.id, "running", 1, 0, None, "embed", "default", claimed.attempt_id)]


async def test_kept_events_are_announced_with_the_number_of_the_last(engine: HeardEngine) -> None:
    job = await engine.running(await engine.queued())
    await engine.emit(
        EventBatch(job_id=job.job_id, lease_token=job.lease_token, events=[HandlerEvent("token", n) for n in range(3)])
    )
    await engine.emit(EventBatch(job_id=job.job_id, lease_token=job.attempt_id, events=[HandlerEvent("token", 3)]))

    assert engine.notices() == [Notice(job.job_id, "events", 1, 3)]


async def test_ends_of_attempts_are_announced_as_what_became_of_the_job(engine: HeardEngine) -> None:
    done, again, dead, back = [await engine.running(await engine.queued()) for _ in range(4)]

    def proof(job: ClaimedJob) -> dict[str, Any]:
        return {"job_id": job.job_id, "attempt_id": job.attempt_id, "lease_token": job.lease_token}

    await engine.complete(Completion(**proof(done), result="1"))
    await engine.fail(Failure(**proof(again), error="{}"))
    await engine.fail(Failure(**proof(dead), error="{}", retryable=False))
    await engine.release(back.held)
    assert types(engine.notices()) == [
        (done.job_id, "done"),
        (again.job_id, "queued"),
        (dead.job_id, "error"),
        (back.job_id, "queued"),
    ]

    repeated = await engine.complete(Completion(**proof(done), result="1"))
    refused = await engine.complete(Completion(**{**proof(done), "attempt_id": back.attempt_id}, result="2"))
    assert isinstance(repeated, AlreadyFinished), refused
    assert types(engine.notices()) == [(done.job_id, "done")]


async def test_cancel_is_announced_as_done_or_as_asked_for(engine: HeardEngine) -> None:
    waiting, running = await engine.queued(), await engine.running(await engine.queued())

    await engine.cancel([waiting.id, running.job_id, new_job().id])

    assert set(types(engine.notices())) == {(waiting.id, "canceled"), (running.job_id, "cancel_requested")}


async def test_dead_letter_that_runs_again_is_announced_as_a_new_job(engine: HeardEngine) -> None:
    job = await engine.running(await engine.queued())
    await engine.fail(
        Failure(job_id=job.job_id, attempt_id=job.attempt_id, lease_token=job.lease_token, error="{}", retryable=False)
    )
    engine.notices()

    redriven = await engine.redrive([job.job_id])

    assert isinstance(redriven, dict)
    assert engine.notices() == [Notice(redriven[job.job_id], "queued", 0, 1)]


async def test_batch_of_which_one_is_refused_announces_nothing(url: str) -> None:
    async with heard_engine(url, Config(limits=Limits(max_queued=2))) as engine:
        full = await engine.enqueue_whole([new_job() for _ in range(3)])
        assert any(isinstance(answer, QueueFull) for answer in full)
        assert engine.notices() == []

        jobs = [new_job() for _ in range(2)]
        await engine.enqueue_whole(jobs)
        assert types(engine.notices()) == [(job.id, "queued") for job in jobs]


async def test_job_that_was_there_is_not_announced(engine: HeardEngine) -> None:
    await engine.queued(spec_hash=b"s" * 32, dedupe="active")
    engine.notices()

    assert isinstance(await engine.enqueue(new_job(spec_hash=b"s" * 32, dedupe="active")), Existing)
    assert engine.notices() == []


async def test_notices_are_made_of_the_jobs_that_are_asked_about_alone(engine: HeardEngine) -> None:
    jobs = [new_job() for _ in range(5)]
    await engine.enqueue_whole(jobs)
    (changes,) = engine.commits

    assert types(changes.of({jobs[3].id, jobs[1].id, new_job().id})) == [(jobs[1].id, "queued"), (jobs[3].id, "queued")]
    assert changes.of(()) == []


async def test_listener_that_fails_does_not_undo_what_was_committed(
    engine: HeardEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(changes: Changes) -> None:
        raise RuntimeError("a fault of the listener")

    monkeypatch.setattr(engine, "_on_changes", fails)
    job = await engine.queued()

    assert isinstance((await engine.claim([Ask(job_id=job.id, enqueue_id=1, owner_id="test")]))[0], ClaimedJob)
    assert "was not notified" in caplog.text
