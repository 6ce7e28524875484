"""Depend: new jobs that wait for other jobs, and new members of groups; within the transaction that enqueues them.

What they wait for is locked until the commit, so it cannot end unnoticed meanwhile: its end comes after the commit and
leaves a row in `settled`. What has ended already leaves that row by this very commit. Either way `settle` lets the jobs
go. Locks are taken in one order: groups, then jobs, each by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

import msgspec

from jobd.job.status import FINAL_STATUSES
from jobd.lifecycle.read import gone_among
from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from jobd.lifecycle.enqueue import NewJob
    from jobd.store.session import Session

LOCK_GROUPS = statement("lock_groups")
LOCK_PREDECESSORS = statement("lock_predecessors")
HOLD_JOBS = statement("hold_jobs")
FIND_GROUP_RINGS = statement("find_group_rings")
LIST_DEPENDENCIES = statement("list_dependencies")
LIST_DEPENDENTS = statement("list_dependents")

LinkProblem: TypeAlias = Literal[
    "unknown_dependency", "gone_dependency", "unknown_group", "group_sealed", "dependency_cycle"
]


class Dependency(msgspec.Struct, frozen=True, kw_only=True):
    """What a new job waits for."""

    #: A job or a group.
    on_id: UUID
    is_group: bool = False
    #: Any end will do; else only success, and another end cancels the job.
    on_any: bool = False
    #: Name of the input.
    ref: str | None = None


class LinkRefused(msgspec.Struct, frozen=True):
    """What the job is to wait for or to enter is not there, or takes no more members."""

    code: LinkProblem
    #: Of the job or group that it is about.
    id: UUID


class RingFound(Exception):
    """Raised to undo an enqueue: these jobs would wait for themselves, by way of the groups that they enter."""

    def __init__(self, groups: dict[UUID, UUID]) -> None:
        super().__init__("jobs would wait for their own groups")
        #: Of each of the jobs.
        self.groups = groups


class HasLinks(Protocol):
    """A new job, as far as its links go."""

    @property
    def id(self) -> UUID: ...
    @property
    def group_id(self) -> UUID | None: ...
    @property
    def depends_on(self) -> tuple[Dependency, ...]: ...


class NewLinks(msgspec.Struct, frozen=True):
    """The links of a job that this transaction has inserted."""

    id: UUID
    group_id: UUID | None
    depends_on: tuple[Dependency, ...]


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A job and what it depends on."""

    job_id: UUID
    on_id: UUID
    is_group: bool
    on_any: bool
    ref: str | None
    #: Has not ended, or nobody has noticed yet.
    open: bool
    #: None: it is gone, or was not read.
    status: str | None = None


class _Known(NamedTuple):
    """What new jobs wait for or enter, as it stands; nothing of it changes before the commit."""

    sealed: dict[UUID, bool]
    #: Of jobs and groups that have ended, how.
    ended: dict[UUID, str]
    #: Owners of jobs and groups that are there.
    owners: dict[UUID, str | None]
    gone: set[UUID]


def is_linked(job: HasLinks) -> bool:
    return bool(job.depends_on) or job.group_id is not None


