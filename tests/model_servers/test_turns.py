"""Whose turn it is among the models of a group, as tables and as a whole day of a busy board."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import pytest

from jobd.model_servers.turns import ModelWait, behind_s, decide_turn, next_model, restart_delay_s, spell_s

#: The spell of model `a` ends at 130.
FIRST_UNTIL = 130.0
A, B = "a", "b"


@pytest.mark.parametrize(
    ("waits", "uses", "now", "lets_in", "is_over", "again_at"),
    [
        pytest.param([], 0, 500, [], False, math.inf, id="nobody waits"),
        pytest.param([(A, 500)], 0, 500, [True], False, math.inf, id="its own jobs are let in"),
        pytest.param([(B, 500)], 1, 500, [False], False, math.inf, id="another waits for the last job"),
        pytest.param([(B, 500)], 0, 500, [False], True, math.inf, id="no job is left: it makes room"),
        pytest.param([(B, 110)], 0, 111, [False], True, 130, id="no job is left, in its spell"),
        pytest.param([(B, 110), (A, 115)], 1, 129, [False, True], False, 130, id="its own go first in its spell"),
        pytest.param([(B, 110), (A, 115)], 1, 130, [False, False], False, math.inf, id="and then no longer"),
        pytest.param([(B, 110), (A, 115)], 0, 130, [False, False], True, math.inf, id="then it makes room"),
        pytest.param([(A, 499), (B, 500)], 0, 540, [True, False], False, math.inf, id="one that came before still may"),
    ],
)
def test_turn(
    waits: list[tuple[str, float]], uses: int, now: float, lets_in: list[bool], is_over: bool, again_at: float
) -> None:
    turn = decide_turn(A, [ModelWait(*wait) for wait in waits], uses=uses, first_until=FIRST_UNTIL, now=now)

    assert turn == (lets_in, is_over, again_at)


def test_the_longest_waiting_job_says_who_is_next() -> None:
    assert next_model([]) is None
    assert next_model([ModelWait("b", 3), ModelWait("c", 2), ModelWait("a", 4)]) == "c"


def test_delays_grow_up_to_a_minute() -> None:
    assert [restart_delay_s(number) for number in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]


# -- a whole line of jobs ----------------------------------------------------------------------------------------------

MAX_WAIT_S = 30.0
#: Seconds that a swap takes, and that a job runs.
SWAP_S, RUN_S = 20.0, 0.5


class Ran(NamedTuple):
    swaps: int
    total_s: float
    #: Longest time in seconds that a job began later than in the order of the line. Swaps not counted.
    longest_s: float


def run_line(line: list[tuple[str, float]], *, max_wait_s: float) -> Ran:
    """One slot takes jobs (model and place in line) as the statement orders them; 0: first come, first served."""
    now, idle_s, swaps, loaded, first_until = 0.0, 0.0, 0, "", 0.0
    models = len({model for model, _ in line})
    left = sorted(line, key=lambda job: job[1])
    turn_s = {job: number * RUN_S for number, job in enumerate(left)}
    longest_s = 0.0
    while left:
        behind = behind_s(max_wait_s) if now < first_until else 0.0
        job = min(left, key=lambda job: job[1] + (behind if job[0] != loaded else 0.0))
        if job[0] != loaded:
            swaps, loaded = swaps + 1, job[0]
            now, idle_s = now + SWAP_S, idle_s + SWAP_S
            first_until = now + spell_s(models, max_wait_s)
        longest_s = max(longest_s, now - idle_s - turn_s[job])
        left.remove(job)
        now += RUN_S
    return Ran(swaps, now, longest_s)


@pytest.mark.parametrize("seed", range(5))
def test_three_models_and_300_jobs_need_a_tenth_of_the_swaps(seed: int) -> None:
    dice = random.Random(seed)
    line = [(dice.choice("abc"), number / 1000) for number in range(300)]

    in_order, by_spells = run_line(line, max_wait_s=0), run_line(line, max_wait_s=MAX_WAIT_S)

    assert by_spells.swaps <= in_order.swaps / 10
    assert by_spells.total_s <= in_order.total_s / 8
    assert by_spells.longest_s <= MAX_WAIT_S + 2 * RUN_S


def test_a_point_of_priority_outweighs_the_loaded_model() -> None:
    assert behind_s(30) == 30
    assert behind_s(3600) < 60
    assert (spell_s(2, 30), spell_s(4, 30)) == (30, 10)
