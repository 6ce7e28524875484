"""Graphs and groups in a whole jobd: inputs for every kind of handler, the order of a large graph, and one callback,
with jobd killed again and again meanwhile.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from jobd import Client
from jobd.client import Conflict
from tests.support.daemon import TOP
from tests.support.recorded_runs import ask
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from tests.support.daemon import Jobd

HANDLERS = """
import os
from pathlib import Path
import anyio

BOOK = os.open(Path(__file__).with_name("book"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def step(payload, ctx):
    os.write(BOOK, f"begin {payload['n']}\\n".encode())
    await anyio.sleep(payload.get("s", 0))
    if payload.get("fails"):
        raise ValueError("as it was asked")
    os.write(BOOK, f"end {payload['n']}\\n".encode())
    return {"n": payload["n"]}

async def told(payload, ctx):
    return {name: [part.status, part.result] for name, part in ctx.inputs.items()}

def told_in_thread(payload, ctx):
    return {name: [part.status, part.result] for name, part in ctx.inputs.items()}
"""
CONFIG = """
[queues.default]
slots = 8
[retry]
base_s = 0.01
cap_s = 0.05
[tasks.step]
run = "python"
handler = "graph_handlers:step"
max_attempts = 1
[tasks.told]
run = "python"
handler = "graph_handlers:told"
[tasks.threaded]
run = "python"
handler = "graph_handlers:told_in_thread"
[tasks.isolated]
run = "python"
handler = "graph_handlers:told_in_thread"
isolate = true
"""


@pytest.fixture
def daemon(jobd: Callable[..., Jobd], folder: Path) -> Jobd:
    (folder / "graph_handlers.py").write_text(HANDLERS)
    (folder / "graph.toml").write_text(CONFIG)
    variables = {"PYTHONPATH": f"{TOP}:{folder}"}
    return jobd(None, "--config", str(folder / "graph.toml"), **variables).start().until_ready()


def client_of(daemon: Jobd) -> Client:
    return Client(daemon.addresses["JOBD_URL"])


@pytest.mark.parametrize("task", ["told", "threaded", "isolated"])
def test_every_kind_of_handler_has_its_inputs(daemon: Jobd, task: str) -> None:
    with client_of(daemon) as client:
        *_, last = client.submit_batch(
            [
                {"task": "step", "payload": {"n": 1}, "ref": "a"},
                {"task": "step", "payload": {"n": 2, "fails": True}, "ref": "b"},
                {"task": task, "payload": {}, "depends_on": [{"ref": "a"}, {"ref": "b", "on": "any"}]},
            ]
        )

        ended = client.wait(last.job_id, 30)

    assert ended.result == {"a": ["done", {"n": 1}], "b": ["error", None]}, ended


def graph(nodes: int, seed: int) -> list[dict[str, Any]]:
    """Each node waits for up to three of those before it."""
    chance = random.Random(seed)
    items: list[dict[str, Any]] = []
    for n in range(nodes):
        before = chance.sample(range(max(0, n - 30), n), min(n, 30, chance.randint(0, 3)))
        edges = [{"ref": f"n{other}"} for other in before]
        items.append({"task": "step", "payload": {"n": n}, "ref": f"n{n}", "depends_on": edges, "max_attempts": 50})
    chance.shuffle(items)
    return items


def book(folder: Path) -> list[tuple[str, int]]:
    return [(kind, int(n)) for kind, n in map(str.split, (folder / "book").read_text().splitlines())]


def killed(daemon: Jobd) -> None:
    daemon.kill()
    daemon.start().until_ready()


@pytest.mark.timeout(300)
def test_a_graph_of_a_thousand_nodes_runs_in_its_order(daemon: Jobd, folder: Path) -> None:
    items = graph(1_000, seed=1)
    with client_of(daemon) as client:
        client.submit_batch(items)  # type: ignore[arg-type]
    for share in (100, 400):
        wait_until(lambda: len(book(folder)) > 2 * share, daemon.log, 120)  # noqa: B023
        killed(daemon)

    wait_until(lambda: not left(daemon), lambda: f"{left(daemon)}\n{daemon.log()}", 200)

    ended: set[int] = set()
    for kind, n in book(folder):
        if kind == "end":
            ended.add(n)
        else:
            (item,) = (item for item in items if item["payload"]["n"] == n)
            waited_for = {int(edge["ref"][1:]) for edge in item["depends_on"]}
            assert waited_for <= ended, f"{n} began before {waited_for - ended} ended"
    assert len(ended) == 1_000
    assert statuses(daemon) == {"done": 1_000}


def statuses(daemon: Jobd) -> dict[str, int]:
    rows = ask(daemon, "SELECT status, count(*) FROM jobd.jobs GROUP BY 1")
    return {row["status"]: row["count"] for row in rows}


def left(daemon: Jobd) -> dict[str, int]:
    return {status: number for status, number in statuses(daemon).items() if status in ("queued", "running")}


def live_through_kills(daemon: Jobd, members: int, kills: int) -> None:
    """A group with random outcomes; some members are canceled, and jobd is killed, while they run. A twentieth of them
    are due in an hour and end by a cancel only.
    """
    chance = random.Random(members)
    jobs: list[Any] = [
        {"task": "step", "payload": {"n": n, "fails": chance.random() < 0.3}, "max_attempts": 5}
        | ({"delay_s": 3600.0, "labels": {"late": "yes"}} if n % 20 == 0 else {})
        for n in range(members)
    ]
    callback: Any = {"task": "told", "payload": {}, "max_attempts": 50}
    with client_of(daemon) as client:
        group = client.fan_out(jobs, callback=callback)
    for n in range(kills):
        reached = members * (n + 1) // (kills + 2)
        wait_until(lambda: ended(daemon) >= reached, daemon.log, 300)  # noqa: B023
        with client_of(daemon) as client:
            for job in client.list(group=group.group_id, status="queued", limit=20).jobs[::2]:
                with contextlib.suppress(Conflict):  # it has ended meanwhile
                    client.cancel(job.job_id)
        killed(daemon)

    with client_of(daemon) as client:
        cancel_late(client, group.group_id)
        finished = client.wait_group(group.group_id, 600)
        last = client.wait(group.callback_id or "", 60)

    rows = ask(daemon, "SELECT status, count(*) FROM jobd.jobs WHERE group_id IS NOT NULL GROUP BY 1")
    by_status = Counter({row["status"]: row["count"] for row in rows})
    assert finished.members == members == sum(by_status.values())
    assert (finished.done, finished.error, finished.canceled) == (
        *(by_status["done"], by_status["error"], by_status["canceled"]),
    )
    assert min(finished.done, finished.error, finished.canceled) > 0
    counters = {name: getattr(finished, name) for name in ("members", "done", "error", "canceled", "retried")}
    assert last.result == {"group": ["error", counters]}
    assert ask(daemon, "SELECT id FROM jobd.jobs WHERE task = 'told'") == ask(
        daemon, "SELECT callback_id AS id FROM jobd.groups"
    )
    assert ask(daemon, "SELECT count(*) AS n FROM jobd.settled")[0]["n"] == 0


def cancel_late(client: Client, group_id: UUID) -> None:
    before = None
    while True:
        page = client.list(group=group_id, labels={"late": "yes"}, status="queued", before=before)
        for job in page.jobs:
            client.cancel(job.job_id)
        before = page.next
        if before is None:
            return


def ended(daemon: Jobd) -> int:
    return sum(number for status, number in statuses(daemon).items() if status in ("done", "error", "canceled"))


@pytest.mark.timeout(300)
def test_a_group_with_random_ends_cancels_and_kills_has_one_callback(daemon: Jobd) -> None:
    live_through_kills(daemon, members=400, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_group_of_ten_thousand_with_random_ends_cancels_and_kills_has_one_callback(daemon: Jobd) -> None:
    live_through_kills(daemon, members=10_000, kills=8)
