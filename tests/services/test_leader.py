"""Who leads: one node at a time, another within seconds when that one falls silent, and never two for long."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from jobd.config.model import Config
from jobd.store import leader
from jobd.store.clock import boot_clock_s
from jobd.store.leader import LeaderLease, OwnerNames, leading
from jobd.supervise.service import Handle
from tests.support import servers
from tests.support.node import Node, new_database
from tests.support.wait import wait_until, wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jobd.store.postgres import Database
    from tests.support.daemon import Jobd

HOLD = "UPDATE leaders SET holder = 'another', expires_at = clock_timestamp() + make_interval(secs => $1)"
SHIFT = "UPDATE leaders SET expires_at = clock_timestamp() + make_interval(secs => $1)"


def lease(database: Database, holder: str, *dead: str) -> LeaderLease:
    return LeaderLease(database, "test", OwnerNames(holder, dead))


async def test_second_does_not_lead_until_the_first_gives_up(node: Node) -> None:
    first, second = lease(node.database, "first"), lease(node.database, "second")

    taken = [await first.take(), await second.take(), await first.take()]
    await second.give_up()  # which has nothing to give up
    still = await second.take()
    await first.give_up()

    assert (taken, still) == ([True, False, True], False)
    assert await second.take()


@pytest.mark.parametrize("left_s", [-0.001, 3600.0], ids=["over", "set back by an hour"])
async def test_lease_that_is_over_or_that_a_clock_step_made_too_long_is_taken(node: Node, left_s: float) -> None:
    first, second = lease(node.database, "first"), lease(node.database, "second")
    await first.take()
    await node.database.pool.execute(SHIFT, left_s)

    assert await second.take()
    assert not await first.take()


async def test_lead_of_a_dead_predecessor_is_taken_at_once(node: Node) -> None:
    await lease(node.database, "killed").take()

    assert not await lease(node.database, "stranger").take()
    assert await lease(node.database, "next", "other", "killed").take()


async def test_who_stands_by_writes_nothing_and_knows_whether_the_leader_renews(node: Node) -> None:
    first, second = lease(node.database, "first"), lease(node.database, "second")
    version = "SELECT xmin::text || ' ' || xmax::text FROM leaders WHERE name = 'test'"
    await first.take()
    before = await node.database.pool.fetchval(version)

    await second.take()
    was_led, after = second.is_led, await node.database.pool.fetchval(version)
    await node.database.pool.execute(SHIFT, leader.TTL_S - 2.5 * leader.RENEW_S)
    await second.take()

    assert after == before
    assert (was_led, second.is_led) == (True, False)


async def test_leader_that_was_frozen_is_stopped_before_it_does_more(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, done = lease(node.database, "first"), lease(node.database, "second"), []
    handle = Handle(lambda: None)
    now = boot_clock_s
    async with anyio.create_task_group() as tasks:
        async with leading(first, handle, tasks) as leads:
            await node.database.pool.execute(SHIFT, -1.0)
            await second.take()
            monkeypatch.setattr(leader, "boot_clock_s", lambda: now() + leader.TTL_S)  # as it finds when it goes on
            await first.check()
            done.append("more")

    assert leads
    assert done == []
    assert not await first.take()


async def test_relay_whose_lead_another_took_stands_by_and_leads_again_after_that_one(
    shared_postgres: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "RENEW_S", 1.0)
    monkeypatch.setattr(leader, "STAND_BY_S", 0.1)
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        async with Node(url, redis_url, Config()).running() as node:

            async def relay_is(note: str) -> bool:
                return node.supervisor.notes()["relay"] == note

            async def is_held_by_another(left_s: float) -> None:
                """All the time: with no less left, and no more, than this."""
                while True:
                    await node.database.pool.execute(HOLD, left_s)
                    await anyio.sleep(0.02)

            await wait_until_async(lambda: relay_is("ready"))
            degraded = []
            for left_s, note in ((leader.TTL_S, "standing by"), (leader.TTL_S / 2, "no leader")):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(is_held_by_another, left_s)
                    await wait_until_async(lambda note=note: relay_is(note))  # type: ignore[misc]  # mypy knows no such default
                    degraded.append(node.supervisor.is_degraded())
                    tasks.cancel_scope.cancel()
            await node.database.pool.execute(SHIFT, -1.0)
            await wait_until_async(lambda: relay_is("ready"))
            job = await node.enqueue()

            await wait_until_async(lambda: node.hash_of(job.id))

    assert degraded == [False, True]


async def test_leaders_hold_no_connection_while_they_rest(node: Node) -> None:
    async def all_are_idle() -> bool:
        pool = node.database.pool
        return pool.get_size() - pool.get_idle_size() == 0

    await wait_until_async(lambda: _leads(node))
    await wait_until_async(all_are_idle)


async def _leads(node: Node) -> bool:
    return node.supervisor.notes()["relay"] == node.supervisor.notes()["raw_workers"] == "ready"


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_frozen_leader_is_replaced_and_stands_by_when_it_goes_on(
    shared_postgres: str, folder: Path, jobd: Callable[..., Jobd]
) -> None:
    url = await new_database(shared_postgres)
    with servers.valkey(folder) as redis_url:
        variables = {"JOBD_POSTGRES_URL": url, "JOBD_REDIS_URL": redis_url}
        first = jobd(folder / "first", **variables).start().until_ready()
        wait_until(lambda: _notes(first) == {"ready"}, first.log, 30)
        second = jobd(folder / "second", **variables).start().until_ready()
        wait_until(lambda: _notes(second) == {"standing by"}, second.log, 30)

        first.signal(signal.SIGSTOP)
        wait_until(lambda: _notes(second) == {"ready"}, second.log, 60)
        first.signal(signal.SIGCONT)
        wait_until(lambda: _notes(first) == {"standing by"}, first.log, 30)

        assert _notes(second) == {"ready"}
        assert second.readiness()[1]["status"] == "ready"


def _notes(daemon: Jobd) -> set[str]:
    services = daemon.readiness()[1].get("services", {})
    return {services.get(name, "") for name in ("relay", "raw_workers")}
