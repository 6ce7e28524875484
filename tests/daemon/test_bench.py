"""`jobd bench`: what it prints for people and programs, and that nothing is left behind. No figure is judged.

Two benchmarks run at every check, the others with --slow.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.support.daemon import run_jobd

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemon import Jobd

TINY = ("--seconds", "0", "--rounds", "1")
LEFT_BEHIND = """
SELECT (SELECT count(*) FROM jobd.jobs) + (SELECT count(*) FROM jobd.attempts) + (SELECT count(*) FROM jobd.leases)
     + (SELECT count(*) FROM jobd.outbox) + (SELECT count(*) FROM jobd.queue_counts)
     + (SELECT count(*) FROM pg_tables WHERE tablename LIKE 'bench%')
"""


@pytest.fixture
def on_shared(shared: Jobd) -> tuple[str, ...]:
    return ("bench", "engine", "--url", shared.addresses["DATABASE_URL"], *TINY)


@pytest.mark.slow
def test_table_has_a_row_for_every_batch_size(folder: Path) -> None:
    done = run_jobd("bench", "engine", *TINY, TMPDIR=str(folder))

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == [
        *("batch", "INSERT", "UPDATE", "enqueue", "claim", "complete", "claim+complete", "lifecycle", "of", "floor"),
    ]
    assert [line.split()[0] for line in table[1:6]] == ["1", "10", "100", "500", "1000"]
    assert len({len(line) for line in table[:6]}) == 1, "aligned"
    assert table[7].startswith("lifecycle, batch 500, two connections: ")
    assert table[8].startswith("commits of one row: ")


@pytest.mark.slow
def test_its_own_server_leaves_nothing_behind(folder: Path) -> None:
    done = run_jobd("bench", "engine", *TINY, "--profile", TMPDIR=str(folder))

    assert done.returncode == 0
    assert list(folder.iterdir()) == []


async def test_json_has_every_round_and_a_given_server_is_left_as_it_was(
    shared: Jobd, on_shared: tuple[str, ...]
) -> None:
    done = run_jobd(*on_shared, "--rounds", "2", "--json")

    assert done.returncode == 0
    assert "queue jobd-bench" in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert [row["batch"] for row in found["batches"]] == [1, 10, 100, 500, 1000]
    for row in found["batches"]:
        assert len(row["rounds"]) == 2
        assert set(row["median"]) == {
            *("insert", "update", "enqueue", "claim", "complete", "claim_complete", "lifecycle"),
        }
        assert all(rate > 0 for rates in (row["median"], *row["rounds"]) for rate in rates.values())
    assert len(found["two_connections"]["rounds"]) == len(found["commits"]["rounds"]) == 2
    connection = await asyncpg.connect(shared.addresses["DATABASE_URL"])
    try:
        assert await connection.fetchval(LEFT_BEHIND) == 0
    finally:
        await connection.close()


@pytest.mark.slow
def test_profile_names_the_busiest_functions(on_shared: tuple[str, ...]) -> None:
    done = run_jobd(*on_shared, "--profile")

    assert done.returncode == 0
    assert done.stdout.startswith("lifecycle, batch 500: Python works ")
    assert "tottime" in done.stdout


async def test_only_one_at_a_time_on_a_server(shared: Jobd, on_shared: tuple[str, ...]) -> None:
    connection = await asyncpg.connect(shared.addresses["DATABASE_URL"])
    try:
        await connection.execute("SELECT pg_advisory_lock(hashtext('jobd bench'))")

        done = run_jobd(*on_shared)
    finally:
        await connection.close()

    assert done.returncode == 75
    assert "another `jobd bench` runs there" in done.stderr


def test_server_without_the_schema_is_refused(shared: Jobd) -> None:
    url = shared.addresses["DATABASE_URL"].replace("//jobd@/jobd?", "//postgres@/postgres?")

    done = run_jobd("bench", "engine", "--url", url, *TINY)

    assert done.returncode == 69
    assert "jobd migrate" in done.stderr


def test_e2e_tells_jobs_floors_and_latency_and_leaves_nothing_behind(folder: Path) -> None:
    done = run_jobd("bench", "e2e", "--jobs", "500", "--rounds", "1", "--json", TMPDIR=str(folder))

    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found["median"]) == {"jobs", "postgres", "redis", "p50_ms", "p99_ms", "python_us"}
    assert all(value > 0 for value in found["median"].values())
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_http_tells_submits_beside_the_floor(folder: Path) -> None:
    done = run_jobd("bench", "http", "--seconds", "0.2", "--rounds", "1", TMPDIR=str(folder))

    assert (done.returncode, done.stderr) == (0, "")
    assert "of the floor" in done.stdout
    assert "in batches of 100" in done.stdout
    assert list(folder.iterdir()) == []
