"""The janitor on a real Postgres: what is over goes, with its files, and nothing that is needed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from uuid import UUID

import anyio
import msgspec
import pytest

from jobd.config.model import Config, Limits, Retention
from jobd.engine.results import Results
from jobd.files.storage import FileStorage
from jobd.files.table import NewStoredFile, StoredFile, create_file, read_file_refs
from jobd.job.status import JobStatus
from jobd.lifecycle.complete import complete
from jobd.lifecycle.prune import LEADER_KEY, prune
from jobd.lifecycle.read import gone_among, read_jobs
from jobd.lifecycle.rollups import roll_up
from jobd.maintenance import janitor as module
from jobd.maintenance.files import FileSweep
from jobd.maintenance.janitor import Janitor
from jobd.store.ids import new_id
from jobd.store.migrate import migrate
from jobd.store.postgres import Database
from jobd.supervise.service import Handle
from jobd.tickets.read import read_ticket
from tests.support.factories import claim_one, completion, make_job, make_queued, make_running, read
from tests.support.node import new_database
from tests.support.wait import wait_until_async
from tests.tickets.factories import code_of, new_ticket, ticket_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobd.lifecycle.claim import ClaimedJob

DAY_S = 86_400
TEXT = b'"' + b"x" * 98 + b'"'
#: The checks of the configuration ask for a second at least; here what has ended is over.
AT_ONCE = Config(retention=Retention(jobs_s=0, tickets_s=0), limits=Limits(inline_result_bytes=10))
KEEP = Config(limits=Limits(inline_result_bytes=10))


@pytest.fixture
async def db(shared_postgres: str) -> AsyncIterator[Database]:
    database = Database(await new_database(shared_postgres), 4)
    async with database.opened():
        async with database.pool.acquire() as connection:
            await migrate(connection)
        yield database


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path, lambda: KEEP)


async def swept_by(db: Database, data_dir: Path, config: Config = KEEP, orphan_s: float = DAY_S) -> module.Swept:
    """One round of a jobd that has just started, so that no report of its own is under way."""
    janitor = Janitor(db, Results(data_dir, lambda: config), lambda: config, orphan_s=orphan_s)
    return await janitor.run_once(Handle(lambda: None))


async def finish_large(db: Database, results: Results, job: ClaimedJob) -> str:
    ref = await results.keep(job, TEXT)
    assert ref is not None
    await complete(db.pool, [completion(job, result=None, result_ref=ref)])
    return ref


def files_in(data_dir: Path) -> set[str]:
    return {str(path.relative_to(data_dir)) for path in data_dir.glob("results/??/*")}


# Retention


async def test_rollups_go_by_a_retention_of_their_own(db: Database, tmp_path: Path) -> None:
    await make_job(db, JobStatus.DONE)  # long ago
    await complete(db.pool, [completion(await make_running(db))])
    while await roll_up(db, most=10):
        pass

    swept = await swept_by(db, tmp_path)

    assert swept.rollups == 1
    assert await db.fetchval("SELECT sum(done) FROM rollups") == 1


async def test_job_past_its_retention_goes_with_its_file(db: Database, results: Results, tmp_path: Path) -> None:
    large, small, queued = await make_running(db), await make_job(db, JobStatus.DONE), await make_queued(db)
    await finish_large(db, results, large)

    swept = await swept_by(db, tmp_path, AT_ONCE)

    assert (swept.jobs, swept.files, swept.orphans, swept.is_full) == (2, 1, 0, False)
    assert files_in(tmp_path) == set()
    assert await gone_among(db.pool, [large.job_id, small, queued]) == {large.job_id, small}
    assert await read_jobs(db.pool, [queued])


async def test_job_within_its_retention_stays_with_its_file(db: Database, results: Results, tmp_path: Path) -> None:
    job = await make_running(db)
    ref = await finish_large(db, results, job)

    swept = await swept_by(db, tmp_path, orphan_s=-1)

    assert (swept.jobs, swept.files, swept.orphans) == (0, 0, 0)
    assert files_in(tmp_path) == {ref}
    assert (await read(db, job.job_id)).result_ref == ref


async def test_round_is_bounded_and_says_that_there_is_more(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "BATCHES", 2)
    for _ in range(7):
        await make_job(db, JobStatus.DONE)

    rounds = [await swept_by(db, tmp_path, AT_ONCE) for _ in range(3)]

    assert [(swept.jobs, swept.is_full) for swept in rounds] == [(4, True), (3, False), (0, False)]


async def test_gone_ids_are_forgotten_when_their_time_is_over(db: Database, tmp_path: Path) -> None:
    job_id = await make_job(db, JobStatus.DONE)
    await swept_by(db, tmp_path, AT_ONCE)
    assert await gone_among(db.pool, [job_id]) == {job_id}

    await swept_by(db, tmp_path, Config(retention=Retention(gone_s=0)))

    assert await gone_among(db.pool, [job_id]) == set()


async def test_ticket_past_its_retention_goes_and_is_forgotten_like_a_job(db: Database, tmp_path: Path) -> None:
    ticket, other = await ticket_in(db, "DONE"), await ticket_in(db, "BLOCKED")

    early, swept = await swept_by(db, tmp_path), await swept_by(db, tmp_path, AT_ONCE)
    code = await code_of(read_ticket(db.pool, ticket.ticket_id))
    forgotten = await swept_by(db, tmp_path, Config(retention=Retention(gone_s=0)))

    assert [round.tickets for round in (early, swept, forgotten)] == [0, 1, 0]
    assert (code, forgotten.memories) == ("gone_ticket", 1)
    assert await code_of(read_ticket(db.pool, ticket.ticket_id)) == "unknown_ticket"
    assert (await read_ticket(db.pool, other.ticket_id)).status == "BLOCKED"


async def test_round_looks_at_so_many_tickets_and_the_next_goes_on_from_there(
    db: Database, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICKET_BATCH", 1)
    monkeypatch.setattr(module, "BATCHES", 2)
    needed = [await ticket_in(db, "DONE") for _ in range(2)]
    await new_ticket(db, blocked_on=[str(ticket.ticket_id) for ticket in needed])
    for _ in range(3):
        await ticket_in(db, "DONE")
    janitor = Janitor(db, results, lambda: AT_ONCE)

    rounds = [await janitor.run_once(Handle(lambda: None)) for _ in range(4)]

    assert [(swept.tickets, swept.is_full) for swept in rounds] == [(0, False), (2, True), (1, False), (0, False)]


async def test_only_one_node_prunes_at_a_time_and_each_sweeps_its_files(
    db: Database, results: Results, tmp_path: Path
) -> None:
    await make_job(db, JobStatus.DONE)
    await results.keep(await make_running(db), TEXT)
    async with db.pool.acquire() as other:
        await other.execute("SELECT pg_advisory_lock($1)", LEADER_KEY)
        swept = await swept_by(db, tmp_path, AT_ONCE, orphan_s=-1)
        await other.execute("SELECT pg_advisory_unlock($1)", LEADER_KEY)

    assert (swept.jobs, swept.orphans) == (0, 1)
    assert (await swept_by(db, tmp_path, AT_ONCE)).jobs == 1
    assert (await swept_by(db, tmp_path, AT_ONCE)).jobs == 0


# Orphans


async def test_file_of_a_crash_before_the_commit_is_swept_and_the_job_runs_again(
    db: Database, results: Results, tmp_path: Path
) -> None:
    crashed = await make_running(db)
    lost_ref = await results.keep(crashed, TEXT)
    assert (await read(db, crashed.job_id)).result_ref is None
    await db.pool.execute("DELETE FROM leases; UPDATE jobs SET status = 'queued', order_at = now(), enqueue_id = 2")
    ref = await finish_large(db, results, await claim_one(db, crashed.job_id, 2))
    assert files_in(tmp_path) == {lost_ref, ref}

    swept = await swept_by(db, tmp_path, orphan_s=-1)

    assert swept.orphans == 1
    assert files_in(tmp_path) == {ref}


async def test_file_of_a_crash_after_pruning_is_swept(db: Database, results: Results, tmp_path: Path) -> None:
    await finish_large(db, results, await make_running(db))
    await prune(db.pool, keep_s=0)

    assert (await swept_by(db, tmp_path, orphan_s=-1)).orphans == 1

    assert files_in(tmp_path) == set()


async def test_orphan_is_left_alone_for_a_day(db: Database, results: Results, tmp_path: Path) -> None:
    ref = await results.keep(await make_running(db), TEXT)
    assert (await swept_by(db, tmp_path)).orphans == 0

    os.utime(tmp_path / str(ref), (0, 0))

    assert (await swept_by(db, tmp_path)).orphans == 1


async def test_half_file_of_a_crash_is_swept(db: Database, results: Results, tmp_path: Path) -> None:
    ref = await finish_large(db, results, await make_running(db))
    half = (tmp_path / ref).with_name(f".{(tmp_path / ref).name}.0123abcd")
    half.write_text("[")

    assert (await swept_by(db, tmp_path, orphan_s=-1)).orphans == 1

    assert files_in(tmp_path) == {ref}


async def test_file_on_another_node_is_swept_there(db: Database, results: Results, tmp_path: Path) -> None:
    here, there = tmp_path, tmp_path / "other"
    there.mkdir()
    await finish_large(db, Results(there, lambda: KEEP), await make_running(db))
    kept = await finish_large(db, Results(there, lambda: KEEP), await make_running(db))
    await db.pool.execute("DELETE FROM jobs WHERE result_ref <> $1", kept)

    pruned_here = await swept_by(db, here, orphan_s=-1)
    assert (pruned_here.orphans, len(files_in(there))) == (0, 2)
    assert (await swept_by(db, there, orphan_s=-1)).orphans == 1

    assert files_in(there) == {kept}


async def test_files_of_another_database_are_left_alone(
    db: Database, results: Results, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ref = await results.keep(await make_running(db), TEXT)
    (tmp_path / "results" / "installation").write_text("another\n")

    assert (await swept_by(db, tmp_path, orphan_s=-1)).orphans == 0

    assert files_in(tmp_path) == {ref}
    assert "belong to another database" in caplog.text


async def test_walk_through_many_files_takes_several_rounds(
    db: Database, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES", 4)
    job = await make_running(db)
    for n in range(10):
        await results.keep(job, TEXT + b" " * n)
    janitor = Janitor(db, Results(tmp_path, lambda: KEEP), lambda: KEEP, orphan_s=-1)

    rounds = [(await janitor.run_once(Handle(lambda: None))).orphans for _ in range(3)]

    assert rounds == [4, 4, 2]
    assert files_in(tmp_path) == set()


# The service


async def test_service_sweeps_until_it_is_stopped_and_stops_at_once(
    db: Database, results: Results, tmp_path: Path
) -> None:
    await finish_large(db, results, await make_running(db))
    handle, ready = Handle(lambda: ready.set()), anyio.Event()
    janitor = Janitor(db, results, lambda: AT_ONCE)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(janitor.run, handle)
            await ready.wait()
            await wait_until_async(lambda: files_in(tmp_path) == set())
            handle.stop.set()


async def test_service_that_fails_in_the_middle_can_run_again(
    db: Database, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES", 1)
    for _ in range(3):
        await results.keep(await make_running(db), TEXT)
    janitor = Janitor(db, Results(tmp_path, lambda: KEEP), lambda: KEEP, orphan_s=-1)
    await janitor.run_once(Handle(lambda: None))
    stopped = Handle(lambda: None)
    stopped.stop.set()
    await janitor.run(stopped)

    rounds = [(await janitor.run_once(Handle(lambda: None))).orphans for _ in range(3)]

    assert sum(rounds) == 2
    assert files_in(tmp_path) == set()


# Files of clients and batches


async def stored(db: Database, files: FileStorage, keep_s: float | None = None) -> StoredFile:
    async with files.new_file(new_id()) as writer:
        await writer.write(b"x")
        ref = await writer.keep()
        new = NewStoredFile(id=new_id(), owner=None, filename="f", purpose="batch", bytes=1, ref=ref, keep_s=keep_s)
        return await create_file(db, msgspec.structs.replace(new, id=UUID(ref.rpartition("/")[2][:36])))


async def test_a_file_goes_when_it_has_expired(db: Database, tmp_path: Path) -> None:
    files = FileStorage(tmp_path)
    old, kept, later = await stored(db, files, -1), await stored(db, files), await stored(db, files, 3600)
    janitor = Janitor(
        db, Results(tmp_path, lambda: KEEP), lambda: KEEP, files=FileSweep(db, files, Config, unnamed_s=-1)
    )

    await janitor.run_once(Handle(lambda: None))

    assert await read_file_refs(db, [old.id, kept.id, later.id]) == {kept.ref, later.ref}
    assert {file.ref for file in files.walk()} == {kept.ref, later.ref}


async def test_files_without_a_row_go_when_they_are_old(db: Database, tmp_path: Path) -> None:
    files = FileStorage(tmp_path)
    kept = await stored(db, files)
    async with files.new_file(new_id()) as writer:
        orphan = await writer.keep()

    assert await FileSweep(db, files, Config).sweep_orphans() == 0
    assert await FileSweep(db, files, Config, unnamed_s=-1).sweep_orphans() == 1

    assert {file.ref for file in files.walk()} == {kept.ref} != {orphan}


async def test_files_of_another_database_stay(db: Database, tmp_path: Path) -> None:
    files = FileStorage(tmp_path)
    async with files.new_file(new_id()) as writer:
        await writer.keep()
    (tmp_path / "files" / "installation").write_text("another")

    assert await FileSweep(db, files, Config, unnamed_s=-1).sweep_orphans() == 0
    assert len(list(files.walk())) == 1
