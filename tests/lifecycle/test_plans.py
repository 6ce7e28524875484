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
from jobd.lifecycle.depend import Dependency
from jobd.lifecycle.enqueue import Created, enqueue
from jobd.store.postgres import Database
from jobd.store.statements import all_statements
from tests.lifecycle.bulk import fill
from tests.support.factories import empty, make_job, new_job, truncate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from asyncpg.pool import PoolConnectionProxy

Node = dict[str, Any]

PACKAGES = ("jobd.lifecycle", "jobd.auth", "jobd.files", "jobd.batches")
STATEMENTS = {name: text for package in PACKAGES for name, text in all_statements(package).items()}

#: The indexes that a statement goes through; it must use these and no others.
INDEXES: dict[str, set[str]] = {
    "acquire_leases": set(),
    "admit_jobs": {
        "jobs_limited",
        "jobs_pkey",
        "limit_keys_next",
        "limit_keys_pkey",
        "limit_nudges_pkey",
        "limit_places_of_key",
        "limit_rules_pkey",
        "limit_starts_of_key",
    },
    "append_audit": set(),
    "append_events": {"event_log_pkey", "leases_pkey"},
    "cancel_jobs": {"attempts_pkey", "jobs_pkey", "leases_pkey"},
    "claim_jobs": {"jobs_pkey"},
    "close_dependencies": {"dependencies_open"},
    "complete_and_take": {"jobs_pkey", "jobs_ready", "leases_pkey", "queues_pkey"},
    "complete_if_leased": {"jobs_pkey", "leases_pkey"},
    "count_dead_jobs": {"dead_letters_pkey", "jobs_pkey"},
    "count_jobs": {"jobs_pkey"},
    "count_labelled_jobs": {"job_labels_pkey", "jobs_pkey"},
    "count_live_jobs": {"jobs_due", "jobs_pkey", "jobs_ready", "leases_pkey"},
    "count_running_jobs": {"jobs_pkey", "leases_pkey"},
    "count_waiting_jobs": {"jobs_due", "jobs_pkey", "jobs_ready"},
    "count_settled": {"groups_pkey"},
    "advance_batch": {"batches_pkey"},
    "begin_batch": {"batches_pkey"},
    "cancel_batch": {"batches_pkey"},
    "create_batch": {"files_pkey"},
    "fail_batch": {"batches_pkey"},
    "finalize_batch": {"batches_pkey"},
    "finish_batch": {"batches_pkey"},
    "list_batches": {"batches_newest", "batches_pkey", "groups_pkey"},
    "list_open_batches": {"batches_open"},
    "prune_batches": {"batches_finished", "batches_pkey"},
    "read_batch": {"batches_pkey", "groups_pkey"},
    "read_line_ends": {"jobs_pkey"},
    "create_file": set(),
    "create_token": set(),
    "delete_file": {"files_pkey"},
    "list_newest_files": {"files_newest", "files_pkey"},
    "list_oldest_files": {"files_newest", "files_pkey"},
    "prune_files": {"files_expiry", "files_pkey"},
    "read_file": {"files_pkey"},
    "read_file_refs": {"files_pkey"},
    "delete_jobs": {
        "attempts_pkey",
        "dead_letters_pkey",
        "dependencies_on",
        "dependencies_pkey",
        "event_log_pkey",
        "job_labels_pkey",
        "job_specs_pkey",
        "jobs_pkey",
        "output_bundles_in_files",
        "workorders_job_id_key",
    },
    "enqueue_and_take": {"jobs_pkey", "jobs_ready", "queue_counts_pkey", "queues_pkey"},
    "enqueue_jobs": {"queue_counts_pkey"},
    "enqueue_keyed_and_take": {"jobs_pkey", "jobs_ready", "queue_counts_pkey", "queues_pkey"},
    "enqueue_keyed_jobs": {"queue_counts_pkey"},
    "expire_jobs": {"jobs_expiry", "jobs_pkey"},
    "explain_claims": {"jobs_pkey", "leases_pkey"},
    "explain_reports": {"attempts_pkey", "jobs_pkey"},
    "explain_waiting": {"jobs_pkey", "jobs_ready", "limit_keys_pkey", "queues_pkey"},
    "fail_if_leased": {"jobs_pkey", "leases_pkey"},
    "find_twins": {"job_specs_pkey", "jobs_pkey"},
    "group_dead_letters": {"dead_letters_pkey", "jobs_pkey"},
    "hold_jobs": {"groups_pkey", "jobs_pkey"},
    "held_among": {"leases_pkey"},
    "is_gone": {"gone_jobs_pkey"},
    "last_chunks": {"event_log_pkey"},
    "leased_messages": set(),
    "let_go": {"jobs_pkey"},
    "list_dependencies": {"dependencies_pkey", "groups_pkey", "jobs_pkey"},
    "list_dependents": {"dependencies_on"},
    "lock_predecessors": {"jobs_pkey"},
    "list_by_spec": {"job_specs_pkey", "jobs_pkey"},
    "list_dead_letters": {"dead_letters_pkey", "job_labels_pkey"},
    "list_groups": {"groups_newest", "groups_pkey"},
    "prune_groups": {"dependencies_on", "groups_finished", "groups_pkey", "job_labels_pkey"},
    "read_group": {"groups_pkey"},
    "seal_group": {"groups_pkey"},
    "list_held_jobs": {"event_log_pkey", "job_labels_pkey", "jobs_pkey"},
    "list_workers": set(),
    "lock_fresh_letters": {"dead_letters_pkey"},
    "look_ahead": {
        "jobs_due",
        "jobs_ready",
        "limit_keys_next",
        "limit_nudges_pkey",
        "limit_takes_pkey",
        "outbox_pkey",
        "queues_pkey",
    },
    "next_due": {"jobs_due", "limit_keys_next", "limit_nudges_pkey", "limit_takes_pkey"},
    "note_starts": {"limit_places_pkey", "limit_takes_pkey"},
    "nudge_keys": {"jobs_limited", "queue_counts_pkey"},
    "outbox_depth": {"outbox_pkey"},
    "owned_among": {"job_labels_pkey"},
    "point_keys": {"idempotency_keys_pkey"},
    "prune_rollups": {"rollups_pkey"},
    "read_rollups": {"rollups_pkey"},
    "read_run_times": {"rollups_pkey"},
    "roll_up_parts": set(),
    "promote_due": {"jobs_due", "jobs_pkey"},
    "prune_jobs": {
        "attempts_pkey",
        "dead_letters_pkey",
        "dependencies_on",
        "dependencies_pkey",
        "event_log_pkey",
        "job_labels_pkey",
        "job_specs_pkey",
        "jobs_finished",
        "jobs_pkey",
        "output_bundles_in_files",
    },
    "prune_memories": {"gone_jobs_age", "gone_jobs_pkey", "idempotency_keys_expiry", "idempotency_keys_pkey"},
    "put_back": {"jobs_pkey", "jobs_set_aside"},
    "queue_heads": {"jobs_ready"},
    "queued_among": {"jobs_pkey"},
    "read_back_claims": {"jobs_pkey", "leases_pkey"},
    "read_back_jobs": {"jobs_pkey"},
    "read_history": {"attempts_pkey", "event_log_pkey", "jobs_pkey", "leases_pkey"},
    "read_inputs": {"dependencies_pkey", "groups_pkey", "jobs_pkey"},
    "read_jobs": {"jobs_pkey", "leases_pkey"},
    "read_live_delayed": {"jobs_due"},
    "read_live_queued": {"jobs_ready"},
    "read_live_running": {"jobs_pkey", "leases_pkey"},
    "turn_outbox_page": {"event_log_pkey", "jobs_pkey", "outbox_pkey"},
    "read_result_refs": {"jobs_pkey"},
    "read_whole_job": {"attempts_pkey", "jobs_pkey", "leases_pkey"},
    "reap_expired": {"jobs_pkey", "leases_pkey"},
    "find_given_up": {
        "dead_letters_pkey",
        "dependencies_on",
        "dependencies_pkey",
        "groups_pkey",
        "job_labels_pkey",
        "jobs_pkey",
    },
    "find_given_up_callback": {"dependencies_pkey", "groups_pkey", "jobs_pkey"},
    "revive_jobs": {"groups_pkey", "jobs_pkey"},
    "set_callback": {"groups_pkey"},
    "point_again": {"dependencies_open", "jobs_pkey"},
    "redrive_jobs": {"dead_letters_pkey", "dependencies_pkey", "groups_pkey", "jobs_pkey", "queue_counts_pkey"},
    "release_if_leased": {"jobs_pkey", "leases_pkey"},
    "release_leases": {"leases_pkey"},
    "renew_leases": {"jobs_pkey", "leases_pkey"},
    "search_dead_jobs": {"dead_letters_pkey", "jobs_pkey"},
    "search_jobs": {"jobs_pkey"},
    "search_labelled_jobs": {"job_labels_pkey", "jobs_pkey"},
    "search_live_jobs": {"jobs_due", "jobs_pkey", "jobs_ready", "leases_pkey"},
    "search_running_jobs": {"jobs_pkey", "leases_pkey"},
    "search_waiting_jobs": {"jobs_due", "jobs_pkey", "jobs_ready"},
    "select_for_publish": {"jobs_ready", "queues_pkey"},
    "set_aside": {"jobs_pkey", "jobs_ready"},
    "stray_claims": {"jobs_pkey"},
    "take_jobs": {"jobs_pkey", "jobs_ready", "queues_pkey"},
    "take_fitting_jobs": {"jobs_pkey", "jobs_ready", "queues_pkey"},
    "take_resident_jobs": {"jobs_pkey", "jobs_ready", "queues_pkey"},
    "take_settled": {"settled_pkey"},
    "take_over_jobs": {"jobs_pkey", "leases_pkey"},
    "displace_jobs": {
        "jobs_limited",
        "jobs_pkey",
        "limit_keys_pkey",
        "limit_nudges_pkey",
        "limit_places_of_key",
        "limit_rules_pkey",
        "queues_pkey",
    },
    "emitted_before": {"leases_pkey"},
}

