"""The state diagram and the transition table of a ticket as Markdown, made from `TRANSITIONS`.

python -m jobd.tickets.diagram > docs/ticket-states.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.tickets.machine import TRANSITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = """\
# The states of a ticket

Made by `python -m jobd.tickets.diagram` from the table in `jobd/tickets/machine.py`; a test fails when the page is out
of date.

```mermaid
{diagram}
```

| from | event | guard | to |
|---|---|---|---|
{table}

Whatever the table does not list changes nothing. People approve, reject, unblock, reopen and sign off; the pollers do
the rest: readiness announces and returns, the scheduler schedules, the runner executes, the gate judges.
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


def _table() -> Iterator[str]:
    for transition in TRANSITIONS:
        source = f"`{transition.source.value}`" if transition.source else "(new)"
        yield f"| {source} | {transition.event} | {transition.guard} | `{transition.target.value}` |"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 - printing is all that running this module is for
