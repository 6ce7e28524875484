"""What a take costs with limit keys, beside one without: in pages touched, and by the clock in the slow form."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from jobd.lifecycle.admit import QueueLimits, admit
from jobd.lifecycle.complete import complete
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.take import Want, take
from tests.lifecycle.direct import set_mode
from tests.lifecycle.test_cost import pages
from tests.support.factories import completion, new_job, truncate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database

#: What a queue with limit keys may have, by name.
KINDS = {
    "cap": {"keyed": QueueLimits(running=2)},
    "rate": {"keyed": QueueLimits(rate=100, rate_s=60.0)},
    "turns": {"keyed": QueueLimits(fair=True)},
}


@pytest.fixture
async def queues(db: Database) -> AsyncIterator[Database]:
    await set_mode(db, "direct", "plain", "keyed")
    yield db
    await truncate(db)


async def fill_both(db: Database, keys: int, limits: Mapping[str, QueueLimits]) -> None:
    """As many jobs with a key each, all admitted, as without."""
    for start in range(0, keys, 1000):
        numbers = range(start, min(start + 1000, keys))
        await enqueue(db, [new_job(queue="keyed", limit_key=f"key-{n}") for n in numbers])
        await enqueue(db, [new_job(queue="plain") for _ in numbers])
    await admit(db, limits)


class Costs(NamedTuple):
    """How many times as much a take of jobs with keys takes as one of others."""

    #: Medians of pages touched.
    pages: float
    #: Lower deciles of the time: takes that nothing else on the machine has interrupted.
    time: float
    #: Medians of the time.
    median_time: float


async def costs(db: Database, batch: int, rounds: int) -> Costs:
    touched: dict[str, list[int]] = {"plain": [], "keyed": []}
    took: dict[str, list[float]] = {"plain": [], "keyed": []}
    async with db.pool.acquire() as connection:
        for _ in range(rounds):
            for queue in touched:
                before, began = await pages(connection), time.perf_counter()
                taken = await take(connection, [Want(queue, ["w"] * batch)], ttl_s=600.0)
                took[queue].append(time.perf_counter() - began)
                touched[queue].append(await pages(connection) - before)
                assert len(taken) == batch
    return Costs(
        statistics.median(touched["keyed"]) / statistics.median(touched["plain"]),
        statistics.quantiles(took["keyed"], n=10)[0] / statistics.quantiles(took["plain"], n=10)[0],
        statistics.median(took["keyed"]) / statistics.median(took["plain"]),
    )


@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_take_touches_hardly_more_pages_for_jobs_with_limit_keys(
    queues: Database, batch: int, kind: str
) -> None:
    await fill_both(queues, 2000, KINDS[kind])

    found = await costs(queues, batch, 9)

    assert found.pages <= 1.5  # an admission has moved its rows to other pages; none of the limits' tables is touched


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", [1, 16, 100])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_take_with_100_000_limit_keys_takes_as_long_as_one_without(
    queues: Database, batch: int, kind: str
) -> None:
    await fill_both(queues, 100_000, KINDS[kind])

    found = await costs(queues, batch, 200)

    print(  # noqa: T201
        f"\n{kind}: a take of {batch} jobs with one of 100 000 keys each takes {found.time:.2f} times as long"
        f" (medians {found.median_time:.2f}) and touches {found.pages:.2f} times as many pages"
    )
    assert found.time <= 1.2


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_jobs_start_within_two_rounds_though_another_key_has_100_000(queues: Database) -> None:
    limits = {"keyed": QueueLimits(fair=True)}
    for _ in range(100):
        await enqueue(queues, [new_job(queue="keyed", limit_key="busy") for _ in range(1000)])

    async def one_round() -> list[ClaimedJob]:
        await admit(queues, limits)
        claims = await take(queues, [Want("keyed", ["w"] * 16)], ttl_s=600.0)
        await complete(queues, [completion(claimed) for claimed in claims])
        assert len(claims) == 16
        return claims

    for _ in range(20):
        await one_round()
    late = [new_job(queue="keyed", limit_key="late") for _ in range(10)]
    await enqueue(queues, late)

    started = {claimed.job_id for _ in range(2) for claimed in await one_round()}

    assert {job.id for job in late} <= started