#: What a statement goes through from the beginning: all leases, of which there are as many as jobs in progress; the
#: delayed jobs, but only to the first, or all that wait if they are few; and the outbox, for a page.
WALKED = {
    "count_live_jobs": {"jobs"},
    "count_waiting_jobs": {"jobs"},
    "leased_messages": {"leases"},
    "list_open_batches": {"batches"},
    "list_held_jobs": {"leases"},
    "list_workers": {"leases"},
    "admit_jobs": {"limit_nudges"},
    "displace_jobs": {"limit_nudges"},
    "look_ahead": {"limit_keys", "limit_nudges", "limit_takes", "outbox"},
    "next_due": {"limit_keys", "limit_nudges", "limit_takes"},
    "note_starts": {"limit_takes"},
    "outbox_depth": {"outbox"},
    "reap_expired": {"leases"},
    "roll_up_parts": {"rollup_parts"},
    "search_live_jobs": {"jobs"},
    "search_waiting_jobs": {"jobs"},
    "stray_claims": {"leases"},
    "take_settled": {"settled"},
    "turn_outbox_page": {"outbox"},
}

#: CTEs of one row, which say the time or how to commit; in what order they are joined does not matter.
SINGLE = {"moment", "relaxed"}

#: Of a table without rows two ways through it cost the same, and old statistics decide; it is planned anew once it has
#: rows. By statement: the index that may be left aside then, and its table.
WITHOUT_ROWS = {"admit_jobs": ("limit_keys_next", "limit_keys")}
ROWLESS = ("new", "empty", "emptied", "remembered")

