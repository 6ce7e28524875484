"""Two nodes with all pollers, one of them killed again and again: every ticket ends once, only the time changes."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.config.model import Config, Task
from jobd.store.postgres import Database
from jobd.tickets.create import create
from jobd.tickets.decide import decide
from tests.support import servers
from tests.support.wait import wait_until
from tests.tickets.factories import asked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemon import Jobd

CONFIG = """
[leases]
ttl_s = 3
heartbeat_s = 0.5
[retry]
max_attempts = 100
base_s = 0
cap_s = 0
[queues.default]
slots = 8
[tasks.work]
run = "mock"
[tickets]
poll_s = 0.2
[tickets.gates.look]
argv = ["/bin/true"]
"""
#: What the verbs of the test itself have to know of it.
KNOWN = Config(tasks={"work": Task(run="mock")})
GATES = [{"type": "schema", "schema": {"required": ["mock"]}}, {"type": "minimum", "pointer": "/stats/n", "value": 2}]
LONGEST_S = 120.0
#: How long a node is frozen: longer than a lease, so that it wakes up to find its claims with another.
FREEZE_S = 4.5
#: How often it is that, and not death.
FREEZES = 0.25

#: What is wrong, one row each. A resource's claims are in the order of `seq`.
DOUBLES = """
SELECT 'an event of ' || ticket_id AS what FROM ticket_events GROUP BY ticket_id HAVING count(*) <> 1
UNION ALL
SELECT 'event ' || e.event_id FROM ticket_events e LEFT JOIN workorders w ON w.event_id = e.event_id
LEFT JOIN output_bundles b ON b.work_order_id = w.work_order_id
LEFT JOIN run_records r ON r.work_order_id = w.work_order_id
LEFT JOIN jobs ON jobs.id = w.job_id
WHERE NOT e.processed OR e.reason <> 'SCHEDULED' OR num_nonnulls(w.event_id, b.output_id, r.run_id, jobs.id) <> 4
UNION ALL
SELECT 'too many ' || name FROM (VALUES
    ('workorders', (SELECT count(*) FROM workorders)), ('output_bundles', (SELECT count(*) FROM output_bundles)),
    ('run_records', (SELECT count(*) FROM run_records)), ('jobs', (SELECT count(*) FROM jobs)),
    ('pause_states', (SELECT count(*) FROM pause_states))
) AS found (name, number) WHERE number <> (SELECT count(*) FROM tickets)
UNION ALL
SELECT 'ends of ' || ticket_id FROM ticket_log WHERE type = 'status' AND data ->> 'status' IN ('DONE', 'BLOCKED')
GROUP BY ticket_id HAVING count(*) <> 1
"""
OVERLAPS = """
SELECT * FROM (
    SELECT *, lag(action) OVER w AS before, lag(lease_token) OVER w AS token_before, lag(at) OVER w AS at_before
    FROM claim_history WINDOW w AS (PARTITION BY resource_id ORDER BY seq)
) h
WHERE (action = 'CLAIMED') IS DISTINCT FROM (coalesce(before, '') <> 'CLAIMED')
    OR action <> 'CLAIMED' AND token_before <> lease_token
    OR action = 'EXPIRED' AND at < lease_expires_at
    OR at < at_before
"""


async def write_tickets(url: str, count: int) -> None:
    database = Database(url, 4)
    async with database.opened():
        for n in range(count):
            request = asked(title=f"Number {n}", payload={"seconds": 1, "tokens": 1}, gates=GATES)
            ticket = await create(database.pool, request, created_by="ann", config=KNOWN)
            await decide(database.pool, "APPROVE", ticket.ticket_id, by="bob")


def ask(url: str, query: str) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        database = Database(url, 1)
        async with database.opened():
            return [dict(row) for row in await database.pool.fetch(query)]

    return anyio.run(fetch)


class Trouble:
    """What happens to nodes, once a second: a random one that is up is killed and started again, or frozen."""

    def __init__(self, nodes: list[Jobd]) -> None:
        self._nodes = nodes
        self._dice = random.Random(5)
        #: When each frozen one is thawed.
        self._frozen: dict[int, float] = {}
        self.killed = 0
        self.thawed = 0

    def make_for(self, trouble_s: float) -> None:
        until = time.monotonic() + trouble_s
        while time.monotonic() < until:
            self._thaw(time.monotonic())
            self._strike()
            time.sleep(1.0)
        self._thaw(time.monotonic() + FREEZE_S)

    def _strike(self) -> None:
        places = [n for n in range(len(self._nodes)) if n not in self._frozen and self._nodes[n].readiness()[0] == 200]
        if not places:
            return
        n = self._dice.choice(places)
        if not self._frozen and self._dice.random() < FREEZES:
            self._nodes[n].signal(signal.SIGSTOP)
            self._frozen[n] = time.monotonic() + FREEZE_S
        else:
            self._nodes[n].kill()
            self._nodes[n].start()
            self.killed += 1

    def _thaw(self, now: float) -> None:
        for n in [n for n, at in self._frozen.items() if at <= now]:
            del self._frozen[n]
            self._nodes[n].signal(signal.SIGCONT)
            self.thawed += 1


def chaos(jobd: Callable[..., Jobd], folder: Path, *, tickets: int, trouble_s: float) -> None:
    (folder / "jobd.toml").write_text(CONFIG)
    with servers.postgres(folder) as postgres_url, servers.valkey(folder) as redis_url:
        anyio.run(write_tickets, postgres_url, tickets)  # whoever made the server has left the schema in it
        nodes = [
            jobd(
                folder / name,
                *("--config", str(folder / "jobd.toml")),
                JOBD_POSTGRES_URL=postgres_url,
                JOBD_REDIS_URL=redis_url,
            ).start()
            for name in ("one", "two")
        ]
        for node in nodes:
            node.until_ready()

        trouble = Trouble(nodes)
        trouble.make_for(trouble_s)

        def open_tickets() -> list[dict[str, Any]]:
            return ask(postgres_url, "SELECT status, step, count(*) FROM tickets WHERE status <> 'DONE' GROUP BY 1, 2")

        wait_until(
            lambda: not open_tickets(), lambda: f"{open_tickets()}\n{nodes[0].log()}\n{nodes[1].log()}", LONGEST_S
        )
        assert trouble.killed
        assert ask(postgres_url, DOUBLES) == []
        assert ask(postgres_url, OVERLAPS) == []
        for node in nodes:
            node.kill()


@pytest.mark.timeout(240)
def test_killing_nodes_for_a_while_changes_nothing_but_the_time(jobd: Callable[..., Jobd], folder: Path) -> None:
    chaos(jobd, folder, tickets=30, trouble_s=6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killing_nodes_for_two_minutes_changes_nothing_but_the_time(jobd: Callable[..., Jobd], folder: Path) -> None:
    chaos(jobd, folder, tickets=300, trouble_s=120)
