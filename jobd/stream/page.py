"""A page of the outbox as work for the script: for each job at most one change, and notes for the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio.lowlevel

from jobd.job.history import LAST_EVENTS
from jobd.lifecycle.outbox import DONE, PLAIN_FIELDS, QUEUED, RUNNING
from jobd.stream.changes import change_of, notes_of
from jobd.stream.project import RedisBatch, in_calls

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jobd.lifecycle.outbox import OutboxPage
    from jobd.stream.changes import Change, NoteArray, OfferArray
    from jobd.stream.project import Call, OfferMode
    from jobd.stream.window import Window

#: Jobs and offers from which on a page is large: the next page is read from Postgres while Redis works on this one.
LARGE = 100
#: Jobs after which the event loop is yielded: a page takes some milliseconds, and no caller waits for it.
TURN = 100


class PageWork(NamedTuple):
    """A page of outbox rows to publish, and what is to be offered after it; ready to be sent."""

    seqs: list[int]
    batch: RedisBatch
    calls: list[Call]
    size: int

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE

    def ready(self, modes: Sequence[OfferMode], work: bytes) -> PageWork:
        """With the modes of the queues that it is about, and the message for channel `jobd:work`."""
        batch = self.batch._replace(modes=modes, work=work)
        return self._replace(batch=batch, calls=in_calls(batch) if self.size else [])


NO_WORK = PageWork([], RedisBatch(), [], 0)


async def make_work(
    page: OutboxPage,
    offers: Sequence[OfferArray],
    window: Window,
    without_mirror: Collection[str],
    most_s: int | None,
) -> PageWork:
    plain: list[object] = []
    changes: list[Change] = []
    notes: list[NoteArray] = []
    for n, job in enumerate(page.jobs, 1):
        if n % TURN == 0:
            await anyio.lowlevel.checkpoint()
        kinds, task, queue = job.kinds, job.task, job.queue
        is_plain = job.others is None and not job.is_gone
        if not is_plain:
            notes += notes_of(job)
        else:  # as notes_of does, for nearly all
            if kinds & QUEUED:
                notes.append((job.id_bytes, "queued", 0, job.created_ts, task, queue, 1))
            if kinds & RUNNING:
                notes.append((job.id_bytes, "running", 1, job.started_ts, task, queue, 0))
            if kinds & DONE:
                notes.append((job.id_bytes, "done", 1, job.finished_ts, task, queue, -1))
        if queue in without_mirror:
            continue
        if not is_plain:
            change = change_of(job)
            if change is not None:
                if most_s is not None and any(event[2] in LAST_EVENTS for event in change.events):
                    change.ttl_s = min(change.ttl_s, most_s)
                changes.append(change)
        elif kinds != QUEUED or not (job.job_id in window.offered[queue] or window.keeps_out(job)):
            plain += job[:PLAIN_FIELDS]
    batch = RedisBatch(plain, changes, offers, notes=notes, most_s=most_s)
    return PageWork(page.seqs, batch, [], len(page.jobs) + len(offers))