class Links:
    """The links of the new jobs of one transaction."""

    def __init__(self, known: _Known) -> None:
        self._known = known

    def refusal(self, job: NewJob, in_batch: Collection[UUID]) -> LinkRefused | None:
        """Why the job cannot be enqueued; `in_batch`: jobs that are enqueued with it."""
        if job.group_id is not None:
            if job.group_id not in self._known.sealed or not self._may_know(job, job.group_id):
                return LinkRefused("unknown_group", job.group_id)
            if self._known.sealed[job.group_id]:
                return LinkRefused("group_sealed", job.group_id)
        for dependency in job.depends_on:
            on_id = dependency.on_id
            if on_id in in_batch or (on_id in self._known.owners and self._may_know(job, on_id)):
                continue
            if dependency.is_group:
                return LinkRefused("unknown_group", on_id)
            is_gone = on_id in self._known.gone and not job.own_links
            return LinkRefused("gone_dependency" if is_gone else "unknown_dependency", on_id)
        return None

    def _may_know(self, job: NewJob, on_id: UUID) -> bool:
        """What others own is not there for a job that may wait for its own kind only."""
        return not job.own_links or self._known.owners[on_id] == job.owner

    async def hold(self, session: Session, jobs: Sequence[HasLinks]) -> None:
        """To be called when they are inserted; raises RingFound."""
        waited_for = {dependency.on_id for job in jobs for dependency in job.depends_on}
        linked = [job for job in jobs if is_linked(job) or job.id in waited_for]
        if not linked:
            return
        edges = [(job.id, n, edge) for job in linked for n, edge in enumerate(job.depends_on, 1)]
        ended = [(on_id, self._known.ended[on_id]) for on_id in sorted(waited_for) if on_id in self._known.ended]
        await session.execute(
            HOLD_JOBS,
            [job.id for job in linked],
            [job.group_id for job in linked],
            [len(job.depends_on) or None for job in linked],
            [job.group_id is not None or job.id in waited_for for job in linked],
            [job_id for job_id, _, _ in edges],
            [edge.on_id for _, _, edge in edges],
            [edge.is_group for _, _, edge in edges],
            [edge.on_any for _, _, edge in edges],
            [edge.ref for _, _, edge in edges],
            [n for _, n, _ in edges],
            [on_id for on_id, _ in ended],
            [status for _, status in ended],
        )
        both = {job.id: job.group_id for job in linked if job.group_id is not None and job.depends_on}
        if both:
            rows = await session.fetch(FIND_GROUP_RINGS, list(both), list(both.values()))
            if rows:
                raise RingFound({row["job_id"]: both[row["job_id"]] for row in rows})


async def look_up(session: Session, jobs: Iterable[HasLinks], in_batch: Collection[UUID]) -> Links:
    """Lock what the jobs wait for or enter, but for jobs of the batch itself, which nobody else knows yet."""
    edges = [edge for job in jobs for edge in job.depends_on]
    group_ids = {job.group_id for job in jobs if job.group_id is not None}
    group_ids |= {edge.on_id for edge in edges if edge.is_group}
    job_ids = {edge.on_id for edge in edges if not edge.is_group} - set(in_batch)
    groups = await session.fetch(LOCK_GROUPS, sorted(group_ids)) if group_ids else []
    found = await session.fetch(LOCK_PREDECESSORS, sorted(job_ids)) if job_ids else []
    ended = {row["id"]: row["status"] for row in found if row["status"] in FINAL_STATUSES}
    ended |= {row["id"]: "error" if row["has_failures"] else "done" for row in groups if row["is_finished"]}
    owners = {row["id"]: row["owner"] for row in (*groups, *found)}
    missing = sorted(job_ids - owners.keys())
    gone = await gone_among(session, missing) if missing else set()
    return Links(_Known({row["id"]: row["sealed"] for row in groups}, ended, owners, gone))


async def hold_inserted(session: Session, jobs: Sequence[NewLinks]) -> None:
    """Let jobs that this transaction has inserted wait for others, and enter their groups, sealed or not."""
    links = await look_up(session, jobs, {job.id for job in jobs})
    await links.hold(session, jobs)


def pointed(jobs: Sequence[NewJob], twins: Mapping[UUID, UUID]) -> list[NewJob]:
    """The jobs with dependencies on other jobs of the batch turned to the jobs that answer for those."""
    return [
        msgspec.structs.replace(job, depends_on=_pointed(job.depends_on, twins))
        if any(edge.on_id in twins for edge in job.depends_on)
        else job
        for job in jobs
    ]


def _pointed(edges: Iterable[Dependency], twins: Mapping[UUID, UUID]) -> tuple[Dependency, ...]:
    """Each of them once: two jobs of a batch may have the same twin."""
    turned = [msgspec.structs.replace(edge, on_id=twins.get(edge.on_id, edge.on_id)) for edge in edges]
    return tuple({edge.on_id: edge for edge in turned}.values())


async def list_dependencies(session: Session, job_ids: Sequence[UUID], *, most: int) -> list[Edge]:
    """What each of the jobs depends on, in the order of its submit."""
    return [Edge(**dict(row)) for row in await session.fetch(LIST_DEPENDENCIES, list(job_ids), most)]


async def list_dependents(session: Session, ids: Sequence[UUID], *, most: int) -> list[Edge]:
    """The jobs that depend on each of the jobs or groups."""
    return [Edge(**dict(row)) for row in await session.fetch(LIST_DEPENDENTS, list(ids), most)]
