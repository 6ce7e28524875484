"""What the tables themselves refuse, so that a mistake in a statement is an error and not a lie; and the views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from jobd.job.machine import TRANSITIONS
from jobd.job.status import (
    FINAL_STATUSES,
    AttemptOutcome,
    DeadLetterReason,
    JobStatus,
)
from jobd.lifecycle.fail import fail
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    at,
    claim_one,
    failure,
    make_job,
    make_queued,
    make_running,
    status_of,
)

if TYPE_CHECKING:
    from jobd.store.postgres import Database

#: Promoting a job leaves it queued; no event of the machine does.
LEGAL = {(row.source, row.target) for row in TRANSITIONS} | {(JobStatus.QUEUED, JobStatus.QUEUED)}
PAIRS = [(source, target) for source in JobStatus for target in JobStatus]

#: Columns that have to change with the status, for the row to make sense in it.
FITTING = {
    JobStatus.QUEUED: "finished_at = NULL, order_at = now(), due_at = NULL",
    JobStatus.RUNNING: "finished_at = NULL, order_at = NULL, due_at = NULL, attempt_no = 1, attempt_count = 1",
    JobStatus.DONE: "finished_at = now(), order_at = NULL, due_at = NULL",
    JobStatus.ERROR: "finished_at = now(), order_at = NULL, due_at = NULL",
    JobStatus.CANCELED: "finished_at = now(), order_at = NULL, due_at = NULL",
}


async def insert(db: Database, **columns: Any) -> None:
    """A row that is right but for what is asked."""
    row: dict[str, Any] = {
        "id": uuid4(),
        "task": "t",
        "queue": "q",
        "payload": "{}",
        "run_after": NOW,
        "order_at": NOW,
        "max_attempts": 3,
        "timeout_s": 1.0,
        "ttl_s": 1,
        "created_at": NOW,
        "updated_at": NOW,
        **columns,
    }
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    await db.pool.execute(f"INSERT INTO jobs ({', '.join(row)}) VALUES ({places})", *row.values())


# Transitions


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a.value}-{b.value}" for a, b in PAIRS])
async def test_exactly_the_transitions_of_the_machine_are_legal(
    db: Database, source: JobStatus, target: JobStatus
) -> None:
    job_id = await make_job(db, source)
    update = f"UPDATE jobs SET status = '{target.value}', {FITTING[target]} WHERE id = $1"

    if (source, target) in LEGAL:
        await db.pool.execute(update, job_id)
        assert await status_of(db, job_id) is target
    else:
        with pytest.raises(asyncpg.PostgresError, match=f"cannot go from {source.value} to {target.value}") as refused:
            await db.pool.execute(update, job_id)
        assert refused.value.sqlstate == "JD001"
        assert await status_of(db, job_id) is source


@pytest.mark.parametrize("status", sorted(FINAL_STATUSES))
@pytest.mark.parametrize("change", ["result = '1'", "priority = 9", "version = version + 1", "cancel_requested = true"])
async def test_nothing_about_a_final_job_can_change(db: Database, status: JobStatus, change: str) -> None:
    job_id = await make_job(db, status)

    with pytest.raises(asyncpg.PostgresError, match="cannot go from"):
        await db.pool.execute(f"UPDATE jobs SET {change} WHERE id = $1", job_id)


async def test_one_illegal_row_undoes_the_whole_statement(db: Database) -> None:
    queued, done = await make_queued(db), await make_job(db, JobStatus.DONE)

    with pytest.raises(asyncpg.PostgresError):
        await db.pool.execute("UPDATE jobs SET priority = 9")

    assert await db.pool.fetchval("SELECT max(priority) FROM jobs WHERE id = ANY ($1)", [queued, done]) == 0


# Constraints


@pytest.mark.parametrize(
    "columns",
    [
        {"status": "retrying"},
        {"status": "queued", "finished_at": NOW},
        {"status": "done", "order_at": None},
        {"status": "done", "finished_at": NOW},
        {"status": "queued", "order_at": None},
        {"status": "queued", "due_at": NOW},
        {"status": "running", "order_at": None},
        {"status": "running", "attempt_no": 1, "attempt_count": 1},
        {"attempt_no": 4, "attempt_count": 4},
        {"attempt_no": 1, "attempt_count": 2},
        {"attempt_no": 1, "attempt_count": -1},
        {"max_attempts": 0},
        {"timeout_s": 0.0},
        {"ttl_s": 0},
        {"spec_hash": b"short"},
        {"payload": "[]"},
        {"payload": '"text"'},
        {"payload": "null"},
    ],
    ids=str,
)
async def test_a_row_that_makes_no_sense_is_refused(db: Database, columns: dict[str, Any]) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await insert(db, **columns)


async def test_a_row_that_makes_sense_is_taken(db: Database) -> None:
    await insert(db)
    await insert(db, status="running", order_at=None, attempt_no=2, attempt_count=1)
    await insert(db, status="done", order_at=None, finished_at=NOW)
    await insert(db, order_at=None, due_at=NOW, spec_hash=b"s" * 32)


async def test_a_job_has_one_open_attempt(db: Database) -> None:
    claimed = await make_running(db)

    with pytest.raises(asyncpg.UniqueViolationError):
        await db.pool.execute(
            """
            INSERT INTO leases (
                resource_id, resource_type, owner_id, lease_token, lease_expires_at, heartbeat_at, acquired_at,
                attempt_id, attempt_no
            ) VALUES ($1, 'JOB', 'w', gen_random_uuid(), $2, $2, $2, gen_random_uuid(), 2)
            """,
            claimed.job_id,
            NOW,
        )


async def test_the_number_of_an_attempt_never_recurs(db: Database) -> None:
    job_id = await make_job(db, JobStatus.DONE)

    with pytest.raises(asyncpg.UniqueViolationError):
        await db.pool.execute(
            """
            INSERT INTO attempts
                (job_id, number, attempt_id, lease_token, owner_id, outcome, started_at, ended_at, led_to, event_n)
            SELECT
                job_id, number, gen_random_uuid(), lease_token, owner_id, 'failed', started_at, ended_at, led_to,
                event_n
            FROM attempts WHERE job_id = $1
            """,
            job_id,
        )


@pytest.mark.parametrize(
    ("table", "column", "words"),
    [
        ("attempts", "outcome", {outcome.value for outcome in AttemptOutcome}),
        ("dead_letters", "reason", {reason.value for reason in DeadLetterReason}),
        ("jobs", "status", {one.value for one in JobStatus}),
    ],
)
async def test_the_tables_know_the_words_of_the_machine(db: Database, table: str, column: str, words: set[str]) -> None:
    rows = await db.pool.fetch(
        """
        SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint
        WHERE conrelid = ('jobd.' || $1)::regclass AND contype = 'c' AND conname = $1 || '_' || $2 || '_check'
        """,
        table,
        column,
    )
    (text,) = [row["text"] for row in rows]

    assert set(text.split("'")[1::2]) == words


# Views


MODEL_RUNS = (
    "id status lease_owner lease_expires_at started_at attempt_count result_ref last_error labels owner".split()
)
TASK_RUNS = (
    "id spec_hash queue_name status priority run_after leased_until worker_id payload_json result_json error_json "
    "attempt_count max_attempts created_at updated_at started_at completed_at labels owner"
).split()


async def view_row(db: Database, view: str, job_id: UUID) -> asyncpg.Record:
    row = await db.pool.fetchrow(f"SELECT * FROM {view} WHERE id = $1", job_id)
    assert row is not None
    return row


@pytest.mark.parametrize(("view", "columns"), [("model_runs", MODEL_RUNS), ("task_runs", TASK_RUNS)])
async def test_a_view_has_its_columns(db: Database, view: str, columns: list[str]) -> None:
    job_id = await make_queued(db)

    assert list((await view_row(db, view, job_id)).keys()) == columns


@pytest.mark.parametrize(
    ("status", "model_run", "task_run"),
    [
        (JobStatus.QUEUED, "PENDING", "PENDING"),
        (JobStatus.RUNNING, "RUNNING", "RUNNING"),
        (JobStatus.DONE, "SUCCEEDED", "SUCCESSFUL"),
        (JobStatus.ERROR, "FAILED", "FAILED"),
        (JobStatus.CANCELED, None, "CANCELLED"),
    ],
)
async def test_the_views_have_words_of_their_own_for_each_status(
    db: Database, status: JobStatus, model_run: str | None, task_run: str
) -> None:
    job_id = await make_job(db, status)

    assert (await view_row(db, "model_runs", job_id))["status"] == model_run
    assert (await view_row(db, "task_runs", job_id))["status"] == task_run


async def test_a_job_that_waits_for_its_retry_is_pending_in_one_view_and_retrying_in_the_other(db: Database) -> None:
    claimed = await make_running(db)
    await fail(db, [failure(claimed)], policy=POLICY, now=NOW)

    assert (await view_row(db, "model_runs", claimed.job_id))["status"] == "PENDING"
    assert (await view_row(db, "task_runs", claimed.job_id))["status"] == "RETRYING"


async def test_the_views_show_the_holder_and_the_outcome(db: Database) -> None:
    claimed = await claim_one(db, await make_queued(db, spec_hash=b"\x01" * 32, payload='{"a": 1}'), owner_id="w")
    model_row = await view_row(db, "model_runs", claimed.job_id)
    task_row = await view_row(db, "task_runs", claimed.job_id)
    assert (model_row["lease_owner"], model_row["lease_expires_at"], model_row["attempt_count"]) == ("w", at(TTL_S), 1)
    assert (task_row["worker_id"], task_row["leased_until"], task_row["payload_json"]) == ("w", at(TTL_S), '{"a": 1}')
    assert task_row["spec_hash"] == "01" * 32
    await fail(db, [failure(claimed, retryable=False)], policy=POLICY, now=at(5))
    model_row = await view_row(db, "model_runs", claimed.job_id)
    task_row = await view_row(db, "task_runs", claimed.job_id)
    assert (model_row["lease_owner"], model_row["last_error"]) == (None, '{"code": "boom"}')
    assert (task_row["completed_at"], task_row["error_json"], task_row["worker_id"]) == (
        at(5),
        '{"code": "boom"}',
        None,
    )


@pytest.mark.parametrize("view", ["model_runs", "task_runs"])
@pytest.mark.parametrize(
    "write", ["INSERT INTO {} (id) VALUES ($1)", "UPDATE {} SET id = $1", "DELETE FROM {} WHERE id = $1"]
)
async def test_the_views_refuse_writes(db: Database, view: str, write: str) -> None:
    job_id = await make_queued(db)

    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError):
        await db.pool.execute(write.format(view), job_id)
