"""Jobs that wait for others: held until the last has ended, let go once, canceled if success does not come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from msgspec.structs import replace

from jobd.job.status import JobStatus
from jobd.lifecycle.admit import admit
from jobd.lifecycle.cancel import cancel
from jobd.lifecycle.complete import complete
from jobd.lifecycle.depend import Dependency, LinkRefused, list_dependencies, list_dependents, look_up
from jobd.lifecycle.enqueue import Created, Existing, IdempotencyKey, NewJob, enqueue
from jobd.lifecycle.enqueue_insert import insert
from jobd.lifecycle.fail import fail
from jobd.lifecycle.inputs import fill_payloads, read_inputs
from jobd.lifecycle.modes import queue_modes
from jobd.lifecycle.outbox import turn_page
from jobd.lifecycle.prune import delete_jobs, prune
from jobd.lifecycle.publish import promote_due
from jobd.lifecycle.settle import SettledPage, look_for_links, settle
from jobd.lifecycle.take import take
from jobd.lifecycle.waiting import explain_waiting
from jobd.store.ids import new_id
from tests.lifecycle.direct import set_mode, until_waiting, want
from tests.support.factories import (
    NOW,
    POLICY,
    TTL_S,
    assert_counters_are_right,
    at,
    claim_one,
    completion,
    failure,
    make_job,
    make_queued,
    make_running,
    new_job,
    read,
    status_of,
)

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from jobd.lifecycle.claim import ClaimedJob
    from jobd.store.postgres import Database

ENDS = {JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELED}


def after(*job_ids: UUID, on_any: bool = False, **changes: Any) -> NewJob:
    return new_job(depends_on=tuple(Dependency(on_id=job_id, on_any=on_any) for job_id in job_ids), **changes)


async def make_after(db: Database, *job_ids: UUID, **changes: Any) -> UUID:
    job = after(*job_ids, **changes)
    assert await enqueue(db, [job], now=NOW) == [Created(job.id)]
    return job.id


async def settle_all(db: Database, now: datetime = NOW, **changes: Any) -> list[SettledPage]:
    """Page by page, until nothing is left."""
    pages: list[SettledPage] = []
    async with db.connection() as connection:
        while (page := await settle(connection, now=now, **changes)).ends:
            pages.append(page)
    return pages


async def end(db: Database, claimed: ClaimedJob, status: JobStatus) -> None:
    if status is JobStatus.DONE:
        await complete(db.pool, [completion(claimed)], now=NOW)
    elif status is JobStatus.ERROR:
        await fail(db.pool, [failure(claimed, retryable=False)], policy=POLICY, now=NOW)
    else:
        await cancel(db, [claimed.job_id], now=NOW)
        await fail(db.pool, [failure(claimed)], policy=POLICY, now=NOW)


async def taken(db: Database, most: int = 10, now: datetime = NOW) -> list[UUID]:
    """What could be taken, in the order of the line."""
    if "default" not in await queue_modes(db):
        await set_mode(db, "direct")
    jobs = await take(db, [want(most)], ttl_s=TTL_S, now=now)
    return [job.job_id for job in sorted(jobs, key=lambda job: job.owner_id)]


async def test_a_job_that_waits_for_another_is_not_to_be_had(db: Database) -> None:
    first = await make_running(db)

    job_id = await make_after(db, first.job_id)

    assert await taken(db) == []
    assert await promote_due(db, now=at(1e9)) == []
    waits = await explain_waiting(db, [job_id])
    assert (waits[job_id].held, waits[job_id].in_line, waits[job_id].position) == ("depends", False, None)
    await assert_counters_are_right(db)


async def test_the_end_of_the_last_dependency_gives_the_job_its_place(db: Database) -> None:
    first, second = await make_running(db), await make_running(db)
    job_id = await make_after(db, first.job_id, second.job_id)

    await end(db, first, JobStatus.DONE)
    early = await settle_all(db)
    assert await taken(db) == []
    await end(db, second, JobStatus.DONE)
    late = await settle_all(db)

    assert [job.job_id for page in early for job in page.freed] == []
    assert [(job.job_id, job.status, job.in_line) for page in late for job in page.freed] == [(job_id, "queued", True)]
    assert await taken(db) == [job_id]


async def test_a_job_let_go_keeps_its_priority_and_waits_from_then_on(db: Database) -> None:
    first = await make_running(db)
    job_id = await make_after(db, first.job_id, priority=1)
    older, newer = await make_queued(db, at(100), priority=1), await make_queued(db, at(300), priority=1)
    await end(db, first, JobStatus.DONE)

    await settle_all(db, at(200))

    assert await taken(db, now=at(400)) == [older, job_id, newer]


async def test_a_job_whose_time_has_not_come_is_let_go_to_its_time(db: Database) -> None:
    first = await make_running(db)
    job_id = await make_after(db, first.job_id, run_after=at(60))
    await end(db, first, JobStatus.DONE)

    (page,) = await settle_all(db)

    assert [job.in_line for job in page.freed] == [False]
    assert await taken(db) == []
    assert await promote_due(db, now=at(61)) == [job_id]
    assert await taken(db, now=at(61)) == [job_id]


async def test_a_job_with_a_limit_key_is_let_go_to_be_admitted(db: Database) -> None:
    first = await make_running(db)
    job_id = await make_after(db, first.job_id, limit_key="k")
    assert (await explain_waiting(db, [job_id]))[job_id].held == "depends"
    await admit(db, {})
    await end(db, first, JobStatus.DONE)

    (page,) = await settle_all(db)

    assert [(job.in_line, job.is_limited) for job in page.freed] == [(False, True)]
    assert (await explain_waiting(db, [job_id]))[job_id].held == "limited"
    assert await taken(db) == []
    await admit(db, {})
    assert await taken(db) == [job_id]


@pytest.mark.parametrize("status", sorted(ENDS))
@pytest.mark.parametrize("on_any", [False, True])
@pytest.mark.parametrize("is_final_before", [False, True])
async def test_what_the_end_of_a_job_means_for_its_successor(
    db: Database, status: JobStatus, on_any: bool, is_final_before: bool
) -> None:
    first = await make_running(db)
    if is_final_before:
        await end(db, first, status)
    job_id = await make_after(db, first.job_id, on_any=on_any)
    if not is_final_before:
        await end(db, first, status)

    await settle_all(db)

    runs = on_any or status is JobStatus.DONE
    assert await taken(db) == ([job_id] if runs else [])
    job = await read(db, job_id)
    assert job.status == ("running" if runs else "canceled")
    if not runs:
        assert json.loads(job.error or "") == {
            "code": "dependency_failed",
            "message": f"job {first.job_id}, for which it waited, ended in {status.value}",
            "retryable": False,
        }
    await assert_counters_are_right(db)
    assert not (await look_for_links(db)).has_settled


async def test_a_chain_whose_first_job_fails_is_canceled_to_its_end(db: Database) -> None:
    first = await make_running(db)
    chain = [await make_after(db, first.job_id)]
    for _ in range(4):
        chain.append(await make_after(db, chain[-1]))
    rescue = await make_after(db, chain[-1], on_any=True)

    await end(db, first, JobStatus.ERROR)
    pages = await settle_all(db)

    assert [await status_of(db, job_id) for job_id in chain] == [JobStatus.CANCELED] * 5
    assert len(pages) == 6
    assert await taken(db) == [rescue]


async def test_a_canceled_successor_is_published_and_has_its_event(db: Database) -> None:
    first = await make_running(db)
    job_id = await make_after(db, first.job_id)
    await turn_page(db, most_changes=100)
    await end(db, first, JobStatus.ERROR)

    await settle_all(db)

    page = await turn_page(db, most_changes=100)
    (changed,) = [job for job in page.jobs if job.job_id == str(job_id)]
    assert [(change[1], *change[5:7]) for change in json.loads(changed.others or "[]")][-1] == ("canceled", 0, 2)
    assert "dependency_failed" in (changed.error or "")


async def test_a_held_job_can_be_canceled_and_stays_so(db: Database) -> None:
    first = await make_running(db)
    job_id = await make_after(db, first.job_id)
    await cancel(db, [job_id], now=NOW)

    await end(db, first, JobStatus.DONE)
    pages = await settle_all(db)

    assert await status_of(db, job_id) is JobStatus.CANCELED
    assert [page.freed for page in pages] == [[]]


async def test_a_job_that_nobody_waits_for_leaves_no_trace(db: Database) -> None:
    for status in ENDS:
        await make_job(db, status)

    assert await db.fetchval("SELECT count(*) FROM settled") == 0
    assert await settle_all(db) == []


async def test_one_end_lets_many_go_page_by_page(db: Database) -> None:
    first = await make_running(db)
    job_ids = {await make_after(db, first.job_id) for _ in range(7)}
    await end(db, first, JobStatus.DONE)

    pages = await settle_all(db, most_closed=3)

    assert [len(page.freed) for page in pages] == [3, 3, 1]
    assert set(await taken(db)) == job_ids


async def test_dependencies_are_listed_both_ways(db: Database) -> None:
    first, second = await make_running(db), await make_running(db)
    edges = (Dependency(on_id=second.job_id, ref="b"), Dependency(on_id=first.job_id, on_any=True))
    job = new_job(depends_on=edges)
    await enqueue(db, [job], now=NOW)
    await end(db, first, JobStatus.ERROR)
    await settle_all(db)

    found = await list_dependencies(db, [job.id], most=10)
    back = await list_dependents(db, [first.job_id], most=10)

    assert [(edge.on_id, edge.ref, edge.on_any, edge.open, edge.status) for edge in found] == [
        (second.job_id, "b", False, True, "running"),
        (first.job_id, None, True, False, "error"),
    ]
    assert [edge.job_id for edge in back] == [job.id]


# -- submit ------------------------------------------------------------------------------------------------------------


async def test_an_unknown_and_a_deleted_dependency_are_refused_alone(db: Database) -> None:
    gone = await make_job(db, JobStatus.DONE)
    assert (await prune(db, now=at(10))).jobs == 1
    there, unknown = await make_queued(db), new_id()
    good = after(there)

    answers = await enqueue(db, [after(unknown), good, after(there, gone)], now=NOW)

    assert answers == [
        LinkRefused("unknown_dependency", unknown),
        Created(good.id),
        LinkRefused("gone_dependency", gone),
    ]


async def test_a_batch_with_a_refused_dependency_is_refused_whole(db: Database) -> None:
    unknown = new_id()
    jobs = [new_job(), after(unknown)]

    answers = await enqueue(db, jobs, whole=True, now=NOW)

    assert answers[1] == LinkRefused("unknown_dependency", unknown)
    assert await db.fetchval("SELECT count(*) FROM jobs") == 0


async def test_jobs_of_a_batch_wait_for_each_other_in_any_order(db: Database) -> None:
    first, last = new_job(), new_job()
    middle = after(first.id)
    last = after(middle.id, first.id)

    assert await enqueue(db, [last, middle, first], whole=True, now=NOW) == [
        *(Created(last.id), Created(middle.id), Created(first.id))
    ]

    for job in (first, middle, last):
        assert await taken(db) == [job.id]
        await db.execute("UPDATE jobs SET finished_at = $2, status = 'done' WHERE id = $1", job.id, NOW)
        await settle_all(db)


async def test_the_same_key_again_leads_to_the_same_held_job(db: Database) -> None:
    first = await make_running(db)
    key = IdempotencyKey("", "k", b"x", 60.0)
    job = after(first.job_id, key=key)

    made = await enqueue(db, [job], now=NOW)
    again = await enqueue(db, [after(first.job_id, key=key)], now=NOW)
    resent = await enqueue(db, [replace(job, key=None)], now=NOW)

    assert (made, again, resent) == ([Created(job.id)], [Existing(job.id)], [Created(job.id)])
    assert len(await list_dependencies(db, [job.id], most=10)) == 1


async def test_a_refused_job_gives_its_key_back(db: Database) -> None:
    key = IdempotencyKey("", "k", b"x", 60.0)
    first = await make_running(db)

    refused = await enqueue(db, [after(new_id(), key=key)], now=NOW)
    good = after(first.job_id, key=key)

    assert isinstance(refused[0], LinkRefused)
    assert await enqueue(db, [good], now=NOW) == [Created(good.id)]


async def test_a_dependency_on_a_job_of_the_batch_follows_it_to_its_twin(db: Database) -> None:
    spec: Any = {"spec_hash": b"s" * 32, "dedupe": "active"}
    twin = await make_running(db, **spec)
    double = new_job(**spec)
    job = after(double.id)

    answers = await enqueue(db, [double, job], whole=True, now=NOW)

    assert answers == [Existing(twin.job_id), Created(job.id)]
    assert [edge.on_id for edge in await list_dependencies(db, [job.id], most=10)] == [twin.job_id]
    await end(db, twin, JobStatus.DONE)
    await settle_all(db)
    assert await taken(db) == [job.id]


# -- races -------------------------------------------------------------------------------------------------------------


async def test_an_end_during_a_submit_is_not_missed(db: Database) -> None:
    """The submit has seen the job running and has not committed: the end waits for it, and is noticed."""
    first = await make_running(db)
    ended = anyio.Event()

    async def finish() -> None:
        await end(db, first, JobStatus.DONE)
        ended.set()

    async with anyio.create_task_group() as tasks:
        async with db.transaction() as transaction:
            job = after(first.job_id)
            links = await look_up(transaction, [job], {job.id})
            tasks.start_soon(finish)
            await until_waiting(db)
            await insert(transaction, [job], None, None, NOW)
            await links.hold(transaction, [job])
        await ended.wait()
    await settle_all(db)

    assert await taken(db) == [job.id]


async def test_two_nodes_that_close_the_last_two_dependencies_at_once_let_the_job_go_once(db: Database) -> None:
    first, second = await make_running(db), await make_running(db)
    job_id = await make_after(db, first.job_id, second.job_id)
    await end(db, first, JobStatus.DONE)
    freed: list[SettledPage] = []

    async with db.connection() as one, db.connection() as other:
        async with anyio.create_task_group() as tasks:

            async def settle_other() -> None:
                freed.append(await settle(other, now=NOW))

            async with one.transaction():
                freed.append(await settle(one, now=NOW))  # and has not committed
                await end(db, second, JobStatus.DONE)
                tasks.start_soon(settle_other)
                await until_waiting(db)

    assert sorted(len(page.freed) for page in freed) == [0, 1]
    assert await taken(db) == [job_id]


async def test_a_page_that_is_undone_is_worked_off_again(db: Database) -> None:
    first = await make_running(db)
    job_id = await make_after(db, first.job_id)
    await end(db, first, JobStatus.DONE)

    async with db.connection() as connection:
        with pytest.raises(ZeroDivisionError):
            async with connection.transaction():
                assert (await settle(connection, now=NOW)).ends == 1
                raise ZeroDivisionError

    assert await taken(db) == []
    await settle_all(db)
    assert await taken(db) == [job_id]


# -- inputs ------------------------------------------------------------------------------------------------------------


async def fill(db: Database, limit: int = 10_000) -> None:
    await settle_all(db, fill=lambda session, ids: fill_payloads(session, ids, limit=limit))


async def done_with(db: Database, claimed: ClaimedJob, result: object) -> None:
    await complete(db.pool, [completion(claimed, result=json.dumps(result))], now=NOW)


def named(job_id: UUID, ref: str, payload: dict[str, Any]) -> NewJob:
    return new_job(depends_on=(Dependency(on_id=job_id, ref=ref),), payload=json.dumps(payload))


async def test_inputs_are_the_results_by_ref_or_id(db: Database) -> None:
    first, second = await make_running(db), await make_running(db)
    edges = (Dependency(on_id=first.job_id, ref="a"), Dependency(on_id=second.job_id, on_any=True))
    job = new_job(depends_on=edges)
    await enqueue(db, [job], now=NOW)
    await done_with(db, first, {"n": 1})
    await end(db, second, JobStatus.ERROR)
    await settle_all(db)

    (inputs,) = await read_inputs(db, [job.id])

    assert {name: (found.status, found.result, found.error) for name, found in inputs.items()} == {
        "a": ("done", {"n": 1}, None),
        str(second.job_id): ("error", None, {"code": "boom"}),
    }


async def test_results_beyond_the_limit_are_left_out_of_the_inputs(db: Database) -> None:
    claims = [await make_running(db) for _ in range(3)]
    job_id = await make_after(db, *(claimed.job_id for claimed in claims))
    for claimed in claims:
        await done_with(db, claimed, "x" * 40)

    (inputs,) = await read_inputs(db, [job_id], most_bytes=100)

    assert [(found.is_large, found.result is None) for found in inputs.values()] == [(False, False)] * 2 + [
        (True, True)
    ]


@pytest.mark.parametrize(
    ("payload", "result", "filled_in"),
    [
        ({"x": "{{inputs.a}}"}, {"n": 1}, {"x": {"n": 1}}),
        ({"x": "{{ inputs.a.n }}"}, {"n": [7, 8]}, {"x": [7, 8]}),
        ({"x": ["n is {{inputs.a.n.1}}!"]}, {"n": [7, 8]}, {"x": ["n is 8!"]}),
        ({"x": "{{inputs.a}} and {{inputs.a}}"}, "{{inputs.b}}", {"x": "{{inputs.b}} and {{inputs.b}}"}),
        ({"x": "{{other}} {{title}}", "{{inputs.a}}": None}, 1, {"x": "{{other}} {{title}}", "{{inputs.a}}": None}),
    ],
)
async def test_places_in_a_payload_are_filled_in(
    db: Database, payload: dict[str, Any], result: object, filled_in: dict[str, Any]
) -> None:
    first = await make_running(db)
    job = named(first.job_id, "a", payload)
    await enqueue(db, [job], now=NOW)
    await done_with(db, first, result)

    await fill(db)

    assert json.loads((await claim_one(db, job.id)).payload) == filled_in


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{inputs.b}}", "its inputs are a"),
        ("{{inputs.a.m}}", "has no m"),
        ("{{inputs.a.n.x}}", "has no x"),
        ("{{inputs.a.long}}" * 20, "limits.payload_bytes"),
    ],
)
async def test_a_place_that_cannot_be_filled_in_cancels_the_job(db: Database, text: str, said: str) -> None:
    first = await make_running(db)
    job = named(first.job_id, "a", {"x": text})
    await enqueue(db, [job], now=NOW)
    next_one = await make_after(db, job.id)
    await done_with(db, first, {"n": 1, "long": "x" * 100})

    await fill(db, limit=1000)

    assert await status_of(db, job.id) is JobStatus.CANCELED
    assert said in json.loads((await read(db, job.id)).error or "")["message"]
    assert await status_of(db, next_one) is JobStatus.CANCELED
    await assert_counters_are_right(db)


# -- retention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_final_before", [False, True])
async def test_a_job_is_kept_while_another_may_read_its_result(db: Database, is_final_before: bool) -> None:
    first = await make_running(db)
    if is_final_before:
        await end(db, first, JobStatus.DONE)
    job_id = await make_after(db, first.job_id)
    if not is_final_before:
        await end(db, first, JobStatus.DONE)
    await settle_all(db)

    assert (await prune(db, now=at(10))).jobs == 0
    assert (await delete_jobs(db, [first.job_id])).jobs == 0
    await complete(db.pool, [completion(await claim_one(db, job_id))], now=NOW)

    assert (await prune(db, now=at(10))).jobs == 2
    assert await db.fetchval("SELECT count(*) FROM dependencies") == 0


#: Advisory lock that the trigger below waits for.
GATE = 7318

#: Holds whoever deletes the first of two jobs, after the snapshot of the statement and before the second job is locked.
HOLD_DELETE = f"""
CREATE FUNCTION jobd.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN OLD; END $$;
CREATE TRIGGER at_gate BEFORE DELETE ON jobd.jobs FOR EACH ROW EXECUTE FUNCTION jobd.wait_at_gate();
"""


@pytest.mark.parametrize("verb", ["prune", "delete"])
async def test_a_job_stays_when_another_comes_to_depend_on_it_during_its_deletion(db: Database, verb: str) -> None:
    first, second = await make_job(db, JobStatus.DONE), await make_job(db, JobStatus.DONE, at(1))
    await db.execute(HOLD_DELETE)
    try:
        async with db.connection() as gate, anyio.create_task_group() as group:
            await gate.execute("SELECT pg_advisory_lock($1)", GATE)

            async def remove() -> None:
                pruned = await (prune(db, now=at(10)) if verb == "prune" else delete_jobs(db, [first, second]))
                assert pruned.jobs == 1

            group.start_soon(remove)
            while not await gate.fetchval("SELECT count(*) FROM pg_locks WHERE objid = $1 AND NOT granted", GATE):
                await anyio.sleep(0.01)
            await make_after(db, second)
            await gate.execute("SELECT pg_advisory_unlock($1)", GATE)
    finally:
        await db.execute("DROP FUNCTION jobd.wait_at_gate CASCADE")

    assert await status_of(db, second) is JobStatus.DONE
