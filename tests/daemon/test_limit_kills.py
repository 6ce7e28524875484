"""Limits per key hold across two nodes while one or the other is killed; afterwards nothing is stuck.

What ran at once is counted twice: by a book that the handlers of both nodes write, where the death of a node ends what
it ran, and by the attempts in Postgres.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.support import servers
from tests.support.daemon import READY_S, TOP
from tests.support.http import Api
from tests.support.limit_history import RAN_TOO_MANY, STARTED_TOO_OFTEN
from tests.support.node import new_database
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

log = logging.getLogger(__name__)

HANDLER = """
import os
from pathlib import Path
import anyio

BOOK = os.open(Path(__file__).with_name("book"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def step(payload, ctx):
    os.write(BOOK, f"begin {os.getpid()} {payload['book']}\\n".encode())
    await anyio.sleep(payload["s"])
    os.write(BOOK, f"end {os.getpid()} {payload['book']}\\n".encode())
"""
CONFIG = """
[leases]
ttl_s = 10
heartbeat_s = 1
[retry]
base_s = 0.01
cap_s = 0.05
[tasks.step]
run = "python"
handler = "limited:step"
limit_key = "/user"
max_attempts = 100
[queues.capped]
slots = 6
key_running = 2
[queues.fair]
slots = 6
key_running = 2
fair = true
[queues.rated]
slots = 6
key_rate = 5
key_rate_s = 1.0
"""
#: Jobs of a key that run at once in the queues `capped` and `fair`.
CAP = 2
KEYS = ("ann", "bob", "eve")
#: Jobs that each queue gets before each kill.
SOME = 24
LEFT = """
SELECT queue, status, held, count(*) AS number FROM jobd.jobs WHERE finished_at IS NULL GROUP BY 1, 2, 3
"""
TRACES = """
SELECT
    (SELECT count(*) FROM jobd.limit_places) AS places, (SELECT count(*) FROM jobd.limit_nudges) AS nudges,
    (SELECT count(*) FROM jobd.limit_takes) AS takes
"""


def fetched(url: str, query: str, *arguments: object) -> list[asyncpg.Record]:
    async def fetch() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()

    return asyncio.run(fetch())


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_limits_hold_on_two_nodes_that_are_killed_and_nothing_is_stuck(
    jobd: Callable[..., Jobd], shared_postgres: str, folder: Path, kills: int
) -> None:
    url, chance = asyncio.run(new_database(shared_postgres)), random.Random()
    (folder / "jobd.toml").write_text(CONFIG)
    (folder / "limited.py").write_text(HANDLER)
    with servers.valkey(folder) as redis_url:
        variables = {"PYTHONPATH": f"{TOP}:{folder}", "JOBD_POSTGRES_URL": url, "JOBD_REDIS_URL": redis_url}
        nodes = [jobd(folder / name, "--config", f"{folder}/jobd.toml", **variables) for name in ("a", "b")]
        for node in nodes:
            node.start().until_ready()
        for _ in range(kills):
            wait_until(lambda: any(node.readiness()[0] == 200 for node in nodes), nodes[0].log, READY_S)
            submit(next(node for node in nodes if node.readiness()[0] == 200), chance)
            time.sleep(chance.uniform(0.2, 1.5))  # the fault's moment, not a wait for anything
            victim = chance.choice(nodes)
            victim.kill()
            note_death(folder, victim.pid)
            victim.start()
        for node in nodes:
            node.until_ready()
        wait_until(lambda: not fetched(url, LEFT), lambda: f"{fetched(url, LEFT)}\n{nodes[0].log()}", 120)
        wait_until(lambda: not any(fetched(url, TRACES)[0]), lambda: fetched(url, TRACES), 30)
        for node in nodes:
            assert node.stop() == 0, node.log()

    most = most_at_once(folder)
    log.info("%d kills, %d jobs, most at once %s", kills, 3 * SOME * kills, dict(most))
    assert {status for (status,) in fetched(url, "SELECT DISTINCT status FROM jobd.jobs")} == {"done"}
    assert {name: number for name, number in most.items() if number > CAP} == {}
    assert max(most.values()) == CAP
    assert fetched(url, f"SELECT * FROM ({RAN_TOO_MANY}) found WHERE queue <> 'rated'", CAP) == []
    assert fetched(url, STARTED_TOO_OFTEN, "rated", 5, 1.0) == []


def submit(node: Jobd, chance: random.Random) -> None:
    jobs: list[dict[str, Any]] = []
    for queue in ("capped", "fair", "rated"):
        for _ in range(SOME):
            user = chance.choice(KEYS)
            # of a rate it matters how often jobs start, and not how many run
            book = "any" if queue == "rated" else f"{queue}/{user}"
            payload = {"user": user, "book": book, "s": chance.uniform(0.0, 0.1)}
            jobs.append({"task": "step", "queue": queue, "payload": payload})
    answer = Api(node.address)("POST", "/v1/jobs/batch", jobs)
    assert answer.status == 202, answer


def note_death(folder: Path, pid: int) -> None:
    book = os.open(folder / "book", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(book, f"dead {pid} -\n".encode())
    os.close(book)


def most_at_once(folder: Path) -> Counter[str]:
    """How many handlers of each queue and key ran at once, at most, on both nodes together."""
    running: dict[str, Counter[str]] = defaultdict(Counter)
    most: Counter[str] = Counter()
    for what, pid, name in map(str.split, (folder / "book").read_text().splitlines()):
        if what == "dead":
            running.pop(pid, None)
        elif what == "end":
            running[pid][name] -= 1
        elif name != "any":
            running[pid][name] += 1
            most[name] = max(most[name], sum(of_node[name] for of_node in running.values()))
    return most
