"""The part of the workers, played by the verbs themselves on the database of a running jobd."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from anyio.from_thread import start_blocking_portal

from jobd.job.retry import RetryPolicy
from jobd.lifecycle.claim import ClaimedJob, claim
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.fail import fail
from jobd.lifecycle.prune import prune
from jobd.lifecycle.read import read_jobs
from jobd.store.postgres import Database
from jobd.tickets.prune import prune_tickets
from tests.support.factories import ask, completion, failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.from_thread import BlockingPortal

#: All that a refused request must leave as it was.
#: Numbers that a lease which ends meanwhile, of a job that another test left running, does not change.
_TRACES = """
SELECT
    (SELECT count(*) FROM jobs), (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM job_specs),
    (SELECT sum(queued + running + done + error + canceled) FROM queue_counts),
    (SELECT sum(version) FROM jobs) - (SELECT count(*) FROM attempts WHERE outcome = 'expired')
"""


class DatabaseWorkers:
    """For tests that are not asynchronous themselves."""

    def __init__(self, portal: BlockingPortal, database: Database) -> None:
        self._portal = portal
        self._database = database

    def start(self, job_id: str) -> ClaimedJob:
        return self._portal.call(self._start, UUID(job_id))

    def finish(self, job_id: str, result: str = '{"ok": true}') -> None:
        self._portal.call(self._finish, UUID(job_id), result)

    def fail(self, job_id: str, *, retryable: bool = False, delay_s: float = 3600.0) -> None:
        self._portal.call(self._fail, UUID(job_id), retryable, delay_s)

    def finish_all(self) -> None:
        """All that run are done, whoever has them."""
        self._portal.call(self._finish_all)

    def prune(self) -> None:
        """Retention, for all that has finished."""
        self._portal.call(self._prune)

    def prune_tickets(self) -> None:
        """The same for all tickets that are DONE."""
        self._portal.call(self._prune_tickets)

    def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._portal.call(self._database.pool.fetch, query, *arguments)]

    @contextmanager
    def transaction(self, query: str, *arguments: object) -> Iterator[None]:
        """Meanwhile a transaction stands open that has run the query."""
        with self._portal.wrap_async_context_manager(self._transaction(query, arguments)):
            yield

    @asynccontextmanager
    async def _transaction(self, query: str, arguments: tuple[object, ...]) -> AsyncIterator[None]:
        async with self._database.pool.acquire() as session, session.transaction():
            await session.fetch(query, *arguments)
            yield

    def traces(self) -> tuple[Any, ...]:
        """What has been written so far, in numbers."""
        return self.rows(_TRACES)[0]

    async def _start(self, job_id: UUID) -> ClaimedJob:
        job = (await read_jobs(self._database.pool, [job_id]))[job_id]
        (answer,) = await claim(self._database.pool, [ask(job_id, job.enqueue_id)], ttl_s=600)
        assert isinstance(answer, ClaimedJob), answer
        return answer

    async def _finish(self, job_id: UUID, result: str) -> None:
        await complete(self._database.pool, [completion(await self._start(job_id), result=result)])

    async def _finish_all(self) -> None:
        held = await self._database.pool.fetch(
            "SELECT resource_id AS job_id, attempt_id, lease_token FROM leases WHERE attempt_id IS NOT NULL"
        )
        reports = [Completion(**dict(row), result="{}", outcome_hash=b"done") for row in held]
        await complete(self._database.pool, reports)

    async def _fail(self, job_id: UUID, retryable: bool, delay_s: float) -> None:
        policy = RetryPolicy(base_s=delay_s, cap_s=delay_s)
        await fail(
            self._database.pool, [failure(await self._start(job_id), retryable=retryable)], policy=policy, jitter=1.0
        )

    async def _prune(self) -> None:
        while (await prune(self._database.pool, keep_s=0.0)).jobs:
            pass

    async def _prune_tickets(self) -> None:
        while (await prune_tickets(self._database.pool, keep_s=0.0)).tickets:
            pass


@contextmanager
def database_workers(postgres_url: str) -> Iterator[DatabaseWorkers]:
    with start_blocking_portal() as portal:
        database = Database(postgres_url, 2)
        with portal.wrap_async_context_manager(database.opened()):
            yield DatabaseWorkers(portal, database)
