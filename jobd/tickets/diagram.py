"""The state diagram and the transition table of a ticket as Markdown, made from `TRANSITIONS`.

python -m jobd.tickets.diagram > docs/ticket-states.md
"""

from __future__ import annotations

from jobd.job.diagram import arrows, rows
from jobd.tickets.machine import TRANSITIONS

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
the rest: readiness marks ready and returns, the scheduler schedules, the runner executes, the gate judges.
"""


def render() -> str:
    return _PAGE.format(diagram="\n".join(arrows(TRANSITIONS)), table="\n".join(rows(TRANSITIONS)))


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 - printing is all that running this module is for
