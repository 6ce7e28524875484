"""The one plan of each statement: from the batch, row by row, through the index it was written for.

A plan of another shape may cost more with every row in the table, and may lock rows in another order than the batch's,
so that two batches deadlock. The plans are looked at as the sessions make them, with empty tables and with full ones.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from jobd.job.status import JobStatus
from jobd.store.postgres import Database
from jobd.store.statements import all_statements
from tests.lifecycle.bulk import fill
from tests.support.factories import empty, make_job, truncate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from asyncpg.pool import PoolConnectionProxy

Node = dict[str, Any]

STATEMENTS = {**all_statements("jobd.lifecycle"), **all_statements("jobd.auth")}

#: The indexes that a statement goes through; it must use these and no others.
INDEXES: dict[str, set[str]] = {
    "acquire_leases": set(),
    "append_audit": set(),
    "append_events": {"event_log_pkey", "leases_pkey"},
    "cancel_jobs": {"attempts_pkey", "jobs_pkey", "leases_pkey"},
    "claim_jobs": {"jobs_pkey"},
    "complete_if_leased": {"jobs_pkey", "leases_pkey"},
    "create_token": set(),
    "enqueue_jobs": {"queue_counts_pkey"},
    "explain_claims": {"jobs_pkey", "leases_pkey"},
    "explain_reports": {"attempts_pkey", "jobs_pkey"},
    "explain_waiting": {"jobs_pkey", "jobs_ready", "queues_pkey"},
    "fail_if_leased": {"jobs_pkey", "leases_pkey"},
    "find_twins": {"job_specs_pkey", "jobs_pkey"},
    "delete_outbox_rows": {"outbox_pkey"},
    "held_among": {"leases_pkey"},
    "is_gone": {"gone_jobs_pkey"},
    "last_chunks": {"event_log_pkey"},
    "leased_messages": set(),
    "list_by_spec": {"job_specs_pkey", "jobs_pkey"},
    "list_dead_letters": {"dead_letters_pkey"},
    "list_held_jobs": {"event_log_pkey", "jobs_pkey"},
    "list_jobs": {"jobs_pkey"},
    "list_workers": set(),
    "lock_fresh_letters": {"dead_letters_pkey"},
    "look_ahead": {"jobs_due", "jobs_ready", "outbox_pkey", "queues_pkey"},
    "outbox_depth": {"outbox_pkey"},
    "point_keys": {"idempotency_keys_pkey"},
    "poll_claim_jobs": {"jobs_pkey", "jobs_ready", "queues_pkey"},
    "promote_due": {"jobs_due", "jobs_pkey"},
    "prune_jobs": {
        "attempts_pkey",
        "dead_letters_pkey",
        "event_log_pkey",
        "job_specs_pkey",
        "jobs_finished",
        "jobs_pkey",
        "output_bundles_in_files",
    },
    "prune_memories": {"gone_jobs_age", "gone_jobs_pkey", "idempotency_keys_expiry", "idempotency_keys_pkey"},
    "queue_heads": {"jobs_ready"},
    "queued_among": {"jobs_pkey"},
    "read_attempts": {"attempts_pkey", "leases_pkey"},
    "read_back_claims": {"jobs_pkey", "leases_pkey"},
    "read_back_jobs": {"jobs_pkey"},
    "read_history": {"attempts_pkey", "event_log_pkey", "jobs_pkey", "leases_pkey"},
    "read_jobs": {"jobs_pkey", "leases_pkey"},
    "read_live_delayed": {"jobs_due"},
    "read_live_queued": {"jobs_ready"},
    "read_live_running": {"jobs_pkey", "leases_pkey"},
    "read_outbox": {"event_log_pkey", "jobs_pkey", "outbox_pkey"},
    "read_result_refs": {"jobs_pkey"},
    "reap_expired": {"jobs_pkey", "leases_pkey"},
    "redrive_jobs": {"dead_letters_pkey", "jobs_pkey", "queue_counts_pkey"},
    "release_if_leased": {"jobs_pkey", "leases_pkey"},
    "release_leases": {"leases_pkey"},
    "renew_leases": {"jobs_pkey", "leases_pkey"},
    "select_for_publish": {"jobs_ready", "queues_pkey"},
    "take_over_jobs": {"jobs_pkey", "leases_pkey"},
    "emitted_before": {"leases_pkey"},
}

#: What a statement goes through from the beginning: all leases, of which there are as many as jobs in progress; the
#: delayed jobs, but only to the first; and the outbox, for a page.
WALKED = {
    "leased_messages": {"leases"},
    "list_held_jobs": {"leases"},
    "list_workers": {"leases"},
    "look_ahead": {"jobs", "outbox"},
    "outbox_depth": {"outbox"},
    "read_outbox": {"outbox"},
    "reap_expired": {"leases"},
}

#: CTEs of one row, which say the time or how to commit; in what order they are joined does not matter.
SINGLE = {"moment", "relaxed"}

#: Read in one piece: there are a handful of rows, however many jobs.
SMALL = {"queues", "queue_counts"}


@pytest.fixture(scope="module", params=["new", "empty", "few", "full", "emptied"])
async def filled(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    database = Database(url, 4)
    async with database.opened():
        await truncate(database.pool)
        if request.param in ("full", "emptied"):
            async with database.pool.acquire() as connection:
                await fill(connection, finished=20_000, queued=5_000)
        if request.param in ("few", "full"):
            for status in JobStatus:
                await make_job(database, status, spec_hash=b"s" * 32)
                await make_job(database, status)
        if request.param == "emptied":
            await empty(database.pool)
        if request.param != "new":
            await database.pool.execute("VACUUM ANALYZE")
        yield database
        await truncate(database.pool)


async def plan_on(
    connection: asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record], text: str
) -> Node:
    """The generic plan that this session has for the statement."""
    prepared = await connection.prepare(text)
    nulls = ", ".join(["NULL"] * len(prepared.get_parameters()))
    await connection.execute(f"PREPARE looked_at AS {text}")
    try:
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE looked_at ({nulls})")
    finally:
        await connection.execute("DEALLOCATE looked_at")
    node: Node = json.loads(text)[0]["Plan"]
    return node


async def plan_of(db: Database, name: str) -> Node:
    async with db.pool.acquire() as connection:
        return await plan_on(connection, STATEMENTS[name])


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)


def tables_in(node: Node) -> set[str]:
    """What is read below this node; what a statement writes to does not count."""
    return {one["Relation Name"] for one in walk(node) if "Relation Name" in one and one["Node Type"] != "ModifyTable"}


def asked_in(node: Node) -> bool:
    """Whether the rows of this node come straight from the batch."""
    return any(
        one["Node Type"] in ("CTE Scan", "Function Scan") and one.get("CTE Name") not in SINGLE for one in walk(node)
    )


def shown(node: Node) -> str:
    return json.dumps(node, indent=1)


def whole_tables_in(plan: Node) -> set[str]:
    """What is read from beginning to end, with or without an index."""
    return {
        node.get("Relation Name") or node["Index Name"]
        for node in walk(plan)
        if node["Node Type"] == "Seq Scan" or ("Index Name" in node and "Index Cond" not in node)
    } - SMALL


def wrong_joins_in(plan: Node) -> list[Node]:
    """Joins that are not driven by the batch: hashes of what is found, or the batch searched for every row found."""
    return [
        node
        for node in walk(plan)
        if node["Node Type"] in ("Hash Join", "Merge Join")
        or (
            node["Node Type"] == "Nested Loop"
            and tables_in(node["Plans"][0])
            and asked_in(node["Plans"][1])
            and not tables_in(node["Plans"][1])
        )
    ]


@pytest.mark.parametrize("name", sorted(INDEXES))
async def test_a_statement_goes_through_its_indexes_and_no_others(filled: Database, name: str) -> None:
    plan = await plan_of(filled, name)

    assert {node["Index Name"] for node in walk(plan) if "Index Name" in node} == INDEXES[name], shown(plan)


@pytest.mark.parametrize("name", sorted(INDEXES))
async def test_a_statement_never_reads_a_whole_table(filled: Database, name: str) -> None:
    plan = await plan_of(filled, name)

    assert whole_tables_in(plan) == WALKED.get(name, set()), shown(plan)


@pytest.mark.parametrize(
    "name", sorted(INDEXES.keys() - {"list_held_jobs", "read_outbox"})
)  # their batches are in rows
async def test_a_statement_joins_from_the_batch_to_the_table(filled: Database, name: str) -> None:
    plan = await plan_of(filled, name)

    assert wrong_joins_in(plan) == [], shown(plan)


# Without what keeps the plans as they are, the tests above would reject them.

CONTROLS = ["cancel_jobs", "claim_jobs", "complete_if_leased", "renew_leases", "take_over_jobs"]


@pytest.mark.parametrize("filled", ["empty"], indirect=True)
@pytest.mark.parametrize("name", CONTROLS)
async def test_other_settings_of_the_session_would_be_noticed(filled: Database, name: str) -> None:
    connection = await asyncpg.connect(filled.url, server_settings={"search_path": "jobd"})
    try:
        plan = await plan_on(connection, STATEMENTS[name])
    finally:
        await connection.close()

    assert wrong_joins_in(plan) or whole_tables_in(plan), shown(plan)


@pytest.mark.parametrize("filled", ["empty"], indirect=True)
@pytest.mark.parametrize("name", CONTROLS)
async def test_joins_by_plain_equality_would_be_noticed(filled: Database, name: str) -> None:
    text, count = re.subn(r"= ANY \(ARRAY\[(\w+\.\w+)\]\)", r"= \1", STATEMENTS[name])
    assert count > 0

    async with filled.pool.acquire() as connection:
        plan = await plan_on(connection, text)

    assert wrong_joins_in(plan) or whole_tables_in(plan), shown(plan)
