"""What the rollups cost: drains of one node with and without them, in turns, by the CPU that jobd and Postgres use.

CPU and not time, which depends on what else the machine does: with the same statements on both sides, times of single
drains differ by a third. `pytest -m slow --log-cli-level=INFO tests/services/test_rollup_cost.py` shows the figures.
"""

from __future__ import annotations

import logging
import os
import statistics
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

import pytest

from jobd.bench import node as bench_node
from jobd.bench.e2e import drain
from jobd.config.model import Queue
from jobd.lifecycle import complete
from jobd.lifecycle.rollups import roll_up

if TYPE_CHECKING:
    from jobd.serve.tree import Node

log = logging.getLogger(__name__)

JOBS = 5_000
ROUNDS = 16
MOST = 1.03


def without_rollups(text: str) -> str:
    """The statement without the part that says to the rollups what has ended."""
    start = text.index(",\nrolled_up AS (")
    end, depth = text.index("(", start) + 1, 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[:start] + text[end:]


async def cpu_s(node: Node) -> float:
    """Seconds of CPU so far, of this process and the sessions of Postgres."""
    rows = await node.database.fetch("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
    files = [Path(f"/proc/{row['pid']}/schedstat") for row in rows]
    return process_time() + sum(int(file.read_text().split()[0]) for file in files if file.exists()) / 1e9


async def drain_cpu_s(node: Node, *, is_rolled_up: bool) -> float:
    before = await cpu_s(node)
    await drain(node, JOBS)
    if is_rolled_up:
        assert await roll_up(node.database, most=1_000)
    return await cpu_s(node) - before


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs /proc/PID/schedstat")
@pytest.mark.parametrize("deliver", ["stream", "direct"])
async def test_rollups_cost_a_drain_next_to_nothing(monkeypatch: pytest.MonkeyPatch, deliver: str) -> None:
    if deliver == "direct":
        monkeypatch.setattr(bench_node, "Queue", lambda slots: Queue(slots=1, deliver="direct"))
    names = ("COMPLETE_IF_LEASED", "COMPLETE_AND_TAKE")
    texts = {True: [getattr(complete, name) for name in names]}
    texts[False] = [without_rollups(text) for text in texts[True]]
    found: dict[bool, list[float]] = {True: [], False: []}
    async with bench_node.throw_away_node() as node:
        for number in range(ROUNDS):
            for is_rolled_up in (number % 2 == 0, number % 2 == 1):
                for name, text in zip(names, texts[is_rolled_up], strict=True):
                    monkeypatch.setattr(complete, name, text)
                await drain(node, 500)  # the sessions have prepared the statements
                found[is_rolled_up].append(await drain_cpu_s(node, is_rolled_up=is_rolled_up))

    with_, without = (statistics.median(found[is_rolled_up]) / JOBS * 1e6 for is_rolled_up in (True, False))
    log.info("%s: %.1f us a job with rollups, %.1f without: %.3f times", deliver, with_, without, with_ / without)
    assert with_ / without <= MOST
