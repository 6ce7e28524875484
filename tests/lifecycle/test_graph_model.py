"""Any graph of jobs and groups, by any history: once every end is worked off the tables say what the pure model says,
and they never let a job run before its time. Tests at the end break a statement, and must see it found out.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import asyncpg
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from jobd.job.status import JobStatus
from jobd.lifecycle import depend as depend_verb
from jobd.lifecycle import settle as settle_verb
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.claim import ClaimedJob, claim
from jobd.lifecycle.depend import Dependency
from jobd.lifecycle.enqueue import Created, enqueue
from jobd.lifecycle.groups import NewGroup, create_group, read_group, seal_group
from jobd.lifecycle.settle import settle
from jobd.store.ids import new_id
from jobd.store.postgres import Database
from tests.lifecycle.test_depend import end, settle_all
from tests.support.factories import NOW, TTL_S, ask, assert_counters_are_right, empty, new_job
from tests.support.graph_model import FINAL, GraphModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from uuid import UUID

    from anyio.from_thread import BlockingPortal

#: What a broken statement shows itself by.
FOUND_OUT = (AssertionError, asyncpg.PostgresError)
#: Nobody waits in vain: what runs or could be had has no dependency that is open, or that failed it.
TOO_EARLY = """
SELECT d.job_id FROM dependencies d JOIN jobs ON jobs.id = d.job_id
WHERE (jobs.order_at IS NOT NULL OR jobs.status IN ('running', 'done', 'error'))
    AND (d.open OR NOT d.is_group AND coalesce((
        SELECT NOT (p.status = 'done' OR d.on_any AND p.finished_at IS NOT NULL) FROM jobs p WHERE p.id = d.on_id
    ), true))
"""
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2**30)), min_size=5, max_size=40)


class Graph:
    """A history that goes to the model and to the tables."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.model = GraphModel()
        self._ids: dict[str, UUID] = {}

    async def step(self, kind: int, random: Random) -> None:
        if kind < 45:
            await self.add_job(random)
        elif kind < 52:
            await self.add_group()
        elif kind < 60:
            await self.seal(random)
        elif kind < 84:
            await self.end(random)
        else:
            async with self._db.connection() as connection:
                await settle(connection, page=random.randint(1, 3), most_closed=random.randint(1, 2), now=NOW)
        assert await self._db.fetch(TOO_EARLY) == []

    async def add_job(self, random: Random) -> None:
        names = [*self.model.jobs, *self.model.groups]
        chosen = random.sample(names, min(len(names), random.choice([0, 1, 1, 2, 3])))
        depends_on = {name: random.random() < 0.4 for name in chosen}
        group = random.choice([None, *self.model.groups])
        if group in depends_on:
            return
        name = f"job {len(self._ids)}"
        job = new_job(
            group_id=self._ids[group] if group else None,
            depends_on=tuple(
                Dependency(on_id=self._ids[other], is_group=other in self.model.groups, on_any=on_any)
                for other, on_any in depends_on.items()
            ),
        )
        is_good = self.model.add_job(name, depends_on, group)
        (answer,) = await enqueue(self._db, [job], now=NOW)
        assert isinstance(answer, Created) == is_good or await self._is_behind(), (name, depends_on, group, answer)
        if isinstance(answer, Created) and not is_good:
            raise AssertionError(f"{name} should have been refused")
        if is_good and not isinstance(answer, Created):  # a ring of dependencies that have ended and are not closed yet
            del self.model.jobs[name]
            return
        if is_good:
            self._ids[name] = job.id

    async def _is_behind(self) -> bool:
        return bool(await self._db.fetchval("SELECT count(*) FROM settled"))

    async def add_group(self) -> None:
        name = f"group {len(self._ids)}"
        self._ids[name] = new_id()
        self.model.add_group(name)
        async with self._db.connection() as connection:
            await create_group(connection, NewGroup(id=self._ids[name]), now=NOW)

    async def seal(self, random: Random) -> None:
        if self.model.groups:
            name = random.choice(list(self.model.groups))
            self.model.seal(name)
            await seal_group(self._db, self._ids[name], now=NOW)

    async def end(self, random: Random) -> None:
        """Only of a job that the tables let run; the model may be ahead of them."""
        live = [name for name, job in self.model.jobs.items() if job.status not in FINAL]
        if not live:
            return
        name, status = random.choice(live), random.choice(["done", "done", "error", "canceled"])
        (answer,) = await claim(self._db, [ask(self._ids[name])], ttl_s=TTL_S, now=NOW)
        if isinstance(answer, ClaimedJob):
            assert self.model.end(name, status), f"{name} could be claimed and must wait"
            await end(self._db, answer, JobStatus(status))
        elif status == "canceled":
            assert self.model.end(name, status)
            await cancel(self._db, [self._ids[name]], now=NOW)

    async def check(self) -> None:
        """Once all ends are worked off, the tables say what the model says."""
        await settle_all(self._db)
        rows = await self._db.fetch("SELECT id, status, held, order_at IS NOT NULL AS in_line FROM jobs")
        seen = {row["id"]: "held" if row["held"] and row["status"] == "queued" else row["status"] for row in rows}
        words = {"ready": "queued"}
        for name, job in self.model.jobs.items():
            assert seen[self._ids[name]] == words.get(job.status, job.status), name
        for name, model in self.model.groups.items():
            group = await read_group(self._db, self._ids[name])
            assert group is not None
            assert (group.members, group.done, group.error, group.canceled) == self.model.counters(name), name
            assert group.status == (model.status or "running"), name
        assert await self._db.fetch(TOO_EARLY) == []
        assert await self._db.fetchval("SELECT count(*) FROM settled") == 0
        await assert_counters_are_right(self._db)


