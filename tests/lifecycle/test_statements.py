"""Every statement prepares on the real schema, and its comment, its parameters and its rows' Struct say the same."""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
import typing
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from jobd.auth.sessions import SessionRow
from jobd.auth.table import AuditRow, TokenRow
from jobd.batches.table import LineEnd, StoredBatch
from jobd.files.table import StoredFile
from jobd.job.history import INTERRUPTED, INTERRUPTIONS_EXHAUSTED, LEASE_EXPIRED
from jobd.lifecycle.admit import LimitRule
from jobd.lifecycle.claim import ClaimRow
from jobd.lifecycle.dead_letter_groups import LetterGroup
from jobd.lifecycle.depend import Edge
from jobd.lifecycle.groups import Group
from jobd.lifecycle.lease import LeaseRecord
from jobd.lifecycle.outbox import Live, OutboxJob
from jobd.lifecycle.prune import Pruned
from jobd.lifecycle.publish import Ahead, Offer
from jobd.lifecycle.read import DeadLetterEntry, Job, QueueStats
from jobd.lifecycle.rollups import Rollup
from jobd.lifecycle.search import JobSummary
from jobd.lifecycle.settle import LinksAhead
from jobd.lifecycle.waiting import OutboxDepth
from jobd.lifecycle.workers import HeldJob, Holder
from jobd.store.leader import NODE_PREFIX
from jobd.store.statements import all_statements

if TYPE_CHECKING:
    from jobd.store.postgres import Database

PACKAGES = ("jobd.lifecycle", "jobd.auth", "jobd.files", "jobd.batches")
STATEMENTS = {name: text for package in PACKAGES for name, text in all_statements(package).items()}

