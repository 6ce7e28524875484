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

from jobd.auth.table import TokenRow
from jobd.job.history import LEASE_EXPIRED
from jobd.lifecycle.claim import ClaimRow
from jobd.lifecycle.lease import LeaseRecord
from jobd.lifecycle.outbox import Live, OutboxRow
from jobd.lifecycle.prune import Pruned
from jobd.lifecycle.publish import Ahead, Offer
from jobd.lifecycle.read import Attempt, DeadLetterEntry, Job, JobSummary, QueueStats
from jobd.lifecycle.waiting import OutboxDepth
from jobd.lifecycle.workers import HeldJob, Holder
from jobd.store.statements import all_statements

if TYPE_CHECKING:
    from jobd.store.postgres import Database

PACKAGES = ("jobd.lifecycle", "jobd.auth")
STATEMENTS = {name: text for package in PACKAGES for name, text in all_statements(package).items()}

#: What the rows of a statement are made into, and columns beside; or just its columns. None: it has no rows.
ROWS: dict[str, tuple[type[msgspec.Struct] | None, str] | None] = {
    "acquire_leases": (LeaseRecord, ""),
    "append_events": (None, "n attempt_no last_n"),
    "append_audit": None,
    "cancel_jobs": (None, "job_id status event_n"),
    "claim_jobs": (ClaimRow, "n"),
    "complete_if_leased": (None, "n"),
    "create_token": None,
    "enqueue_jobs": (None, "id created_at"),
    "explain_claims": (None, "job_id status enqueue_id cancel_requested lease_token"),
    "explain_reports": (None, "job_id attempt_id lease_token outcome outcome_hash number status attempt_no"),
    "fail_if_leased": (None, "job_id attempt_id lease_token status enqueue_id run_after retryable"),
    "explain_waiting": (None, "job_id attempt_count in_line paused ahead"),
    "find_twins": (None, "n id"),
    "held_among": (None, "job_id"),
    "leased_messages": (None, "message_id"),
    "queued_among": (None, "job_id"),
    "read_installation": (None, "id"),
    "delete_outbox_rows": None,
    "is_gone": (None, "job_id"),
    "last_chunks": (None, "n attempt_no first_n"),
    "list_by_spec": (JobSummary, "fits"),
    "list_dead_letters": (DeadLetterEntry, ""),
    "list_held_jobs": (HeldJob, ""),
    "list_jobs": (JobSummary, "fits"),
    "list_workers": (Holder, "total"),
    "lock_fresh_letters": (None, "job_id"),
    "lock_specs": (None, "pg_advisory_xact_lock"),
    "look_ahead": (Ahead, ""),
    "outbox_depth": (OutboxDepth, ""),
    "note_raw_workers": None,
    "pause_queue": None,
    "raise_epoch": None,
    "read_epoch": (None, "epoch"),
    "point_keys": None,
    "poll_claim_jobs": (ClaimRow, ""),
    "promote_due": (None, "job_id queue"),
    "prune_jobs": (Pruned, ""),
    "prune_memories": (None, "?column?"),
    "queue_heads": (None, "queue waits_s"),
    "queue_stats": (QueueStats, ""),
    "queues_with_work": (None, "queue"),
    "read_attempts": (Attempt, ""),
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
    "read_outbox": (OutboxRow, ""),
    "read_result_refs": (None, "result_ref"),
    "read_tokens": (TokenRow, ""),
    "reap_expired": (None, "job_id attempt_id owner_id status enqueue_id late_s"),
    "redrive_jobs": (None, "job_id new_id full_queue"),
    "release_if_leased": (None, "job_id attempt_id lease_token status enqueue_id run_after"),
    "release_leases": (None, "resource_id lease_token"),
    "renew_leases": (LeaseRecord, "lease_ttl_s cancel_requested"),
    "revoke_tokens": (None, "id name"),
    "select_for_publish": (Offer, ""),
    "take_keys": (None, "principal key job_id body_hash"),
    "take_over_jobs": (ClaimRow, "status"),
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
    "text": str,
    "text[]": list[str],
    "timestamptz": datetime,
    "uuid": UUID,
}


def comment_of(text: str) -> str:
    lines = [line.removeprefix("--") for line in text.splitlines() if line.startswith("--")]
    comment = " ".join(lines)
    if borrowed := re.search(r"Parameters as in (\w+)", comment):
        return comment_of(STATEMENTS[borrowed[1]])
    return comment


def declared_parameters(text: str) -> list[str]:
    """What the comment says about $1, $2 and so on."""
    parts = re.split(r"\$(\d+)", comment_of(text))
    numbers = [int(number) for number in parts[1::2]]
    assert numbers == list(range(1, len(numbers) + 1)), numbers
    return parts[2::2]


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
    fields = struct.__struct_fields__ if struct else ()
    assert sorted(columns) == sorted([*fields, *others.split()])
    if struct:
        for field, annotation in typing.get_type_hints(struct).items():
            assert python_types(annotation) == {PYTHON[columns[field]]}, field


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_that_moves_time_takes_it_from_one_word(name: str) -> None:
    """Time comes from the caller's `now` or the clock at that moment; never from the start of the transaction."""
    sql = re.sub(r"--.*", "", STATEMENTS[name])

    assert not re.search(r"\b(now|statement_timestamp|transaction_timestamp)\(\)|current_timestamp", sql)
