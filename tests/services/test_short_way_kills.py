"""kill -9 in the middle of the commits that enqueue, take and finish; and a Redis that is flushed or away.

What counts are the runs that the handler wrote down itself: nothing acknowledged is lost, no attempt runs twice,
nothing runs after it is done, and for slots nothing depends on Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

import pytest
import redis

from tests.support import servers
from tests.support.daemon import READY_S
from tests.support.http import Api
from tests.support.node import new_database
from tests.support.recorded_runs import RecordedRuns, Run, ask, more_than_once, until_all_are_done
from tests.support.statement_gate import StatementGate
from tests.support.submit_load import SubmitLoad
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd

#: Clients that submit at once, so that commits carry several jobs and slots are seldom idle.
CLIENTS = 4
#: Short, so that what a dead jobd took by a late commit comes back within the test.
LEASES = """
[leases]
ttl_s = 10
heartbeat_s = 1
"""
#: Written by the commit that a jobd is killed in: a new job, the end of an attempt. None: at a random moment.
TABLES = ("jobs", "attempts", None)
#: Jobs of one client that are acknowledged between two faults.
SOME = 10
#: Jobs that are submitted at once, with Redis there or away.
MANY = 40


@pytest.fixture
def database_url(shared_postgres: str) -> str:
    return asyncio.run(new_database(shared_postgres))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_jobd_killed_in_the_middle_of_commits_loses_and_doubles_nothing(
    jobd: Callable[..., Jobd], database_url: str, folder: Path, kills: int
) -> None:
    runs, seed = RecordedRuns(folder), random.randrange(1 << 30)
    with servers.valkey(folder) as redis_url:
        daemon = jobd(
            None, *runs.arguments(LEASES), **runs.variables(), JOBD_POSTGRES_URL=database_url, JOBD_REDIS_URL=redis_url
        )
        with submitting(daemon) as loads, StatementGate(database_url) as gate:
            chance = random.Random(seed)
            daemon.start().until_ready()
            for kill in range(kills):
                loads[0].wait_for_more(READY_S, SOME)
                kill_within(daemon, gate, TABLES[kill % len(TABLES)], chance)
                start_beside_the_dead(daemon, gate, chance)
            loads[0].wait_for_more(READY_S, SOME)
        until_all_are_done(daemon)
        for load in loads:
            load.check()
        check_runs(daemon, runs)
        assert daemon.stop() == 0, f"seed {seed}: {daemon.log()}"


def kill_within(daemon: Jobd, gate: StatementGate, table: str | None, chance: random.Random) -> None:
    """Kill jobd while a statement has written to the table and not committed; None: at any moment."""
    if table is None:
        time.sleep(chance.random() * 0.3)  # the fault's moment, not a wait for anything
    else:
        gate.close(table)
        gate.wait_for_statement()
    daemon.kill()


def start_beside_the_dead(daemon: Jobd, gate: StatementGate, chance: random.Random) -> None:
    """What the dead jobd left open commits before the next one starts, or while it does."""
    gate.let_pass()
    if chance.random() < 0.5:
        gate.open()
    daemon.start()
    time.sleep(chance.random() * 2.0)  # the fault's moment, not a wait for anything
    gate.open()
    daemon.until_ready()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_flushed_redis_changes_nothing_for_slots(
    jobd: Callable[..., Jobd], database_url: str, folder: Path, times: int
) -> None:
    with serving(jobd, database_url, folder) as (daemon, runs, redis_url):
        with submitting(daemon) as loads, redis.Redis.from_url(redis_url) as client:
            for _ in range(times):
                loads[0].wait_for_more(READY_S, SOME)
                client.flushall()
            loads[0].wait_for_more(READY_S, SOME)
        until_all_are_done(daemon)

        assert more_than_once([run.job_id for run in runs.begun()]) == []
        check_runs(daemon, runs)
        for load in loads:
            load.check()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_redis_that_is_away_changes_nothing_for_slots(
    jobd: Callable[..., Jobd], database_url: str, folder: Path, times: int
) -> None:
    job_ids: set[str] = set()
    with (
        serving(jobd, database_url, folder) as (daemon, runs, _),
        contextlib.ExitStack() as started_again,
    ):
        for _ in range(times):
            job_ids |= submit(daemon, MANY)
            servers.kill_valkey(folder)
            job_ids |= submit(daemon, MANY)
            until_ended(daemon, runs, job_ids)
            started_again.enter_context(servers.valkey(folder))
        job_ids |= submit(daemon, MANY)
        until_all_are_done(daemon)

        begun = [run.job_id for run in runs.begun()]
        assert more_than_once(begun) == []
        assert set(begun) == job_ids
        check_runs(daemon, runs)


@contextlib.contextmanager
def serving(jobd: Callable[..., Jobd], url: str, folder: Path) -> Iterator[tuple[Jobd, RecordedRuns, str]]:
    runs = RecordedRuns(folder)
    with servers.valkey(folder) as redis_url:
        daemon = jobd(None, *runs.arguments(), **runs.variables(), JOBD_POSTGRES_URL=url, JOBD_REDIS_URL=redis_url)
        yield daemon.start().until_ready(), runs, redis_url
        assert daemon.stop() == 0


def submit(daemon: Jobd, number: int) -> set[str]:
    answer = Api(daemon.address)(
        "POST", "/v1/jobs/batch", [{"task": "double", "payload": {"n": n}} for n in range(number)]
    )
    assert answer.status == 202, answer
    return {entry["job_id"] for entry in answer.json["jobs"]}


@contextlib.contextmanager
def submitting(daemon: Jobd) -> Iterator[list[SubmitLoad]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(SubmitLoad(daemon)) for _ in range(CLIENTS)]


def check_runs(daemon: Jobd, runs: RecordedRuns) -> None:
    """What the handler wrote and what Postgres knows agree: no attempt was run twice, none after the job was done."""
    begun, ended = runs.begun(), set(runs.ended())
    rows = ask(daemon, "SELECT job_id::text, number, outcome::text FROM jobd.attempts")
    done = {row["job_id"]: row["number"] for row in rows if row["outcome"] == "done"}
    known = {Run(row["job_id"], row["number"]) for row in rows}

    assert more_than_once(begun) == []
    assert set(begun) <= known
    assert [run for run in begun if run.attempt > done[run.job_id]] == []
    assert {Run(job_id, number) for job_id, number in done.items()} <= ended


def until_ended(daemon: Jobd, runs: RecordedRuns, job_ids: set[str]) -> None:
    def missing() -> set[str]:
        return job_ids - {run.job_id for run in runs.ended()}

    wait_until(lambda: not missing(), lambda: f"wait for Redis: {missing()} {daemon.log()}", 60)
