"""Labels, owner and trace of a job: kept from enqueue to prune, whichever statement inserts it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jobd.job.status import JobStatus
from jobd.lifecycle.claim import ClaimedJob, claim, claims_that_stand
from jobd.lifecycle.complete import complete_and_take
from jobd.lifecycle.enqueue import Created, IdempotencyKey, enqueue, enqueue_and_take
from jobd.lifecycle.prune import prune
from jobd.lifecycle.redrive import redrive
from jobd.lifecycle.search import JobFilter, search_jobs
from jobd.lifecycle.take import Want, stray_claims, take
from tests.support.factories import (
    NOW,
    TTL_S,
    ask,
    at,
    completion,
    make_job,
    make_queued,
    make_running,
    new_job,
    read,
)

if TYPE_CHECKING:
    from uuid import UUID

    from jobd.lifecycle.read import Job
    from jobd.store.postgres import Database

LABELS = {"team": "vision", "run": "7", "empty": "", "long": "\U0001f600" * 512}
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ABOUT: dict[str, Any] = {
    "labels": json.dumps(LABELS),
    "owner": "ci",
    "traceparent": TRACEPARENT,
    "tracestate": "a=1",
}
KEYED = {"key": IdempotencyKey("ci", "k", b"h" * 32, 60.0)}
DEDUPED = {"spec_hash": b"s" * 32, "dedupe": "active"}


async def index_of(db: Database) -> set[tuple[str, str, UUID]]:
    return {tuple(row) for row in await db.pool.fetch("SELECT name, value, job_id FROM job_labels")}


def entries(job_id: UUID) -> set[tuple[str, str, UUID]]:
    return {(name, value, job_id) for name, value in [*LABELS.items(), ("", "ci")]}


def about(job: Job) -> tuple[object, ...]:
    return json.loads(job.labels or "null"), job.owner, job.traceparent, job.tracestate


@pytest.mark.parametrize("way", [{}, KEYED, DEDUPED], ids=["plain", "with a key", "in a transaction"])
@pytest.mark.parametrize("takes", [False, True], ids=["enqueue", "enqueue and take"])
async def test_a_job_keeps_them_and_is_found_by_them(db: Database, way: dict[str, Any], takes: bool) -> None:
    job, other = new_job(**ABOUT, **way), new_job()

    if takes:
        answers, _ = await enqueue_and_take(db, [other, job], [Want("default", ["a", "b"])], ttl_s=TTL_S, now=NOW)
    else:
        answers = await enqueue(db, [other, job], now=NOW)

    assert answers == [Created(other.id), Created(job.id)]
    assert about(await read(db, job.id)) == (LABELS, "ci", TRACEPARENT, "a=1")
    assert about(await read(db, other.id)) == (None, None, None, None)
    assert await index_of(db) == entries(job.id)


async def test_a_job_with_a_known_key_leaves_no_entries(db: Database) -> None:
    first = new_job(**ABOUT, **KEYED)
    await enqueue(db, [first], now=NOW)

    await enqueue(db, [new_job(**ABOUT, **KEYED)], now=NOW)

    assert await index_of(db) == entries(first.id)


async def test_a_job_for_which_its_queue_has_no_room_leaves_no_entries(db: Database) -> None:
    await enqueue(db, [new_job(**ABOUT)], max_queued=0, now=NOW)

    assert await index_of(db) == set()


async def test_a_dead_letter_that_runs_again_keeps_them(db: Database) -> None:
    old_id = await make_job(db, JobStatus.ERROR, **ABOUT)

    redriven = await redrive(db, [old_id], now=at(5))

    assert isinstance(redriven, dict)
    assert about(await read(db, redriven[old_id])) == (LABELS, "ci", TRACEPARENT, "a=1")
    assert await index_of(db) == entries(old_id) | entries(redriven[old_id])


async def test_retention_deletes_the_entries_with_the_job(db: Database) -> None:
    await make_job(db, JobStatus.DONE, **ABOUT)
    kept = await make_queued(db, **ABOUT)

    await prune(db, keep_s=1.0, now=at(3600))

    assert await index_of(db) == entries(kept)


async def test_a_page_shows_labels_and_owner(db: Database) -> None:
    await make_queued(db, **ABOUT)

    (job,) = (await search_jobs(db)).jobs

    assert (json.loads(job.labels or ""), job.owner) == (LABELS, "ci")


@pytest.mark.parametrize("view", ["model_runs", "task_runs"])
async def test_the_views_show_labels_and_owner(db: Database, view: str) -> None:
    job_id = await make_queued(db, **ABOUT)

    row = await db.pool.fetchrow(f"SELECT labels, owner FROM {view} WHERE id = $1", job_id)

    assert row is not None
    assert (json.loads(row["labels"]), row["owner"]) == (LABELS, "ci")


# Trace


async def test_whoever_runs_a_job_knows_its_trace(db: Database) -> None:
    traced: dict[str, Any] = {"traceparent": TRACEPARENT, "tracestate": "a=1"}
    claims = []
    await db.pool.execute("INSERT INTO queues (name, mode) VALUES ('default', 'direct')")
    claims.append(await make_running(db, **traced))
    for _ in range(2):
        await make_queued(db, **traced)
    claims += await take(db, [Want("default", ["taker"])], ttl_s=TTL_S, now=NOW)
    reports = [completion(claims[0])]
    _, taken = await complete_and_take(db, reports, [Want("default", ["next"])], ttl_s=TTL_S, now=NOW)
    claims += taken
    _, taken = await enqueue_and_take(db, [new_job(**traced)], [Want("default", ["new"])], ttl_s=TTL_S, now=NOW)
    claims += taken
    claims += await stray_claims(db, "new", [], now=NOW)
    claims += (await claims_that_stand(db, [ask(taken[0].job_id, owner_id="new")])).values()

    assert [(claim.traceparent, claim.tracestate) for claim in claims] == [(TRACEPARENT, "a=1")] * 6


async def test_whoever_takes_a_job_over_knows_its_trace(db: Database) -> None:
    lost = await make_running(db, traceparent=TRACEPARENT)

    (claimed,) = await claim(db.pool, [ask(lost.job_id)], ttl_s=TTL_S, now=at(TTL_S + 1))

    assert isinstance(claimed, ClaimedJob)
    assert (claimed.attempt_no, claimed.traceparent) == (2, TRACEPARENT)


# Search


async def pages(db: Database, wanted: JobFilter, most: int = 100, stretch: int = 10_000) -> list[list[UUID]]:
    """The ids of all pages, one after the other."""
    found = []
    before = None
    while True:
        page = await search_jobs(db, wanted, most=most, before=before, stretch=stretch)
        found.append([job.id for job in page.jobs])
        before = page.next_before
        if before is None:
            return found


async def make_labelled(db: Database, **labels: str) -> UUID:
    return await make_queued(db, labels=json.dumps(labels))


async def test_jobs_are_found_by_label_newest_first(db: Database) -> None:
    made = [await make_labelled(db, team="a", n=str(n)) for n in range(5)]
    await make_labelled(db, team="b")
    await make_labelled(db, other="a")
    await make_queued(db)

    found = await pages(db, JobFilter(labels=(("team", "a"),)), most=2)

    assert [job_id for page in found for job_id in page] == made[::-1]
    assert len(found[0]) == 2


async def test_all_labels_must_fit(db: Database) -> None:
    both = await make_labelled(db, team="a", run="1")
    await make_labelled(db, team="a", run="2")
    await make_labelled(db, run="1")

    (first, *rest) = await pages(db, JobFilter(labels=(("team", "a"), ("run", "1"))))

    assert first == [both]
    assert not any(rest)


async def test_a_job_cannot_have_two_values_for_a_name(db: Database) -> None:
    await make_labelled(db, team="a")

    assert await pages(db, JobFilter(labels=(("team", "a"), ("team", "b")))) == [[]]


async def test_a_rare_fit_among_many_of_a_label_is_found_over_short_pages(db: Database) -> None:
    rare = await make_queued(db, labels='{"team": "a"}', task="embed")
    for _ in range(10):
        await make_labelled(db, team="a")

    found = await pages(db, JobFilter(labels=(("team", "a"),), task="embed"), stretch=4)

    assert len(found) > 2
    assert [job_id for page in found for job_id in page] == [rare]


@pytest.mark.parametrize("status", list(JobStatus))
async def test_labels_and_owner_go_with_any_status(db: Database, status: JobStatus) -> None:
    wanted = await make_job(db, status, **ABOUT)
    await make_job(db, status, labels=ABOUT["labels"])
    await make_job(db, status, owner="ci")
    for other in set(JobStatus) - {status}:
        await make_job(db, other, **ABOUT)

    found = await pages(db, JobFilter(status=status.value, labels=(("team", "vision"),), owner="ci"))

    assert [job_id for page in found for job_id in page] == [wanted]


async def test_jobs_are_found_by_owner(db: Database) -> None:
    made = [await make_queued(db, owner="ci") for _ in range(3)]
    await make_queued(db, owner="other")
    await make_queued(db, labels='{"owner": "ci"}')

    found = await pages(db, JobFilter(owner="ci"), most=2)

    assert [job_id for page in found for job_id in page] == made[::-1]