#: Keys with limits, most of which wait for nothing.
LIMIT_KEYS = """
INSERT INTO limit_keys (queue, key, next_at)
SELECT 'default', 'key ' || n, CASE WHEN n % 20 = 0 THEN now() END FROM generate_series(1, 40) AS n
"""

#: Read in one piece, with or without an index: there are a handful of rows, however many jobs.
SMALL = {"pauses", "pauses_pkey", "queues", "queues_pkey", "queue_counts"}


@pytest.fixture(scope="module", params=["new", "empty", "few", "full", "emptied", "remembered"])
async def filled(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    database = Database(url, 4)
    async with database.opened():
        await truncate(database.pool)
        if request.param in ("full", "emptied"):
            async with database.pool.acquire() as connection:
                await fill(connection, finished=20_000, queued=5_000)
        if request.param in ("few", "full", "remembered"):
            for status in JobStatus:
                first = await make_job(database, status, spec_hash=b"s" * 32)
                await make_job(database, status)
                waiting = new_job(depends_on=(Dependency(on_id=first),))
                assert await enqueue(database, [waiting]) == [Created(waiting.id)]
            await database.pool.execute(LIMIT_KEYS)
        if request.param == "emptied":
            await empty(database.pool)
        if request.param != "new":
            await database.pool.execute("VACUUM ANALYZE")
        if request.param == "remembered":  # the statistics of few rows stay when the table is empty
            await truncate(database.pool)
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
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE looked_at {nulls and f'({nulls})'}")
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


def spared(name: str, request: pytest.FixtureRequest) -> set[str]:
    """What does not matter while the tables have no rows."""
    return set(WITHOUT_ROWS.get(name, ())) if request.node.callspec.params["filled"] in ROWLESS else set()


@pytest.mark.parametrize("name", sorted(INDEXES))
async def test_a_statement_goes_through_its_indexes_and_no_others(
    filled: Database, name: str, request: pytest.FixtureRequest
) -> None:
    plan = await plan_of(filled, name)

    used = {node["Index Name"] for node in walk(plan) if "Index Name" in node}
    left_aside = SMALL | spared(name, request)
    assert used - left_aside == INDEXES[name] - left_aside, shown(plan)


@pytest.mark.parametrize("name", sorted(INDEXES))
async def test_a_statement_never_reads_a_whole_table(
    filled: Database, name: str, request: pytest.FixtureRequest
) -> None:
    plan = await plan_of(filled, name)

    assert whole_tables_in(plan) - spared(name, request) == WALKED.get(name, set()), shown(plan)


@pytest.mark.parametrize(
    "name", sorted(INDEXES.keys() - {"list_held_jobs", "turn_outbox_page"})
)  # their batches are in rows
async def test_a_statement_joins_from_the_batch_to_the_table(filled: Database, name: str) -> None:
    plan = await plan_of(filled, name)

    assert wrong_joins_in(plan) == [], shown(plan)


@pytest.mark.parametrize("name", sorted(INDEXES.keys() - {"cancel_jobs"}))  # few jobs are canceled at a time
async def test_a_statement_never_compares_every_row_of_a_list_with_every_row_of_another(
    filled: Database, name: str
) -> None:
    """The planner takes a batch for ten rows. With a batch of 250, a join of two lists is 62 500 comparisons."""
    plan = await plan_of(filled, name)

    joins = [node for node in walk(plan) if node["Node Type"] == "Nested Loop"]
    if name in (
        "note_starts",
        "roll_up_parts",
        "turn_outbox_page",
    ):  # take the arrays of each row apart (LATERAL), and compare nothing
        joins = [node for node in joins if "Join Filter" in node]
    assert [node for node in joins if all(asked_in(side) and not tables_in(side) for side in node["Plans"])] == []
    filters = [node["Filter"] for node in walk(plan) if "ANY (" in node.get("Filter", "") and asked_in(node)]
    assert [text for text in filters if "SubPlan" in text and "(hashed SubPlan" not in text] == []


@pytest.mark.parametrize(("name", "count"), [("enqueue_keyed_jobs", 2), ("enqueue_keyed_and_take", 2)])
async def test_jobs_and_keys_that_were_booked_find_each_other_by_hash(filled: Database, name: str, count: int) -> None:
    plan = await plan_of(filled, name)

    assert sum("(hashed SubPlan" in node.get("Filter", "") for node in walk(plan)) == count, shown(plan)


# Without what keeps the plans as they are, the tests above would reject them.

CONTROLS = [
    "cancel_jobs",
    "claim_jobs",
    "complete_and_take",
    "complete_if_leased",
    "enqueue_and_take",
    "renew_leases",
    "take_fitting_jobs",
    "take_jobs",
    "take_over_jobs",
    "take_resident_jobs",
]


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
