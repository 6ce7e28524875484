"""Two nodes on one Postgres, one of them killed every second: each occurrence is one job, and none is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.support import servers
from tests.support.node import new_database
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

log = logging.getLogger(__name__)

SCHEDULES = 50
#: Nobody runs the jobs: what counts is that they are there.
CONFIG = "[queues.default]\nslots = 0\n" + "".join(
    f'[schedules.s{n}]\nevery = "1s"\ntask = "embed"\noverlap = "allow_all"\ncatch_up = "all"\n'
    for n in range(SCHEDULES)
)
#: Seconds after a whole one within which a node is killed: that is when it fires.
NEAR_S = 0.15
JOBS = """
SELECT s.value AS schedule, array_agg(t.value::bigint / 1000 ORDER BY t.value::bigint) AS seconds
FROM jobd.job_labels s JOIN jobd.job_labels t ON t.job_id = s.job_id AND t.name = 'jobd.scheduled_for'
WHERE s.name = 'jobd.schedule' GROUP BY 1
"""


def fetched(url: str, query: str) -> list[asyncpg.Record]:
    async def fetch() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    return asyncio.run(fetch())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seconds", [10, pytest.param(120, marks=pytest.mark.slow)])
def test_each_occurrence_is_one_job_whichever_node_is_killed(
    jobd: Callable[..., Jobd], shared_postgres: str, folder: Path, seconds: int
) -> None:
    url, chance = asyncio.run(new_database(shared_postgres)), random.Random()
    (folder / "jobd.toml").write_text(CONFIG)
    with servers.valkey(folder) as redis_url:
        nodes = [
            jobd(folder / name, "--config", f"{folder}/jobd.toml", JOBD_POSTGRES_URL=url, JOBD_REDIS_URL=redis_url)
            for name in ("a", "b")
        ]
        for node in nodes:
            node.start().until_ready()
        kills = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(1 - time.time() % 1 + chance.uniform(0, NEAR_S))
            # On a busy machine a start takes longer than the pause: what has not started yet has nothing to lose.
            if up := [node for node in nodes if node.readiness()[0] == 200]:
                victim = chance.choice(up)
                victim.kill()
                victim.start()
                kills += 1
        for node in nodes:
            node.until_ready()
        settled_at = int(time.time())
        wait_until(lambda: _reached(url, settled_at + 2))
        for node in nodes:
            assert node.stop() == 0, node.log()

    found = {row["schedule"]: row["seconds"] for row in fetched(url, JOBS)}
    log.info("%d kills in %d s, %d jobs of %d schedules", kills, seconds, sum(map(len, found.values())), len(found))
    assert len(found) == SCHEDULES
    for name, times in found.items():
        assert [at for at, number in Counter(times).items() if number > 1] == [], f"{name} has occurrences twice"
        assert times == list(range(times[0], times[-1] + 1)), f"{name} has lost occurrences"
    assert fetched(url, "SELECT schedule, kind, number, detail FROM jobd.schedule_events") == []
    rows = fetched(url, "SELECT name, started, missed, skipped FROM jobd.schedules")
    assert {row["name"]: row["started"] for row in rows} == {name: len(times) for name, times in found.items()}
    assert {(row["missed"], row["skipped"]) for row in rows} == {(0, 0)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_occurrence_is_one_job_though_nodes_are_killed_before_they_are_ready(
    jobd: Callable[..., Jobd], shared_postgres: str, folder: Path
) -> None:
    """One of the two nodes is killed every second for two minutes, however far its start has come. Occurrences that no
    node lived long enough to see are caught up, all within the window, of which a schedule starts the newest 100.
    """
    url, chance = asyncio.run(new_database(shared_postgres)), random.Random()
    (folder / "jobd.toml").write_text(CONFIG)
    with servers.valkey(folder) as redis_url:
        nodes = [
            jobd(folder / name, "--config", f"{folder}/jobd.toml", JOBD_POSTGRES_URL=url, JOBD_REDIS_URL=redis_url)
            for name in ("a", "b")
        ]
        for node in nodes:
            node.start().until_ready()
        ready = unready = 0
        next_at = time.monotonic()
        for _ in range(120):
            next_at += 1.0
            time.sleep(max(0.0, next_at - time.monotonic()))
            victim = chance.choice(nodes)
            is_ready = victim.readiness()[0] == 200
            ready, unready = ready + is_ready, unready + (not is_ready)
            victim.kill()
            victim.start()
        for node in nodes:
            node.until_ready()
        settled_at = int(time.time())
        wait_until(lambda: _reached(url, settled_at + 2), nodes[0].log, 120)
        for node in nodes:
            assert node.stop() == 0, node.log()

    found = {row["schedule"]: row["seconds"] for row in fetched(url, JOBS)}
    rows = {row["name"]: row for row in fetched(url, "SELECT name, started, missed, skipped FROM jobd.schedules")}
    gaps = [after - before for times in found.values() for before, after in itertools.pairwise(times)]
    log.info(
        "%d kills of ready nodes and %d of others, %d jobs of %d schedules, %d missed",
        *(ready, unready, sum(map(len, found.values())), len(found), sum(row["missed"] for row in rows.values())),
    )
    assert unready > 0
    assert len(found) == SCHEDULES
    for name, times in found.items():
        assert [at for at, number in Counter(times).items() if number > 1] == [], f"{name} has occurrences twice"
        all_seconds = times[-1] - times[0] + 1
        assert len(times) + rows[name]["missed"] == all_seconds, f"{name} has lost occurrences"
        assert (rows[name]["started"], rows[name]["skipped"]) == (len(times), 0)
    if max(gaps) == 1:
        assert {row["missed"] for row in rows.values()} == {0}


def _reached(url: str, second: int) -> bool:
    """All schedules have made the job of this second."""
    return all(row["seconds"][-1] >= second for row in fetched(url, JOBS))
