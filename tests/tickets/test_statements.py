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

PACKAGES = ("jobd.tickets", "jobd.tickets.pollers")
STATEMENTS = {name: text for package in PACKAGES for name, text in all_statements(package).items()}

#: What the looks of an idle poller go through: indexes that hold nothing but work.
LOOKS = {
    "mark_ready": {"tickets_to_announce", "tickets_waiting", "tickets_pkey"},
    "find_ready_events": {"ticket_events_open", "leases_pkey"},
    "find_open_workorders": {"workorders_to_run", "leases_pkey"},
    "find_executed_workorders": {"workorders_to_judge", "leases_pkey"},
    "find_work": {
        *("tickets_to_announce", "tickets_waiting", "tickets_pkey", "ticket_events_open", "workorders_to_run"),
        *("workorders_to_judge", "leases_pkey"),
    },
}


def test_every_statement_is_declared_once_in_the_module_of_its_verb() -> None:
    declared = [
        text
        for package in PACKAGES
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        for constant, text in vars(importlib.import_module(f"{package}.{module.name}")).items()
        if constant.isupper() and isinstance(text, str) and text.startswith("-- name: ")
    ]

    assert {*declared} - {*all_statements("jobd.lifecycle").values()} == {*STATEMENTS.values()}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_a_statement_declares_its_parameters_as_postgres_sees_them(db: Database, name: str) -> None:
    async with db.pool.acquire() as connection:
        parameters = (await connection.prepare(STATEMENTS[name])).get_parameters()

    declared = declared_parameters(STATEMENTS[name])
    assert len(declared) == len(parameters)
    for text, parameter in zip(declared, parameters, strict=True):
        assert re.search(rf"(^|[\s(]){re.escape(word(parameter.name))}(?![\w\[])", text), (text, parameter.name)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_that_moves_time_takes_it_from_one_word(name: str) -> None:
    sql = re.sub(r"--.*", "", STATEMENTS[name])

    assert not re.search(r"\b(now|statement_timestamp|transaction_timestamp)\(\)|current_timestamp", sql)


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_no_statement_reads_a_whole_table(db: Database, name: str) -> None:
    nodes = list(walk(await plan(db, name)))

    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    assert scanned == ({"leases"} if name == "free_claims" else set())  # that one is rare, and the table is small


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_no_statement_compares_each_with_each(db: Database, name: str) -> None:
    """A join filter between a batch and a table would cost more with every row there."""
    nodes = list(walk(await plan(db, name)))

    assert [node["Join Filter"] for node in nodes if "Join Filter" in node] == []


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_goes_through_the_index_of_what_is_to_be_done(db: Database, name: str) -> None:
    nodes = list(walk(await plan(db, name)))

    assert {node["Index Name"] for node in nodes if "Index Name" in node} == LOOKS[name]


async def plan(db: Database, name: str) -> Node:
    async with db.pool.acquire() as connection:
        return await plan_on(connection, STATEMENTS[name])


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)
