"""What a submit says about dependencies and groups, turned into what the job waits for. The names of a batch's items
become ids here, in whatever order they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from jobd.job.graph import ring_in
from jobd.lifecycle.depend import Dependency
from jobd.store.ids import new_id
from jobd.wire.gateway import MAX_BATCH_DEPENDS, DependsOn
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from jobd.lifecycle.depend import LinkRefused
    from jobd.lifecycle.enqueue import NewJob
    from jobd.wire.gateway import Submit

#: What a refused link is about, in words.
_REFUSALS = {
    "unknown_dependency": "depends_on names job {id}, which is not there",
    "gone_dependency": "depends_on names job {id}, which has finished and was deleted after its retention",
    "unknown_group": "there is no group {id}",
    "group_sealed": "group {id} is sealed and takes no more jobs",
    "dependency_cycle": "the job would enter group {id} and wait, perhaps through others, for the end of that group",
}
#: Names of a ring that are shown.
_SHOWN = 10


class Refs:
    """The items of a batch by their names. A name may be used before its item comes."""

    def __init__(self) -> None:
        self._ids: dict[str, UUID] = {}
        #: Names of items that have come, by id.
        self._names: dict[UUID, str] = {}
        self._edges = 0

    def define(self, name: str, job_id: UUID) -> UUID:
        """The id of the item of this name: the one that is given, unless it was named before."""
        job_id = self._ids.setdefault(name, job_id)
        if job_id in self._names:
            raise ApiError("invalid", f"two items have the ref {name} - at `$.ref`")
        self._names[job_id] = name
        return job_id

    def id_of(self, name: str) -> UUID:
        return self._ids.setdefault(name, new_id())

    def count(self, edges: int) -> None:
        self._edges += edges
        if self._edges > MAX_BATCH_DEPENDS:
            raise ApiError(
                "too_many_dependencies",
                f"the jobs of the batch have more than {MAX_BATCH_DEPENDS} dependencies; put jobs into a group and"
                " depend on that",
            )

    def check(self, jobs: Sequence[NewJob]) -> None:
        """Refuse names without an item, and items that wait for each other in a ring; raises ApiError."""
        unknown = {job_id: name for name, job_id in self._ids.items() if job_id not in self._names}
        for index, job in enumerate(jobs):
            for edge in job.depends_on:
                if edge.on_id in unknown:
                    raise ApiError(
                        "unknown_dependency",
                        f"item {index}: no item of the batch has the ref {unknown[edge.on_id]}; nothing was accepted",
                        index=index,
                    )
        ring = ring_in({job.id: [edge.on_id for edge in job.depends_on] for job in jobs if job.depends_on})
        if ring:
            names = [self._names[job_id] for job_id in ring]
            shown = " -> ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else []), names[0]])
            raise ApiError("dependency_cycle", f"items of the batch wait for each other: {shown}; nothing was accepted")


def dependencies_in(submit: Submit, refs: Refs | None) -> tuple[Dependency, ...]:
    """What the job waits for; `refs`: of the batch that it came in. Raises ApiError."""
    found = [_dependency(asked, refs, n) for n, asked in enumerate(submit.depends_on)]
    ids: set[UUID] = set()
    names: set[str] = set()
    for n, dependency in enumerate(found):
        name = dependency.ref or str(dependency.on_id)
        if dependency.on_id in ids or name in names:
            raise ApiError("invalid", f"depends_on names {name} twice - at `$.depends_on[{n}]`")
        ids.add(dependency.on_id)
        names.add(name)
    if submit.group is not UNSET and submit.group in ids:
        raise ApiError("dependency_cycle", _REFUSALS["dependency_cycle"].format(id=submit.group))
    if refs is not None:
        refs.count(len(found))
    return tuple(found)


def _dependency(asked: UUID | DependsOn, refs: Refs | None, n: int) -> Dependency:
    if not isinstance(asked, DependsOn):
        return Dependency(on_id=asked)
    on_any = asked.on == "any"
    name = None if asked.ref is UNSET else asked.ref
    if asked.job is not UNSET and asked.group is not UNSET:
        raise ApiError("invalid", f"a dependency is a job or a group, not both - at `$.depends_on[{n}]`")
    if asked.group is not UNSET:
        return Dependency(on_id=asked.group, is_group=True, on_any=on_any, ref=name)
    if asked.job is not UNSET:
        return Dependency(on_id=asked.job, on_any=on_any, ref=name)
    if name is None:
        raise ApiError("invalid", f"a dependency needs job, ref or group - at `$.depends_on[{n}]`")
    if refs is None:
        raise ApiError(
            "invalid", f"a ref alone names an item of the same batch; send job or group too - at `$.depends_on[{n}]`"
        )
    return Dependency(on_id=refs.id_of(name), on_any=on_any, ref=name)


def link_problem(refused: LinkRefused, index: int | None = None) -> ApiError:
    detail = _REFUSALS[refused.code].format(id=refused.id)
    if index is not None:
        detail = f"item {index}: {detail}; nothing was accepted"
    return ApiError(refused.code, detail, index=index)
