"""Jobs in any status, made by the verbs themselves, and the questions that tests ask about them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from jobd.job.retry import RetryPolicy
from jobd.job.status import JobStatus
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import Ask, ClaimedJob, claim
from jobd.lifecycle.complete import Completion, complete
from jobd.lifecycle.enqueue import Created, NewJob, enqueue
from jobd.lifecycle.fail import Failure, fail
from jobd.lifecycle.lease import LeaseProof
from jobd.lifecycle.read import Attempt, Job, QueueStats, queue_stats, read_jobs, read_whole_job
from jobd.lifecycle.report import Held
from jobd.store.ids import new_id

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.store.postgres import Database
    from jobd.store.session import Session

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
TTL_S = 60.0
POLICY = RetryPolicy(base_s=8.0, cap_s=300.0)

#: What holds no jobs, and must stay for the schema to be known or because it cannot be deleted.
_KEPT = ("audit", "schema_migrations", "installation")


def at(seconds: float) -> datetime:
    """So many seconds after NOW."""
    return NOW + timedelta(seconds=seconds)


async def empty(connection: Session) -> None:
    """Forget every job, and all else that the statements write. For few rows, this is the fast way."""
    await connection.execute("; ".join([f"DELETE FROM jobd.{name}" for name in await tables(connection)]))


async def truncate(connection: Session) -> None:
    """The same for many rows; the files are as small as new ones afterwards."""
    await connection.execute(f"TRUNCATE {', '.join([f'jobd.{name}' for name in await tables(connection)])}")


async def tables(connection: Session) -> list[str]:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'jobd' ORDER BY 1")
    return [row["tablename"] for row in rows if row["tablename"] not in _KEPT]


# What is asked for


def new_job(**changes: Any) -> NewJob:
    fields: dict[str, Any] = {
        "id": new_id(),
        "task": "chat",
        "queue": "default",
        "payload": "{}",
        "max_attempts": 3,
        "timeout_s": 30.0,
        "ttl_s": 3600,
    }
    return NewJob(**{**fields, **changes})


def ask(job_id: UUID, enqueue_id: int = 1, **changes: Any) -> Ask:
    return Ask(**{"job_id": job_id, "enqueue_id": enqueue_id, "owner_id": "worker-1", **changes})


def beat(claimed: ClaimedJob, **changes: Any) -> LeaseProof:
    return LeaseProof(**{"resource_id": claimed.job_id, "lease_token": claimed.lease_token, **changes})


def held(claimed: ClaimedJob, **changes: Any) -> Held:
    return Held(**{**_proof(claimed), **changes})


def completion(claimed: ClaimedJob, **changes: Any) -> Completion:
    return Completion(**{**_proof(claimed), "result": '{"ok": true}', "outcome_hash": b"done", **changes})


def failure(claimed: ClaimedJob, **changes: Any) -> Failure:
    return Failure(**{**_proof(claimed), "error": '{"code": "boom"}', "outcome_hash": b"boom", **changes})


def _proof(claimed: ClaimedJob) -> dict[str, Any]:
    return {"job_id": claimed.job_id, "attempt_id": claimed.attempt_id, "lease_token": claimed.lease_token}


# Jobs in any status


async def make_queued(db: Database, now: datetime = NOW, **changes: Any) -> UUID:
    (job_id,) = await make_many(db, 1, now, **changes)
    return job_id


async def make_many(db: Database, count: int, now: datetime = NOW, **changes: Any) -> list[UUID]:
    jobs = [new_job(**changes) for _ in range(count)]
    answers = await enqueue(db, jobs, now=now)
    assert answers == [Created(job.id) for job in jobs]
    return [job.id for job in jobs]


async def make_running(
    db: Database, now: datetime = NOW, ttl_s: float = TTL_S, owner_id: str = "worker-1", **changes: Any
) -> ClaimedJob:
    return await claim_one(db, await make_queued(db, now, **changes), now=now, ttl_s=ttl_s, owner_id=owner_id)


async def claim_one(
    db: Database, job_id: UUID, enqueue_id: int = 1, *, now: datetime = NOW, ttl_s: float = TTL_S, **changes: Any
) -> ClaimedJob:
    (answer,) = await claim(db.pool, [ask(job_id, enqueue_id, **changes)], ttl_s=ttl_s, now=now)
    assert isinstance(answer, ClaimedJob), answer
    return answer


async def make_job(db: Database, status: JobStatus, now: datetime = NOW, **changes: Any) -> UUID:
    """A job that came to this status the way jobs do."""
    job_id = await make_queued(db, now, **changes)
    if status is JobStatus.CANCELED:
        await cancel(db, [job_id], now=now)
    elif status is not JobStatus.QUEUED:
        claimed = await claim_one(db, job_id, now=now)
        if status is JobStatus.DONE:
            await complete(db.pool, [completion(claimed)], now=now)
        elif status is JobStatus.ERROR:
            await fail(db.pool, [failure(claimed, retryable=False)], policy=POLICY, now=now)
    assert await status_of(db, job_id) is status
    return job_id


# Questions


async def read(db: Database, job_id: UUID) -> Job:
    return (await read_jobs(db.pool, [job_id]))[job_id]


async def one_row(db: Database, query: str, *arguments: object) -> tuple[Any, ...]:
    (row,) = await db.pool.fetch(query, *arguments)
    return tuple(row)


async def status_of(db: Database, job_id: UUID) -> JobStatus:
    return JobStatus((await read(db, job_id)).status)


async def attempts_of(db: Database, job_id: UUID) -> list[Attempt]:
    whole = await read_whole_job(db.pool, job_id)
    return [] if whole is None else whole.attempts


async def outcomes_of(db: Database, job_id: UUID) -> list[str | None]:
    return [attempt.outcome for attempt in await attempts_of(db, job_id)]


async def told_of(db: Database, job_id: UUID) -> list[tuple[str, int]]:
    """Every change of the job that was told to the world, with the version it led to."""
    rows = await db.pool.fetch(
        """
        SELECT event, told.version
        FROM outbox CROSS JOIN LATERAL unnest(job_ids, versions) AS told (job_id, version)
        WHERE told.job_id = $1 ORDER BY seq
        """,
        job_id,
    )
    return [(row["event"], row["version"]) for row in rows]


async def counts_by_looking(connection: Session) -> list[QueueStats]:
    """What `queue_stats` must say, by reading every row."""
    rows = await connection.fetch(
        """
        SELECT queue, coalesce((SELECT paused FROM queues WHERE name = queue), false) AS paused,
            count(*) FILTER (WHERE status = 'queued') AS queued, count(*) FILTER (WHERE status = 'running') AS running,
            count(*) FILTER (WHERE status = 'done') AS done, count(*) FILTER (WHERE status = 'error') AS error,
            count(*) FILTER (WHERE status = 'canceled') AS canceled
        FROM jobs GROUP BY queue ORDER BY queue
        """
    )
    return [QueueStats(**dict(row)) for row in rows]


async def assert_counters_are_right(db: Database) -> None:
    """Of every queue that has jobs; others have a row if something was set for them."""
    counted = [stats for stats in await queue_stats(db.pool) if any(astuple(stats)[2:])]
    assert counted == await counts_by_looking(db.pool)


async def all_rows(db: Database) -> dict[str, list[str]]:
    """The contents of every table, to see whether anything at all was written."""
    return {
        name: [str(row) for row in await db.pool.fetch(f"SELECT t.* FROM jobd.{name} t ORDER BY t")]
        for name in await tables(db.pool)
    }
