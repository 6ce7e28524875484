"""The janitor: deletes what is past its retention, in small batches, and never what is still needed.

- All times are steady (see `store/clock_eras`): they count how long jobd ran, no step of the clock makes anything old.
- Jobs that ended longer than `retention.jobs_s` ago go in batches, and after each commit the files of their results.
  One node at a time does it; two would only wait for each other's locks. Groups go when their last member has gone.
- Tickets that are DONE for longer than `retention.tickets_s` go likewise, unless an unfinished one waits for them.
- Minute rollups go after `retention.rollups_s`, whether their jobs are still there or not.
- Idempotency keys, the ids of deleted jobs and tickets, sessions and login codes are forgotten when their time is over.
- Result files that no row names (a crash before the commit, or between a commit and the deletion; on several nodes,
  those of jobs that another node deleted) go when they are a day old. Every node checks only its own `data_dir`.
- Files that clients sent or batches made go when they expire, and those without a row as result files do: see `files`.

Between two batches it rests for as long as the last one took, so it costs at most half of one connection; a round that
was full is followed by another without the pause, so it keeps up with whatever comes.
"""

from __future__ import annotations

import logging
import random
import time
from itertools import islice
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio import to_thread

from jobd.auth.sessions import prune_sessions
from jobd.lifecycle.admit import forget_starts
from jobd.lifecycle.groups import prune_groups
from jobd.lifecycle.prune import LEADER_KEY, prune, prune_memories, read_installation, read_result_refs
from jobd.lifecycle.rollups import prune_rollups
from jobd.store.leader import leading_once
from jobd.tickets.prune import forget_gone_tickets, prune_tickets

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from jobd.config.model import Config
    from jobd.engine.results import Found, Results
    from jobd.maintenance.files import FileSweep
    from jobd.store.postgres import Database
    from jobd.store.session import Session
    from jobd.supervise.service import Handle
    from jobd.tickets.prune import Place

log = logging.getLogger(__name__)

#: Jobs that are deleted in one commit.
BATCH = 500
#: Tickets that are checked in one commit; fewer than jobs, as each has some twenty rows and perhaps a large output.
TICKET_BATCH = 100
#: Batches of one kind of rows before the next kind has its turn.
BATCHES = 20
#: Rows of deleted jobs (for the answer 410) that are deleted in one commit.
MEMORIES = 5_000
#: Rollups that are deleted in one commit: more than come in a minute.
ROLLUPS = 5_000
#: Result files checked in a round, so that a million are checked in less than a day.
FILES = 1_000
#: Age in seconds from which a result file without a row is deleted; no report is under way for a day.
ORPHAN_S = 86_400.0
#: Shortest pause between two batches in seconds.
SHORTEST_REST_S = 0.01
#: Longest pause between two batches in seconds.
LONGEST_REST_S = 5.0


class Swept(msgspec.Struct, kw_only=True):
    """What one round has deleted."""

    jobs: int = 0
    tickets: int = 0
    memories: int = 0
    rollups: int = 0
    #: Files of jobs that were deleted.
    files: int = 0
    #: Files that no row named.
    orphans: int = 0
    #: There is more.
    is_full: bool = False


