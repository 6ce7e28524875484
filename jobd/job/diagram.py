"""The state diagram and the transition table of a job as Markdown, made from `TRANSITIONS`.

python -m jobd.job.diagram > docs/job-states.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.job.machine import TRANSITIONS
from jobd.job.status import FINAL_STATUSES, JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def render() -> str:
    return _PAGE.format(diagram="\n".join(_diagram()), table="\n".join(_table()))


def _diagram() -> Iterator[str]:
    """One arrow for each pair of states, labelled with all its events."""
    labels: dict[tuple[str, str], list[str]] = {}
    for transition in TRANSITIONS:
        source = transition.source.value if transition.source else "[*]"
        events = labels.setdefault((source, transition.target.value), [])
        if transition.event not in events:
            events.append(transition.event)
    yield "stateDiagram-v2"
    for (source, target), events in labels.items():
        yield f"    {source} --> {target}: {', '.join(events)}"
    for status in JobStatus:
        if status in FINAL_STATUSES:
            yield f"    {status.value} --> [*]"


def _table() -> Iterator[str]:
    for transition in TRANSITIONS:
        source = f"`{transition.source.value}`" if transition.source else "(new)"
        yield f"| {source} | {transition.event} | {transition.guard} | `{transition.target.value}` |"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 - printing is all that running this module is for
