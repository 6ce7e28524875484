"""Take with jobs of the loaded model first: who goes before whom, and that looking for them costs the same always."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.take import TakeTerms
from jobd.lifecycle.take_resident import PutBehind, take_resident
from tests.lifecycle.direct import set_mode, want
from tests.lifecycle.test_cost import pages
from tests.support.factories import NOW, TTL_S, assert_counters_are_right, at, make_queued, new_job

if TYPE_CHECKING:
    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database
    from jobd.store.session import Session


@pytest.fixture(autouse=True)
async def direct(db: Database) -> None:
    await set_mode(db, "direct", "default")


async def take(session: Session, most: int = 9, *, seconds: float = 30, looked_at: int = 1000) -> list[ClaimedJob]:
    """The model of the tasks `o` and `p` is not loaded."""
    terms = TakeTerms([want(most)], TTL_S)
    return await take_resident(session, terms, PutBehind(["o", "p"], seconds), looked_at=looked_at, now=NOW)


@pytest.mark.parametrize(
    ("line", "most", "seconds", "taken"),
    [
        pytest.param("rrr", 2, 30, "r0 r1", id="only the loaded model"),
        pytest.param("ooo", 2, 30, "o0 o1", id="only another one: nothing waits for nothing"),
        pytest.param("oror", 9, 35, "r1 r3 o0 o2", id="the loaded one first"),
        pytest.param("opro", 2, 30, "r2 o0", id="then the others in their order"),
        pytest.param("o----r", 1, 30, "o0", id="not one that came much later"),  # 50 s
        pytest.param("o-r", 1, 30, "r2", id="one that came a little later"),  # 20 s
        pytest.param("oror", 9, 0, "o0 r1 o2 r3", id="no longer first"),
        pytest.param("", 9, 30, "", id="nobody"),
    ],
)
async def test_order(db: Database, line: str, most: int, seconds: float, taken: str) -> None:
    """Letters are jobs, ten seconds apart."""
    names = {
        await make_queued(db, at(10 * (place - len(line))), task=letter): f"{letter}{place}"
        for place, letter in enumerate(line)
        if letter != "-"
    }

    jobs = await take(db, most, seconds=seconds)

    assert " ".join(names[job.job_id] for job in sorted(jobs, key=lambda job: job.owner_id)) == taken
    await assert_counters_are_right(db)


async def test_a_point_of_priority_goes_before_the_loaded_model(db: Database) -> None:
    await enqueue(db, [new_job(task="r"), new_job(task="o", priority=1)], now=NOW)

    (first,) = await take(db, 1, seconds=59)

    assert first.task == "o"


async def test_only_the_beginning_of_a_line_is_looked_at(db: Database) -> None:
    for place, letter in enumerate("ooor"):
        await make_queued(db, at(place - 10), task=letter)

    (near,) = await take(db, 1, looked_at=2)
    (far,) = await take(db, 1, looked_at=3)

    assert (near.task, far.task) == ("o", "r")


async def test_take_touches_no_more_pages_however_many_jobs_wait(db: Database) -> None:
    touched = []
    async with db.pool.acquire() as connection:
        for _ in range(2):
            await enqueue(db, [new_job(task="o") for _ in range(3000)])
            await take(connection, 1)  # so that what is written once is written
            before = await pages(connection)
            assert len(await take(connection, 1)) == 1
            touched.append(await pages(connection) - before)

    assert touched[1] <= touched[0] * 1.2