class Janitor:
    def __init__(
        self,
        database: Database,
        results: Results,
        config: Callable[[], Config],
        *,
        orphan_s: float = ORPHAN_S,
        files: FileSweep | None = None,
    ) -> None:
        self._database = database
        self._results = results
        self._config = config
        self._orphan_s = orphan_s
        self._files = files
        #: Where the next batch of tickets begins; None: at the oldest.
        self._place: Place | None = None
        self._walk: Generator[Found, None, None] | None = None
        self._is_foreign = False

    async def run(self, handle: Handle) -> None:
        handle.ready()
        try:
            while not handle.stop.is_set():
                swept = await self.run_once(handle)
                _tell(swept)
                if not swept.is_full:
                    await self._pause(handle)
        finally:
            self._stop_walking()
            if self._files is not None:
                self._files.stop_walking()

    async def _pause(self, handle: Handle) -> None:
        until = time.monotonic() + self._config().retention.every_s * random.uniform(0.8, 1.2)
        while not handle.stop.is_set() and (left_s := until - time.monotonic()) > 0:
            await _rest(handle, min(left_s, LONGEST_REST_S))

    async def run_once(self, handle: Handle) -> Swept:
        """One round: a bounded number of jobs, tickets, memories and files."""
        swept = Swept()
        async with leading_once(self._database, LEADER_KEY) as session:
            if session is not None:
                await self._prune_jobs(session, handle, swept)
                await self._prune_tickets(session, handle, swept)
                await self._prune_memories(session, handle, swept)
                await self._prune_rollups(session, handle, swept)
                if self._files is not None and not handle.stop.is_set():
                    swept.is_full = await self._files.prune(session) or swept.is_full
        if not handle.stop.is_set():
            await self._sweep_orphans(swept)
            if self._files is not None:
                await self._files.sweep_orphans()
            handle.beat()
        return swept

    # -- rows --------------------------------------------------------------------------------------------------

    async def _prune_jobs(self, session: Session, handle: Handle, swept: Swept) -> None:
        for _ in range(BATCHES):
            if handle.stop.is_set():
                return
            began = time.monotonic()
            past = await self._database.clock.past(self._config().retention.jobs_s)
            pruned = await prune(session, past=past, most=BATCH)
            swept.jobs += pruned.jobs
            swept.files += await self._results.remove(pruned.result_refs)
            if pruned.jobs < BATCH:
                await prune_groups(session, past=past, most=BATCH)
                return
            await _rest(handle, max(SHORTEST_REST_S, time.monotonic() - began))
        swept.is_full = True

    async def _prune_tickets(self, session: Session, handle: Handle, swept: Swept) -> None:
        for _ in range(BATCHES):
            if handle.stop.is_set():
                return
            began = time.monotonic()
            past = await self._database.clock.past(self._config().retention.tickets_s)
            pruned = await prune_tickets(session, past=past, most=TICKET_BATCH, after=self._place)
            swept.tickets += pruned.tickets
            self._place = pruned.place
            if self._place is None:
                return
            await _rest(handle, max(SHORTEST_REST_S, time.monotonic() - began))
        # A batch in which all tickets have to stay is no reason for another round at once.
        swept.is_full = swept.is_full or swept.tickets > 0

    async def _prune_memories(self, session: Session, handle: Handle, swept: Swept) -> None:
        if handle.stop.is_set():
            return
        gone_s, steady = self._config().retention.gone_s, await self._database.clock.steady()
        forgotten = await prune_memories(session, keep_gone_s=gone_s, most=MEMORIES, now=steady)
        of_tickets = await forget_gone_tickets(session, keep_gone_s=gone_s, most=MEMORIES, now=steady)
        swept.memories += forgotten + of_tickets + await prune_sessions(session) + await forget_starts(session)
        swept.is_full = swept.is_full or max(forgotten, of_tickets) >= MEMORIES
        handle.beat()

    async def _prune_rollups(self, session: Session, handle: Handle, swept: Swept) -> None:
        if handle.stop.is_set():
            return
        past = await self._database.clock.past(self._config().retention.rollups_s)
        swept.rollups += await prune_rollups(session, past, most=ROLLUPS)
        swept.is_full = swept.is_full or swept.rollups >= ROLLUPS
        handle.beat()

    # -- files -------------------------------------------------------------------------------------------------

    async def _sweep_orphans(self, swept: Swept) -> None:
        """Check the next few files; a walk through all of them takes many rounds."""
        if not await self._are_ours():
            return
        files = await to_thread.run_sync(self._next_files)
        old = [file for file in files if file.age_s > self._orphan_s]
        if not old:
            return
        named = await read_result_refs(self._database, [file.job_id for file in old if file.job_id is not None])
        swept.orphans += await self._results.remove_orphans(file for file in old if file.ref not in named)

    async def _are_ours(self) -> bool:
        installation = await read_installation(self._database)
        are_ours = await to_thread.run_sync(self._results.belong_to, installation)
        if not are_ours and not self._is_foreign:
            log.warning(
                "the files in data_dir/results belong to another database, so none is swept; is postgres.url the right"
                " one? If so, delete data_dir/results/installation"
            )
        self._is_foreign = not are_ours
        return are_ours

    def _next_files(self) -> list[Found]:
        if self._walk is None:
            self._walk = self._results.walk()
        files = list(islice(self._walk, FILES))
        if len(files) < FILES:
            self._stop_walking()
        return files

    def _stop_walking(self) -> None:
        if self._walk is not None:
            self._walk.close()
            self._walk = None


async def _rest(handle: Handle, rest_s: float) -> None:
    handle.beat()
    with anyio.move_on_after(min(rest_s, LONGEST_REST_S)):
        await handle.stop.wait()


def _tell(swept: Swept) -> None:
    if swept.jobs or swept.orphans:
        log.info(
            "deleted %d jobs past their retention with %d result files, and %d result files without a job",
            *(swept.jobs, swept.files, swept.orphans),
        )
    if swept.tickets:
        log.info("deleted %d tickets past their retention with all that they left behind", swept.tickets)
