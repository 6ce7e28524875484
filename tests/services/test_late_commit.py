"""A line breaks, and what was sent over it is committed afterwards: sent again, every verb answers for its own work."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
import pytest

from jobd.config.model import Config
from jobd.engine import engine as engine_module
from jobd.engine.engine import Engine
from jobd.job.model import AlreadyFinished, Completed, Requeued
from jobd.lifecycle.claim import Ask, ClaimedJob
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.enqueue import Created, IdempotencyKey
from jobd.lifecycle.fail import Ended, Failure
from jobd.lifecycle.heartbeat import Renewal
from jobd.lifecycle.lease import LeaseProof
from jobd.lifecycle.report import Held
from jobd.store.faults import translated
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from tests.support.factories import new_job
from tests.support.node import new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


LATE_S = 0.5


class OneSession:
    """Stands for a Database: everything runs in one session, whose transaction is committed later."""

    def __init__(self, session: asyncpg.Connection[Any]) -> None:
        self.fetch = session.fetch
        self._session = session

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        yield self._session

    async def fetchval(self, *arguments: Any) -> Any:
        return await self._session.fetchval(*arguments)


@pytest.fixture
async def url(shared_postgres: str) -> str:
    """A database where nobody else is at work."""
    return await new_database(shared_postgres)


@pytest.fixture
async def parts(url: str) -> AsyncIterator[tuple[Engine, Database]]:
    database, handle = Database(url, 4), Handle(lambda: None)
    engine = Engine(database, Config)
    async with database.opened(), anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run, handle)
        yield engine, database
        handle.stop.set()


@pytest.fixture
async def breaks_once(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], None]]:
    """Makes the next call of a verb run in a session of its own, break its line, and be committed a moment later."""
    session = await asyncpg.connect(url, server_settings={"search_path": "jobd"})
    async with anyio.create_task_group() as tasks:

        async def commit(transaction: Any) -> None:
            await anyio.sleep(LATE_S)
            await transaction.commit()

        def hold_back(verb: str) -> None:
            real: Callable[..., Awaitable[object]] = getattr(engine_module, verb)

            async def first(_: object, *arguments: object, **settings: object) -> object:
                monkeypatch.setattr(engine_module, verb, real)
                transaction = session.transaction()
                await transaction.start()
                await real(OneSession(session), *arguments, **settings)
                tasks.start_soon(commit, transaction)
                with translated(url):  # as Database does
                    raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

            monkeypatch.setattr(engine_module, verb, first)

        yield hold_back
    await session.close()


def proof(held: ClaimedJob) -> dict[str, Any]:
    return {"job_id": held.job_id, "attempt_id": held.attempt_id, "lease_token": held.lease_token}


async def start(engine: Engine, **values: Any) -> ClaimedJob:
    job = new_job(**values)
    await engine.enqueue(job)
    (held,) = await engine.claim([Ask(job_id=job.id, enqueue_id=1, owner_id="w-1")])
    assert isinstance(held, ClaimedJob)
    return held


@pytest.mark.parametrize("kind", ["plain", "with a key", "with dedupe"])
async def test_job_is_created_once(
    parts: tuple[Engine, Database], breaks_once: Callable[[str], None], kind: str
) -> None:
    engine, database = parts
    job = new_job()
    key = IdempotencyKey("p", str(job.id), b"1" * 32, 60)
    job = new_job(
        key=key if kind == "with a key" else None,
        spec_hash=job.id.bytes * 2 if kind == "with dedupe" else None,
        dedupe="active" if kind == "with dedupe" else "none",
    )
    breaks_once("enqueue")

    answer = await engine.enqueue(job)

    assert answer == Created(job.id)
    assert await database.pool.fetchval("SELECT count(*) FROM jobs WHERE id = $1", job.id) == 1
    assert await database.pool.fetchval("SELECT count(*) FROM outbox") == 1
    assert await database.pool.fetchval("SELECT sum(queued) FROM queue_counts") == 1


async def test_claim_finds_its_own_lease(parts: tuple[Engine, Database], breaks_once: Callable[[str], None]) -> None:
    engine, database = parts
    job = new_job(max_attempts=1)
    await engine.enqueue(job)
    breaks_once("claim")

    (held,) = await engine.claim([Ask(job_id=job.id, enqueue_id=1, owner_id="w-1")])

    assert isinstance(held, ClaimedJob)
    assert (
        await database.pool.fetchval("SELECT lease_token FROM leases WHERE resource_id = $1", job.id)
        == held.lease_token
    )
    assert await engine.complete(Completion(**proof(held), result="1")) == Completed()


async def test_takeover_finds_its_own_lease(parts: tuple[Engine, Database], breaks_once: Callable[[str], None]) -> None:
    engine, database = parts
    first = await start(engine)
    await database.pool.execute("UPDATE leases SET lease_expires_at = now() WHERE resource_id = $1", first.job_id)
    breaks_once("claim")

    (held,) = await engine.claim([Ask(job_id=first.job_id, enqueue_id=1, owner_id="w-2")])

    assert isinstance(held, ClaimedJob)
    assert (held.attempt_no, held.owner_id) == (2, "w-2")
    assert await engine.complete(Completion(**proof(held), result="1")) == Completed()


async def test_claim_does_not_take_a_lease_of_an_earlier_ask_for_its_own(parts: tuple[Engine, Database]) -> None:
    engine, _ = parts
    held = await start(engine)

    (again,) = await engine.claim([Ask(job_id=held.job_id, enqueue_id=1, owner_id="w-1")])

    assert not isinstance(again, ClaimedJob)


async def test_reports_are_answered_as_what_they_did(
    parts: tuple[Engine, Database], breaks_once: Callable[[str], None]
) -> None:
    engine, _ = parts
    done, failed, released, renewed = [await start(engine) for _ in range(4)]

    breaks_once("complete")
    completed = await engine.complete(Completion(**proof(done), result="1", outcome_hash=b"1"))
    breaks_once("fail")
    ended = await engine.fail(Failure(**proof(failed), error="{}", retryable=False, outcome_hash=b"2"))
    breaks_once("release")
    handed_back = await engine.release(Held(**proof(released)))
    breaks_once("heartbeat")
    (renewal,) = await engine.heartbeat([LeaseProof(resource_id=renewed.job_id, lease_token=renewed.lease_token)])

    assert isinstance(completed, Completed | AlreadyFinished)
    assert isinstance(ended, Ended | AlreadyFinished)
    assert isinstance(handed_back, Requeued | AlreadyFinished)
    assert isinstance(renewal, Renewal)