#: What the rows of a statement are made into, and columns beside; or just its columns. None: it has no rows.
ROWS: dict[str, tuple[type[msgspec.Struct] | type[OutboxJob] | None, str] | None] = {
    "acquire_leases": (LeaseRecord, ""),
    "append_events": (None, "n attempt_no last_n"),
    "append_audit": None,
    "cancel_jobs": (None, "job_id status event_n queue task"),
    "change_mode": (None, "mode_no"),
    "claim_jobs": (ClaimRow, "n"),
    "complete_and_take": (ClaimRow, "done_queue done_task finished run_s"),
    "complete_if_leased": (None, "done_queue done_task finished run_s"),
    "close_dependencies": (None, "job_id on_id is_group fails"),
    "close_session": None,
    "count_settled": (None, "id"),
    "create_login_code": None,
    **dict.fromkeys(
        (
            *("advance_batch", "begin_batch", "cancel_batch", "create_batch", "fail_batch", "finalize_batch"),
            *("finish_batch", "list_open_batches", "prune_batches"),
        ),
        (None, "id"),
    ),
    "list_batches": (StoredBatch, ""),
    "read_batch": (StoredBatch, ""),
    "read_line_ends": (LineEnd, ""),
    "create_file": (StoredFile, ""),
    "delete_file": (None, "ref"),
    "list_newest_files": (StoredFile, ""),
    "list_oldest_files": (StoredFile, ""),
    "prune_files": (None, "ref"),
    "read_file": (StoredFile, ""),
    "read_file_refs": (None, "ref"),
    "create_group": (None, "id"),
    "delete_jobs": (Pruned, ""),
    "create_token": None,
    "list_groups": (Group, ""),
    "prune_groups": (None, "groups"),
    "read_group": (Group, ""),
    "seal_group": (None, "id"),
    "prune_sessions": (None, "?column?"),
    "enqueue_and_take": (ClaimRow, "created_at accepted"),
    "enqueue_jobs": (None, "created_at accepted"),
    "enqueue_keyed_and_take": (ClaimRow, "created_at accepted principals keys job_ids body_hashes"),
    "enqueue_keyed_jobs": (None, "created_at accepted principals keys job_ids body_hashes"),
    "drop_settled": None,
    "ensure_queues": None,
    "explain_claims": (None, "job_id status enqueue_id cancel_requested lease_token"),
    "explain_reports": (None, "job_id attempt_id lease_token outcome outcome_hash number status attempt_no"),
    "fail_if_leased": (
        None,
        "job_id attempt_id lease_token status enqueue_id run_after retryable queue task outcome run_s",
    ),
    "explain_waiting": (
        None,
        "job_id queue task attempt_count in_line snoozes held limit_key until_at paused ahead due_s",
    ),
    "find_group_rings": (None, "job_id"),
    "find_twins": (None, "n id"),
    "hold_jobs": None,
    "keep_settled": None,
    "let_go": (None, "job_id queue task status is_held in_line is_limited has_places"),
    "list_dependencies": (Edge, ""),
    "list_dependents": (None, "job_id on_id is_group on_any ref open"),
    "lock_groups": (None, "id owner sealed is_finished has_failures"),
    "lock_predecessors": (None, "id owner status"),
    "look_for_links": (LinksAhead, ""),
    "held_among": (None, "job_id"),
    "leased_messages": (None, "message_id"),
    "queued_among": (None, "job_id"),
    "read_inputs": (None, "n on_id is_group ref status result error is_large"),
    "read_installation": (None, "id"),
    "is_gone": (None, "job_id"),
    "owned_among": (None, "job_id"),
    "last_chunks": (None, "n attempt_no first_n"),
    "list_by_spec": (JobSummary, "fits"),
    "group_dead_letters": (LetterGroup, "looked_at groups"),
    "list_dead_letters": (DeadLetterEntry, "fits looked"),
    "list_held_jobs": (HeldJob, ""),
    "list_workers": (Holder, "total"),
    "lock_fresh_letters": (None, "job_id"),
    "lock_specs": (None, "pg_advisory_xact_lock"),
    "look_ahead": (Ahead, ""),
    "outbox_depth": (OutboxDepth, ""),
    "note_raw_workers": None,
    "pause_queue": None,
    "lock_admission": (None, "pg_advisory_xact_lock"),
    "admit_jobs": (None, "queue number"),
    "note_starts": (None, "takes is_clock_agreed"),
    "displace_jobs": (None, "count"),
    "nudge_keys": None,
    "forget_starts": (None, "count"),
    "set_limit": None,
    "drop_limit": (None, "key"),
    "read_limits": (LimitRule, ""),
    "set_pause": None,
    "drop_pause": None,
    "read_pauses": (None, "kind name paused"),
    "set_aside": (None, "count"),
    "put_back": (None, "queue"),
    "expire_jobs": (None, "job_id queue task"),
    "hold_epoch": (None, "epoch"),
    "raise_epoch": None,
    "read_epoch": (None, "epoch"),
    "point_keys": None,
    "prune_rollups": (None, "rollups"),
    "read_rollups": (Rollup, ""),
    "read_run_times": (None, "queue run_s attempts"),
    "roll_up_parts": (None, "parts"),
    "next_due": (None, "due_in_s"),
    "promote_due": (None, "job_id queue"),
    "prune_jobs": (Pruned, ""),
    "prune_memories": (None, "?column?"),
    "queue_heads": (None, "queue waits_s"),
    "queue_modes": (None, "name mode mode_no paused"),
    "queue_stats": (QueueStats, ""),
    "queues_with_work": (None, "queue"),
    "read_audit": (AuditRow, ""),
    "read_back_claims": (ClaimRow, ""),
    "read_back_jobs": (None, "id"),
    "read_history": (
        None,
        "n status task queue attempt_no created_ts finished_ts error acquired_ts open_n attempts chunks is_cut",
    ),
    "read_jobs": (Job, ""),
    "read_live_delayed": (Live, "due_at"),
    "read_live_queued": (Live, "order_at"),
    "read_live_running": (Live, ""),
    "turn_outbox_page": (OutboxJob, "seqs age_s"),
    "read_payloads": (None, "job_id payload"),
    "read_result_refs": (None, "result_ref"),
    **dict.fromkeys(("open_session", "open_session_by_code", "read_sessions"), (SessionRow, "")),
    "read_tokens": (TokenRow, ""),
    "read_whole_job": (Job, "attempts"),
    "reap_expired": (
        None,
        "job_id attempt_id owner_id status enqueue_id ended_no traceparent late_s queue task outcome run_s",
    ),
    "redrive_jobs": (None, "job_id new_id full_queue queue task"),
    "find_given_up": (None, "job_id on_id is_group on_any ref status again_id"),
    "find_given_up_callback": (None, "id ref"),
    "revive_jobs": (None, "job_id new_id queue task"),
    "set_callback": None,
    "lock_settled": (None, "seq"),
    "point_again": None,
    "take_back_finish": None,
    "release_if_leased": (None, "job_id attempt_id lease_token status enqueue_id run_after queue task outcome run_s"),
    "release_leases": (None, "resource_id lease_token"),
    "renew_leases": (LeaseRecord, "lease_ttl_s cancel_requested"),
    "revoke_tokens": (None, "id name"),
    **dict.fromkeys(
        (
            *("search_dead_jobs", "search_jobs", "search_labelled_jobs", "search_live_jobs", "search_running_jobs"),
            "search_waiting_jobs",
        ),
        (JobSummary, "fits"),
    ),
    **dict.fromkeys(
        (
            *("count_dead_jobs", "count_jobs", "count_labelled_jobs", "count_live_jobs", "count_running_jobs"),
            "count_waiting_jobs",
        ),
        (None, "fitting next_before"),
    ),
    "waiting_number": (None, "number"),
    "select_for_publish": (Offer, ""),
    "stray_claims": (ClaimRow, "renewed_s"),
    "take_jobs": (ClaimRow, ""),
    "take_fitting_jobs": (ClaimRow, "short_task"),
    "take_resident_jobs": (ClaimRow, ""),
    "take_keys": (None, "principal key job_id body_hash"),
    "take_over_jobs": (ClaimRow, "status outcome run_s"),
    "take_settled": (None, "seq id status group_id"),
    "write_payloads": None,
    "emitted_before": (None, "n attempt_no last_n told_n"),
}

