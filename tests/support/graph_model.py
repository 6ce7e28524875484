"""Dependencies and groups as a pure model: what must stand in the tables once every end has been worked off."""

from __future__ import annotations

from dataclasses import dataclass, field

FINAL = frozenset({"done", "error", "canceled"})


@dataclass
class ModelJob:
    #: Names of jobs and groups, and whether any end of each will do.
    depends_on: dict[str, bool] = field(default_factory=dict)
    group: str | None = None
    #: held, ready, or how it ended
    status: str = "ready"


@dataclass
class ModelGroup:
    sealed: bool = False
    #: Once it is finished, how: what those saw who waited for it.
    status: str | None = None


class GraphModel:
    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        self.groups: dict[str, ModelGroup] = {}

    # -- what happens ------------------------------------------------------------------------------------------

    def add_job(self, name: str, depends_on: dict[str, bool], group: str | None) -> bool:
        """False: it is refused."""
        if group is not None and (self.groups[group].sealed or self._reaches(list(depends_on), group)):
            return False
        self.jobs[name] = ModelJob(depends_on, group, "held" if depends_on else "ready")
        self._settle()
        return True

    def add_group(self, name: str) -> None:
        self.groups[name] = ModelGroup()

    def seal(self, name: str) -> None:
        self.groups[name].sealed = True
        self._settle()

    def end(self, name: str, status: str) -> bool:
        """False: it cannot end so."""
        if self.jobs[name].status in FINAL or (status != "canceled" and self.jobs[name].status != "ready"):
            return False
        self.jobs[name].status = status
        self._settle()
        return True

    # -- what follows ------------------------------------------------------------------------------------------

    def members(self, group: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.group == group]

    def counters(self, group: str) -> tuple[int, int, int, int]:
        statuses = [job.status for job in self.members(group)]
        return len(statuses), statuses.count("done"), statuses.count("error"), statuses.count("canceled")

    def end_of(self, name: str) -> str | None:
        """How a job or group ended; None: it has not."""
        if name in self.groups:
            return self.groups[name].status
        return self.jobs[name].status if self.jobs[name].status in FINAL else None

    def _settle(self) -> None:
        has_moved = True
        while has_moved:
            has_moved = any([*map(self._settle_job, self.jobs.values()), *map(self._settle_group, self.groups)])

    def _settle_job(self, job: ModelJob) -> bool:
        if job.status != "held":
            return False
        ends = {name: self.end_of(name) for name in job.depends_on}
        if any(ends[name] not in (None, "done") and not on_any for name, on_any in job.depends_on.items()):
            job.status = "canceled"
        elif None not in ends.values():
            job.status = "ready"
        return job.status != "held"

    def _settle_group(self, name: str) -> bool:
        group = self.groups[name]
        statuses = {job.status for job in self.members(name)}
        if group.status is not None or not group.sealed or not statuses <= FINAL:
            return False
        group.status = "error" if statuses & {"error", "canceled"} else "done"
        return True

    def _reaches(self, names: list[str], group: str) -> bool:
        """Whether the group is waited for by way of these."""
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name == group:
                return True
            if name in seen or self.end_of(name) is not None:
                continue
            seen.add(name)
            if name in self.groups:
                names += [other for other, job in self.jobs.items() if job.group == name and job.status == "held"]
            else:
                names += self.jobs[name].depends_on
        return False