class Tables:
    def __init__(self, portal: BlockingPortal, database: Database) -> None:
        self._portal = portal
        self._database = database

    def live(self, steps: list[tuple[int, int]]) -> None:
        self._portal.call(self._live, steps)

    async def _live(self, steps: list[tuple[int, int]]) -> None:
        await empty(self._database.pool)
        graph = Graph(self._database)
        for kind, seed in steps:
            await graph.step(kind, Random(seed))
        await graph.check()


@pytest.fixture(scope="module")
def tables(url: str) -> Iterator[Tables]:
    with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
        database = Database(url, 3)
        with portal.wrap_async_context_manager(database.opened()):
            yield Tables(portal, database)


@pytest.mark.timeout(120)
@settings(max_examples=60)
@given(steps=STEPS)
def test_tables_and_model_agree_on_any_history(tables: Tables, steps: list[tuple[int, int]]) -> None:
    tables.live(steps)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=2_000)
@given(steps=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2**30)), min_size=10, max_size=120))
def test_tables_and_model_agree_on_any_long_history(tables: Tables, steps: list[tuple[int, int]]) -> None:
    tables.live(steps)


def wander(tables: Tables, histories: int = 300) -> None:
    """Random histories without Hypothesis, which would spend its time on making the finding small."""
    for seed in range(histories):
        random = Random(seed)
        tables.live([(random.randint(0, 99), random.getrandbits(30)) for _ in range(60)])


def without(text: str, part: str, other: str) -> str:
    assert part in text
    return text.replace(part, other)


#: Module, statement, what is broken in it, and by what.
BREAKS: dict[str, tuple[ModuleType, str, str, str]] = {
    "a job goes when its first dependency ends": (
        *(settle_verb, "LET_GO"),
        *("waits_for > a.number", "false"),
    ),
    "a failure is taken for a success": (settle_verb, "CLOSE_DEPENDENCIES", "a.failed AND NOT d.on_any", "false"),
    "any end is taken for a failure": (settle_verb, "CLOSE_DEPENDENCIES", "a.failed AND NOT d.on_any", "a.failed"),
    "canceled members do not count": (
        settle_verb,
        "COUNT_SETTLED",
        "groups.canceled + a.canceled,",
        "groups.canceled,",
    ),
    "a group finishes before it is sealed": (settle_verb, "COUNT_SETTLED", "WHEN sealed AND members", "WHEN members"),
    "a group finishes before its last member": (settle_verb, "COUNT_SETTLED", "AND members =", "AND members >="),
    "what ended before the submit is forgotten": (
        *(depend_verb, "HOLD_JOBS"),
        *("unnest($11::uuid[], $12::text[])", "unnest($11::uuid[], $12::text[]) LIMIT 0"),
    ),
    "predecessors are not marked": (depend_verb, "LOCK_PREDECESSORS", "SET linked = true", "SET linked = jobs.linked"),
    "members are not marked": (depend_verb, "HOLD_JOBS", "linked = a.linked", "linked = jobs.linked"),
    "the rest of a long page is dropped": (
        settle_verb,
        "KEEP_SETTLED",
        "UPDATE settled SET group_id = NULL",
        "DELETE FROM settled",
    ),
    "rings through groups are let in": (depend_verb, "FIND_GROUP_RINGS", "r.is_group);", "r.is_group AND false);"),
}


def test_the_histories_without_a_break_are_good(tables: Tables) -> None:
    wander(tables, 20)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_statement_is_found_out(tables: Tables, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, constant, part, other = BREAKS[name]
    monkeypatch.setattr(module, constant, without(getattr(module, constant), part, other))

    with pytest.raises(FOUND_OUT):
        wander(tables)
