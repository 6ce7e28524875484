"""The state diagram and the transition table of a job as Markdown, made from `TRANSITIONS`.

python -m jobd.job.diagram > docs/job-states.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from jobd.job.machine import TRANSITIONS
from jobd.job.status import FINAL_STATUSES, JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from enum import Enum

_PAGE = """\
# The states of a job

Made by `python -m jobd.job.diagram` from the table in `jobd/job/machine.py`; a test fails when the page is out of date.

```mermaid
{diagram}
```

| from | event | guard | to |
|---|---|---|---|
{table}

Whatever the table does not list changes nothing. A guard that asks for attempts also asks that no cancel was requested.
Three events leave a running job `running`: a heartbeat moves the expiry of its lease, a cancel is noted for its holder,
a claim takes over its expired lease and closes the attempt behind it.
"""


class Step(Protocol):
    """A row of a table of transitions, of jobs or of tickets."""

    @property
    def source(self) -> Enum | None: ...
    @property
    def event(self) -> str: ...
    @property
    def guard(self) -> str: ...
    @property
    def target(self) -> Enum: ...


def render() -> str:
    ends = [f"    {status.value} --> [*]" for status in JobStatus if status in FINAL_STATUSES]
    return _PAGE.format(diagram="\n".join([*arrows(TRANSITIONS), *ends]), table="\n".join(rows(TRANSITIONS)))


def arrows(transitions: Iterable[Step]) -> Iterator[str]:
    """One arrow for each pair of states, labelled with all its events."""
    labels: dict[tuple[str, str], list[str]] = {}
    for transition in transitions:
        source = transition.source.value if transition.source else "[*]"
        events = labels.setdefault((source, transition.target.value), [])
        if transition.event not in events:
            events.append(transition.event)
    yield "stateDiagram-v2"
    for (source, target), events in labels.items():
        yield f"    {source} --> {target}: {', '.join(events)}"


def rows(transitions: Iterable[Step]) -> Iterator[str]:
    for transition in transitions:
        source = f"`{transition.source.value}`" if transition.source else "(new)"
        yield f"| {source} | {transition.event} | {transition.guard} | `{transition.target.value}` |"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 - printing is all that running this module is for