#: Postgres' own names of types, as comments write them.
WORDS = {
    "bool": "bool",
    "bytea": "bytea",
    "float8": "float8",
    "int4": "int",
    "int8": "bigint",
    "interval": "interval",
    "text": "text",
    "timestamptz": "timestamptz",
    "uuid": "uuid",
}
PYTHON: dict[str, Any] = {
    "bool": bool,
    "bytea": bytes,
    "float8": float,
    "int4": int,
    "int8": int,
    "int8[]": list[int],
    "text": str,
    "text[]": list[str],
    "timestamptz": datetime,
    "uuid": UUID,
}


def comment_of(text: str) -> str:
    lines = [line.removeprefix("--") for line in text.splitlines() if line.startswith("--")]
    return " ".join(lines)


def declared_parameters(text: str) -> list[str]:
    """What the comment says about $1, $2 and so on; those of other statements that it names come first."""
    comment = comment_of(text)
    _, *named = comment.partition("Parameters as in ")
    declared = [
        parameter
        for name in re.findall(r"as in (\w+)", "".join(named))
        for parameter in declared_parameters(STATEMENTS[name])
    ]
    parts = re.split(r"\$(\d+)", comment)
    assert [int(number) for number in parts[1::2]] == [len(declared) + n for n in range(1, len(parts[1::2]) + 1)]
    return declared + parts[2::2]


def word(type_name: str) -> str:
    """As a comment writes it: int4[] is int[]."""
    return WORDS[type_name.removesuffix("[]")] + ("[]" if type_name.endswith("[]") else "")


def python_types(annotation: Any) -> set[type]:
    """The types that a field takes, None aside."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return {one for one in typing.get_args(annotation) if one is not types.NoneType}
    return {annotation}


def test_every_statement_is_listed_here() -> None:
    assert set(STATEMENTS) == set(ROWS)


def test_the_error_of_a_silent_holder_is_the_same_in_sql_and_in_the_history() -> None:
    said = [STATEMENTS[name].count("'the worker fell silent'") for name in ("reap_expired", "take_over_jobs")]

    assert said == [1, 1]
    assert msgspec.json.decode(LEASE_EXPIRED) == {
        "code": "lease_expired",
        "message": "the worker fell silent",
        "retryable": True,
    }


@pytest.mark.parametrize("error", [INTERRUPTED, INTERRUPTIONS_EXHAUSTED], ids=["interrupted", "exhausted"])
def test_the_error_of_an_interruption_is_the_same_in_sql_and_in_the_history(error: msgspec.Raw) -> None:
    said: dict[str, object] = msgspec.json.decode(error)

    text = " ".join(STATEMENTS["reap_expired"].split())
    assert text.count(f"'code', '{said['code']}', 'message', '{said['message']}', 'retryable', true") == 1


def test_the_prefix_of_nodes_is_the_same_in_sql_and_in_their_names() -> None:
    names, said = ("reap_expired", "take_over_jobs"), f"starts_with(l.owner_id, '{NODE_PREFIX}')"

    assert [STATEMENTS[name].count(said) for name in names] == [1, 1]


def test_every_statement_is_declared_once_in_the_module_of_its_verb() -> None:
    names = [
        f"{package}.{module.name}"
        for package in PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
    declared = [
        text
        for name in names
        for constant, text in vars(importlib.import_module(name)).items()
        if constant.isupper() and isinstance(text, str) and text.startswith("-- name: ")
    ]

    assert {*declared} == {*STATEMENTS.values()}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_a_statement_declares_its_parameters_as_postgres_sees_them(db: Database, name: str) -> None:
    async with db.pool.acquire() as connection:
        prepared = await connection.prepare(STATEMENTS[name])
        parameters = prepared.get_parameters()

    declared = declared_parameters(STATEMENTS[name])
    assert len(declared) == len(parameters)
    for text, parameter in zip(declared, parameters, strict=True):
        assert re.search(rf"(^|[\s(]){re.escape(word(parameter.name))}(?![\w\[])", text), (text, parameter.name)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_a_statement_returns_what_is_made_of_its_rows(db: Database, name: str) -> None:
    async with db.pool.acquire() as connection:
        prepared = await connection.prepare(STATEMENTS[name])
        columns = {attribute.name: attribute.type.name for attribute in prepared.get_attributes()}

    struct, others = ROWS[name] or (None, "")
    fields: tuple[str, ...] = getattr(struct, "__struct_fields__", getattr(struct, "_fields", ()))
    assert sorted(columns) == sorted([*fields, *others.split()])
    if struct:
        for field, annotation in typing.get_type_hints(struct, localns={"datetime": datetime}).items():
            assert python_types(annotation) == {PYTHON[columns[field]]}, field


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_that_moves_time_takes_it_from_one_word(name: str) -> None:
    """Time comes from the caller's `now` or the clock at that moment; never from the start of the transaction."""
    sql = re.sub(r"--.*", "", STATEMENTS[name])

    assert not re.search(r"\b(now|statement_timestamp|transaction_timestamp)\(\)|current_timestamp", sql)
