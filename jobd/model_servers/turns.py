"""Whose turn it is among the models of a swap group, decided from what is known: no clock, no I/O.

Of a group one server runs at a time. For a while after it was loaded, its spell, jobs of its model go before jobs of
the other models, which saves swaps: in the line of a queue they are taken first (`behind_s`), and in the slots they are
let in as they come. After that the order of the line decides: a job is let in only if no job of another model came
before it, and the server ends with its last job. The next to start is the server of the job that has waited longest.

The spells of all other models together are `max_wait_s`: that long a job may be passed over, swaps not counted. A
server that is in no group is alone in its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds before a server that has failed once is started again; doubled by each further failure in a row.
FIRST_DELAY_S = 1.0
#: Longest time in seconds before a failed server is started again.
LONGEST_DELAY_S = 60.0
#: Seconds that a server has to be ready for its earlier failures to be forgotten.
STEADY_S = 60.0


#: Most seconds by which jobs of other models are put behind in the line of a queue: less than a minute, which is what a
#: point of priority is worth, so that the loaded model never outweighs one.
MOST_BEHIND_S = 59.0


class ModelWait(NamedTuple):
    """A job that waits for a server."""

    model: str
    #: By time.monotonic().
    asked_at: float


class Turn(NamedTuple):
    """What follows for the server that is ready."""

    #: Whether each of the waiting jobs is let in, in their order.
    lets_in: list[bool]
    #: Whether the server has to make room for another.
    is_over: bool
    #: When to decide again if nothing else happens, by time.monotonic().
    again_at: float


def spell_s(models: int, max_wait_s: float) -> float:
    """Seconds for which a loaded model of a group of so many goes first."""
    return max_wait_s / max(1, models - 1)


def behind_s(max_wait_s: float) -> float:
    """Seconds by which jobs of other models are put behind in line during a spell."""
    return min(max_wait_s, MOST_BEHIND_S)


def decide_turn(model: str, waits: Sequence[ModelWait], *, uses: int, first_until: float, now: float) -> Turn:
    """`uses`: jobs that were let in to the ready server of this model and have not ended. `first_until`: the end of its
    spell, by time.monotonic().
    """
    first_other = min((wait.asked_at for wait in waits if wait.model != model), default=math.inf)
    is_first = now < first_until
    lets_in = [wait.model == model and (is_first or wait.asked_at <= first_other) for wait in waits]
    is_over = first_other < math.inf and not uses and not any(lets_in)
    return Turn(lets_in, is_over, first_until if is_first and first_other < math.inf else math.inf)


def next_model(waits: Sequence[ModelWait]) -> str | None:
    """The model whose server starts next; None: nobody waits."""
    return min(waits, key=lambda wait: wait.asked_at).model if waits else None


def restart_delay_s(failures: int) -> float:
    """Seconds until the next start after so many failures in a row."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 16))
