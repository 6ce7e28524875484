"""Every statement prepares on the real schema, says which parameters it takes, and finds its rows through an index."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING

import pytest

from jobd.store.statements import all_statements
from tests.lifecycle.test_plans import Node, plan_on
from tests.lifecycle.test_statements import declared_parameters, word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.store.postgres import Database

PACKAGE = "jobd.schedules"
STATEMENTS = all_statements(PACKAGE)

#: What the looks of an idle service go through.
LOOKS = {
    "look_at_schedules": {"schedules_due", "schedules_buffered", "schedules_open"},
    "lock_due_schedules": {"schedules_due"},
    "lock_buffered_schedules": {"schedules_buffered"},
    "lock_open_schedules": {"schedules_open"},
    "lock_schedule": {"schedules_pkey"},
    "read_schedule": {"schedules_pkey"},
    "list_schedules": {"schedules_pkey"},
    "save_schedules": {"schedules_pkey"},
    "read_statuses": {"jobs_pkey"},
    "started_among": {"job_labels_pkey"},
    "read_schedule_events": {"schedule_events_pkey"},
    "append_schedule_events": {"schedule_events_pkey"},
}


def test_every_statement_is_declared_once_in_the_module_of_its_verb() -> None:
    declared = [
        text
        for module in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)
        for constant, text in vars(importlib.import_module(f"{PACKAGE}.{module.name}")).items()
        if constant.isupper() and isinstance(text, str) and text.startswith("-- name: ")
    ]

    assert {*declared} == {*STATEMENTS.values()}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_a_statement_declares_its_parameters_as_postgres_sees_them(db: Database, name: str) -> None:
    async with db.pool.acquire() as connection:
        parameters = (await connection.prepare(STATEMENTS[name])).get_parameters()

    declared = declared_parameters(STATEMENTS[name])
    assert len(declared) == len(parameters)
    for text, parameter in zip(declared, parameters, strict=True):
        assert re.search(rf"(^|[\s(]){re.escape(word(parameter.name))}(?![\w\[])", text), (text, parameter.name)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_takes_the_time_from_one_word(name: str) -> None:
    sql = re.sub(r"--.*", "", STATEMENTS[name])

    assert not re.search(r"\b(now|statement_timestamp|transaction_timestamp)\(\)|current_timestamp", sql)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_no_statement_reads_a_whole_table_or_compares_each_with_each(db: Database, name: str) -> None:
    nodes = list(walk(await plan(db, name)))

    assert [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"] == []
    assert [
        node["Join Filter"] for node in nodes if "Join Filter" in node and name != "plan_again_after_step_back"
    ] == []


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_goes_through_its_index(db: Database, name: str) -> None:
    nodes = list(walk(await plan(db, name)))

    assert {node["Index Name"] for node in nodes if "Index Name" in node} == LOOKS[name]


async def plan(db: Database, name: str) -> Node:
    async with db.pool.acquire() as connection:
        return await plan_on(connection, STATEMENTS[name])


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)
