"""Bulk: cancel, retry or delete all jobs that fit a filter, one bounded batch a call, newest first.

A batch is one page of the search and one commit of the verb over its jobs. The caller goes on from `next_before`, so it
sees progress and can stop; a job that is met once is not met again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import UUID

import msgspec

from jobd.job.status import JobStatus
from jobd.lifecycle.enqueue import QueueFull
from jobd.lifecycle.search import search_jobs

if TYPE_CHECKING:
    from jobd.engine.engine import Engine
    from jobd.lifecycle.search import JobFilter
    from jobd.store.session import BeforeCommit, Session

Action: TypeAlias = Literal["cancel", "retry", "delete"]

#: The statuses of the jobs that each action can change; jobs of other statuses are not searched.
CHANGEABLE: dict[Action, tuple[str, ...]] = {
    "cancel": (JobStatus.QUEUED.value, JobStatus.RUNNING.value),
    "retry": (JobStatus.ERROR.value,),
    "delete": (JobStatus.DONE.value, JobStatus.ERROR.value, JobStatus.CANCELED.value),
}


class BulkBatch(msgspec.Struct, frozen=True, kw_only=True):
    changed: int
    #: Jobs that fit and could not be changed: another caller was faster, they were changed so before, or a ticket needs
    #: them.
    skipped: int
    #: Where the next batch begins; None: this was the last.
    next_before: UUID | None
    #: Files of results that nothing names any more.
    result_refs: list[str] = []


def changeable(wanted: JobFilter, action: Action) -> JobFilter:
    """The filter, for those jobs only that the action can change."""
    return msgspec.structs.replace(wanted, among=CHANGEABLE[action])


async def change_jobs(
    engine: Engine, action: Action, wanted: JobFilter, *, most: int, before: UUID | None, record: BeforeCommit
) -> BulkBatch | QueueFull:
    """Change one batch; `record` is called with the number of jobs, in the transaction that changes them."""
    page = await search_jobs(engine.database, changeable(wanted, action), most=most, before=before)
    job_ids = [job.id for job in page.jobs]
    changed, refs = 0, list[str]()

    async def counted(session: Session, number: int) -> None:
        nonlocal changed
        changed = number
        await record(session, number)

    if not job_ids:
        await counted(engine.database, 0)
    elif action == "cancel":
        await engine.cancel(job_ids, before_commit=counted)
    elif action == "delete":
        refs = (await engine.delete(job_ids, before_commit=counted)).result_refs
    else:
        redriven = await engine.redrive(job_ids, again=False, group_id=wanted.group, before_commit=counted)
        if isinstance(redriven, QueueFull):
            return redriven
    skipped = len(job_ids) - changed
    return BulkBatch(changed=changed, skipped=skipped, next_before=page.next_before, result_refs=refs)
