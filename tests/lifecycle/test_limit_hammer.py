"""Many connections at once on many keys: no key ever has more jobs running than may, and no slot is idle beside a job
that may run, both looked at while the load lasts.

Whether a slot was idle for nothing is asked after each take that brought less than was wanted, in one snapshot. Before
its take a connection has admitted, as a node does after its commits, so whatever could run when that admission began
must be in line, and whatever stood in line when the take began must be taken or in the hands of another take.
How often a key ran what is told by the history of all attempts, by the clock of Postgres.

The short form runs everywhere; `-m slow` has 100 000 keys with a backlog each, two jobs at once, and eight connections
for 30 s.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import anyio
import pytest

from jobd.lifecycle import admit as admit_verb
from jobd.lifecycle.admit import QueueLimits, admit
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete_and_take
from jobd.lifecycle.enqueue import enqueue
from jobd.lifecycle.fail import fail
from jobd.lifecycle.release import release
from jobd.lifecycle.take import Want, take
from jobd.store.postgres import Database
from tests.lifecycle.direct import set_mode
from tests.support.factories import POLICY, completion, failure, held, new_job, truncate
from tests.support.limit_history import RAN_TOO_MANY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from asyncpg import Record

    from jobd.lifecycle.claim import ClaimedJob

#: `many` has a backlog of every key, so that a take always finds jobs; `few` has few keys, and slots that find none.
LIMITS = {"many": QueueLimits(running=2), "few": QueueLimits(running=2)}
#: Keys of the queue `few`.
FEW_KEYS = 12
#: Keys with more than two jobs in line or running.
TOO_MANY = "SELECT queue, key, count(*) FROM limit_places GROUP BY 1, 2 HAVING count(*) > 2"
#: Keys of a queue with room for a job that they hold back, unless a nudge says so that is not among those of $2.
HELD_FOR_NOTHING = """
SELECT h.limit_key FROM (SELECT DISTINCT limit_key FROM jobs WHERE queue = $1 AND held = 'limited') h
WHERE (SELECT count(*) FROM limit_places p WHERE p.queue = $1 AND p.key = h.limit_key) < 2 AND NOT EXISTS (
    SELECT FROM limit_nudges n WHERE n.queue = $1 AND n.key = h.limit_key AND n.id <> ALL ($2::bigint[])
)
"""
NUDGES = "SELECT id FROM limit_nudges WHERE queue = $1"
#: Jobs in line, each with the transaction that has put it there.
IN_LINE = """
SELECT id, jobs.xmin::text AS put_by FROM jobs JOIN limit_places p ON p.job_id = id
WHERE jobs.queue = $1 AND order_at IS NOT NULL
"""
#: Jobs that stood in line before and do still: without those that another transaction has in hand, or that had to give
#: way to a more urgent one of their key and were admitted again.
LEFT_IN_LINE = """
SELECT jobs.id FROM jobs
JOIN unnest($1::uuid[], $2::text[]) AS before (id, put_by) ON before.id = jobs.id AND before.put_by = jobs.xmin::text
WHERE jobs.order_at IS NOT NULL FOR UPDATE OF jobs SKIP LOCKED
"""
#: Jobs in line or running without a place, and places without such a job: the two above go by places.
WRONG_PLACES = """
SELECT job_id FROM limit_places FULL JOIN (
    SELECT id FROM jobs WHERE limit_key IS NOT NULL AND (order_at IS NOT NULL OR status = 'running')
) standing ON standing.id = job_id
WHERE id IS NULL OR job_id IS NULL
"""


class Extent(NamedTuple):
    keys: int
    connections: int
    seconds: float


class Watch:
    """What was seen while the load lasted."""

    def __init__(self) -> None:
        self.over: list[object] = []
        self.idle: list[object] = []
        #: Takes that brought less than was wanted, and after which the snapshot was looked at.
        self.short_takes = 0
        self.ended = 0
        #: Longest time in s from the beginning of an admission to the snapshot that has to show its work.
        self.longest_s = 0.0
        #: Looks at the line that have begun, and that go on. One holds the rows that it finds, so that a take beside it
        #: passes them over: what such a take leaves says nothing.
        self.looks = self.looking = 0


@pytest.fixture
async def crowd(url: str) -> AsyncIterator[Database]:
    database = Database(url, 20)
    async with database.opened():
        await truncate(database)
        await set_mode(database, "direct", "many", "few")
        yield database
        await truncate(database)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "extent",
    [
        pytest.param(Extent(keys=300, connections=4, seconds=4.0), id="300 keys"),
        pytest.param(Extent(keys=100_000, connections=8, seconds=30.0), id="100 000 keys", marks=pytest.mark.slow),
    ],
)
async def test_no_key_has_more_running_than_may_and_no_slot_is_idle_beside_a_job_that_may_run(
    crowd: Database, extent: Extent
) -> None:
    watch = await hammered(crowd, extent)

    print(  # noqa: T201
        f"\n{extent.keys} keys: {watch.ended} attempts ended in {extent.seconds:g} s; {watch.short_takes} takes brought"
        f" less than was wanted, looked at up to {watch.longest_s * 1000:.0f} ms after their admission began"
    )
    assert (watch.over, watch.idle) == ([], [])
    assert watch.short_takes > 0
    assert await crowd.fetch(RAN_TOO_MANY, 2) == []
    await admit(crowd, LIMITS)
    assert await crowd.fetch(TOO_MANY) == []
    for queue in LIMITS:
        assert await crowd.fetch(HELD_FOR_NOTHING, queue, []) == []
    assert await crowd.fetch(WRONG_PLACES) == []


async def hammered(db: Database, extent: Extent) -> Watch:
    for start in range(0, extent.keys, 1000):
        numbers = range(start, min(start + 1000, extent.keys))
        await enqueue(db, [new_job(queue="many", limit_key=f"key-{n}") for n in numbers for _ in range(3)])
    await admit(db, LIMITS)
    await db.execute("ANALYZE jobs, limit_places")
    watch, until = Watch(), time.monotonic() + extent.seconds
    async with anyio.create_task_group() as tasks:
        for seed in range(extent.connections):
            tasks.start_soon(_work, db, Random(seed), extent.keys, until, watch)
        tasks.start_soon(_look_on, db, until, watch)
    return watch


async def _look_on(db: Database, until: float, watch: Watch) -> None:
    began = time.monotonic()
    while time.monotonic() < until:
        watch.over += await db.fetch(TOO_MANY)
        watch.over += await db.fetch(WRONG_PLACES)
        await anyio.sleep((until - began) / 10)


async def _work(db: Database, random: Random, keys: int, until: float, watch: Watch) -> None:
    """Enqueue, admit, take and end jobs in every way, all at random."""
    held_jobs: list[ClaimedJob] = []
    while time.monotonic() < until:
        jobs = [
            new_job(queue="many", limit_key=f"key-{random.randrange(keys)}", priority=random.randint(0, 3))
            for _ in range(20)
        ]
        jobs += [
            new_job(queue="few", limit_key=str(random.randrange(FEW_KEYS)), priority=random.randint(0, 3))
            for _ in range(random.randint(0, 12))
        ]
        await enqueue(db, jobs)
        if random.random() < 0.2:
            await cancel(db, [job.id for job in random.sample(jobs, 5)])
        held_jobs += await take(db, [Want("many", ["w"] * random.randint(1, 30))], ttl_s=60.0)
        held_jobs += await _take_few(db, random.randint(1, 30), watch)
        random.shuffle(held_jobs)
        ended, held_jobs = held_jobs[8:], held_jobs[:8]
        failing, back, done = ended[:1], ended[1:2], ended[2:]
        await fail(db, [failure(job) for job in failing], policy=POLICY, jitter=0.0)
        await release(db, [held(job) for job in back])
        _, taken = await complete_and_take(
            db, [completion(job) for job in done], [Want("many", ["w"] * 10)], ttl_s=60.0
        )
        held_jobs += taken
        watch.ended += len(ended)
    await complete_and_take(db, [completion(job) for job in held_jobs], [], ttl_s=60.0)


async def _take_few(db: Database, most: int, watch: Watch) -> list[ClaimedJob]:
    """Admit and take; if fewer came, nothing that could run before is left."""
    began = time.monotonic()
    nudges = [row["id"] for row in await db.fetch(NUDGES, "few")]
    await admit(db, LIMITS)
    in_line = await db.fetch(IN_LINE, "few")
    looks, is_alone = watch.looks, not watch.looking
    taken = await take(db, [Want("few", ["w"] * most)], ttl_s=60.0)
    is_alone = is_alone and watch.looks == looks
    if len(taken) < most:
        watch.idle += await db.fetch(HELD_FOR_NOTHING, "few", nudges)
        watch.longest_s = max(watch.longest_s, time.monotonic() - began)
        if is_alone:
            watch.idle += await _left_in_line(db, in_line, watch)
        watch.short_takes += 1
    return taken


async def _left_in_line(db: Database, in_line: list[Record], watch: Watch) -> list[Record]:
    watch.looks += 1
    watch.looking += 1
    try:
        before = [[row[name] for row in in_line] for name in ("id", "put_by")]
        return await db.fetch(LEFT_IN_LINE, *before)
    finally:
        watch.looking -= 1


#: Short enough for everywhere, long enough to miss what was taken away.
BRIEF = Extent(keys=100, connections=4, seconds=1.0)


async def test_an_admission_that_counts_no_places_is_seen_in_the_history(
    crowd: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = admit_verb.ADMIT_JOBS.replace("running - places, ", "")
    monkeypatch.setattr(admit_verb, "ADMIT_JOBS", broken)

    await hammered(crowd, BRIEF)

    assert await crowd.fetch(RAN_TOO_MANY, 2) != []


async def test_a_job_that_nobody_is_nudged_for_is_seen_as_held_for_nothing(
    crowd: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admission that deletes the nudges of every other key unseen."""
    words = "SELECT queue, key FROM nudged\n"
    assert admit_verb.ADMIT_JOBS.count(words) == 1
    broken = admit_verb.ADMIT_JOBS.replace(words, "SELECT queue, key FROM nudged WHERE ascii(key) % 2 = 0\n")
    monkeypatch.setattr(admit_verb, "ADMIT_JOBS", broken)

    watch = await hammered(crowd, BRIEF)

    assert watch.idle != []


async def test_a_second_admission_waits_for_the_first(crowd: Database) -> None:
    """Else both could give away the last place of a key."""
    await enqueue(crowd, [new_job(queue="few", limit_key="a") for _ in range(4)])

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(admit, crowd, LIMITS)

    assert await crowd.fetchval("SELECT count(*) FROM jobs WHERE order_at IS NOT NULL") == 2
