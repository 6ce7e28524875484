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

Whatever the table does not list changes nothing. A guard that asks for attempts or interruptions also asks that no
cancel was requested. Three events leave a running job `running`: a heartbeat moves the expiry of its lease, a cancel
is noted for its holder, a claim takes over its expired lease and closes the attempt behind it.

## Attempts and interruptions

A job has two bounds. `max_attempts` counts what the job itself did: attempts that failed, ran into their time limit,
or whose worker (an HTTP worker, `jobd worker`, a raw Redis worker) fell silent. `max_interruptions` counts what was
done to it: the node whose slots ran it lost power, was killed, ran out of memory or stood still for longer than a
lease. Such an attempt ends as `interrupted` and is not charged, so power cuts alone never use up the attempts of a
job. A job may be interrupted `max_interruptions` times (`[retry]`, or of its task) and is run again each time, after
a backoff that grows with the number of interruptions; the next interruption makes it a dead letter with the reason
and error code `interruptions_exhausted`: it may be the job that takes the node down. With 0, a job that was
interrupted is not run again.

What tells the two apart is who held the lease. A node renews the leases of all its slots together, by a thread of its
own if a handler blocks the event loop, and ends a handler that hangs by its time limit, which is a failure. So the
lease of a slot expires only if the whole node stopped. The node that starts again on the same data directory does not
wait for that: it knows the names under which its earlier runs held leases. Numbers of attempts go on in any case, and
the token of an interrupted attempt is as void as any other: what a node that stood still has yet to report is
refused.
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
