"""Memory that is promised to jobs: what is free, who may start, and that nobody is promised the same twice."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from jobd.board.ledger import MB, MemoryLedger, MemoryOffer, MemoryShortage
from jobd.board.memory import MemoryFigures
from jobd.config.model import Board, Config, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENS = [UUID(int=n) for n in range(9)]
NEEDS = {"large": 3000, "small": 500, "huge": 9000}


class Machine:
    """A board with 8 GB, of which a part is available."""

    def __init__(self, available_mb: int | None = 6000, floor_mb: int = 1000, **needs: int) -> None:
        self.available_mb = available_mb
        #: MB of the idle processes of each task.
        self.warm: dict[str, Sequence[int]] = {}
        tasks = {name: Task(run="mock", needs_memory_mb=need) for name, need in (needs or NEEDS).items()}
        config = Config(tasks={"plain": Task(run="mock"), **tasks}, board=Board(memory_floor_mb=floor_mb))
        self.freed = 0
        self.ledger = MemoryLedger(lambda: config, self.probe, lambda task: [mb * MB for mb in self.warm.get(task, ())])
        self.ledger.on_freed = self.count

    def probe(self) -> MemoryFigures | None:
        return None if self.available_mb is None else MemoryFigures(8000 * MB, self.available_mb * MB)

    def count(self) -> None:
        self.freed += 1

    @property
    def free_mb(self) -> int | None:
        free = self.ledger.free_bytes()
        return None if free is None else free // MB


def test_free_is_what_is_available_without_floor_and_promises() -> None:
    machine = Machine()
    before = machine.free_mb

    machine.ledger.hold([(TOKENS[0], "large")])

    assert (before, machine.free_mb, machine.ledger.reserved_bytes) == (5000, 2000, 3000 * MB)


@pytest.mark.parametrize(
    ("available_mb", "startable", "impossible"),
    [
        (6000, ["large", "small"], ["huge"]),
        (4000, ["large", "small"], ["huge"]),
        (3999, ["small"], ["huge"]),
        (1499, [], ["huge"]),
        (500, [], ["huge"]),
        (None, [], []),  # without a probe none starts, and nobody knows what never will
    ],
)
def test_tasks_that_fit_now_are_offered(available_mb: int | None, startable: list[str], impossible: list[str]) -> None:
    offer = Machine(available_mb).ledger.offer()

    assert (offer.tasks, offer.startable, offer.impossible) == (list(NEEDS), startable, impossible)


def test_two_offers_never_promise_the_same_memory() -> None:
    machine = Machine()

    first, second = machine.ledger.offer(), machine.ledger.offer()

    assert first == MemoryOffer(list(NEEDS), ["large", "small"], ["huge"], 3000 * MB)
    assert second.startable == ["small"]
    machine.ledger.settle(first, [(TOKENS[0], "small")])
    machine.ledger.settle(second)
    assert machine.free_mb == 4500


def test_take_that_brought_nothing_gives_the_promise_back() -> None:
    machine = Machine()

    machine.ledger.settle(machine.ledger.offer())

    assert machine.free_mb == 5000


def test_end_of_a_job_frees_its_memory_once() -> None:
    machine = Machine()
    machine.ledger.hold([(TOKENS[0], "large"), (TOKENS[1], "plain")])

    for _ in range(2):
        machine.ledger.let_go([TOKENS[0], TOKENS[1], TOKENS[2]])

    assert (machine.free_mb, machine.freed) == (5000, 1)


def test_memory_that_a_process_has_already_is_not_counted_twice() -> None:
    machine = Machine(available_mb=6000)
    machine.ledger.hold([(TOKENS[0], "large")])

    machine.available_mb = 4000  # it has taken two thirds
    machine.ledger.measured({TOKENS[0]: 2000 * MB, TOKENS[5]: 7})

    assert machine.free_mb == 2000
    machine.ledger.measured({TOKENS[0]: 3500 * MB})  # more than it said
    assert machine.ledger.reserved_bytes == 0


def test_warm_process_takes_its_memory_off_the_need() -> None:
    machine = Machine(available_mb=3000)
    machine.warm["large"] = [2800]

    shortage, need = machine.ledger.shortage("large"), machine.ledger.need_of("large")
    machine.ledger.hold([(TOKENS[0], "large")])

    assert (shortage, need) == (None, 200 * MB)
    assert machine.ledger.reserved_bytes == 200 * MB


def test_second_job_does_not_count_on_the_process_of_the_first() -> None:
    machine = Machine(available_mb=8000)
    machine.warm["large"] = [2800, 2500]

    first = machine.ledger.need_of("large")
    machine.ledger.hold([(TOKENS[0], "large")])  # it has not begun: its process is among the idle ones
    second = machine.ledger.need_of("large")
    machine.ledger.hold([(TOKENS[1], "large")])
    third = machine.ledger.need_of("large")

    assert [need // MB for need in (first, second, third)] == [200, 500, 3000]
    assert machine.ledger.reserved_bytes == 700 * MB
    machine.warm["large"] = [2500]
    machine.ledger.measured({TOKENS[0]: 2900 * MB})  # the first runs in its process
    assert machine.ledger.need_of("large") == 3000 * MB


@pytest.mark.parametrize(
    ("available_mb", "task", "shortage"),
    [
        (6000, "plain", None),
        (6000, "unheard_of", None),
        (6000, "large", None),
        (3000, "large", (3000, 2000)),
        (800, "small", (500, 0)),
        (None, "small", (500, None)),
        (None, "plain", None),
    ],
)
def test_shortage_says_what_is_needed_and_what_is_free(
    available_mb: int | None, task: str, shortage: tuple[int, int | None] | None
) -> None:
    machine = Machine(available_mb)
    wanted = None
    if shortage is not None:
        wanted = MemoryShortage(shortage[0] * MB, None if shortage[1] is None else shortage[1] * MB)

    assert machine.ledger.shortage(task) == wanted
    assert machine.ledger.admit(TOKENS[0], task) == (shortage is None)


def test_job_that_was_admitted_is_so_again_though_nothing_is_left() -> None:
    machine = Machine(available_mb=4000)

    assert machine.ledger.admit(TOKENS[0], "large")
    assert machine.ledger.admit(TOKENS[0], "large")
    assert not machine.ledger.admit(TOKENS[1], "large")


@pytest.mark.parametrize(
    ("available_mb", "task", "is_too_large"),
    [(100, "large", False), (6000, "huge", True), (None, "huge", False), (6000, "plain", False)],
)
def test_only_what_the_whole_board_cannot_hold_is_too_large(
    available_mb: int | None, task: str, is_too_large: bool
) -> None:
    assert (Machine(available_mb).ledger.too_large(task) is not None) == is_too_large


def test_ledger_without_needs_is_not_used() -> None:
    config = Config()
    ledger = MemoryLedger(lambda: config, lambda: None)

    assert (ledger.is_used, ledger.queues) == (False, set())
    assert Machine().ledger.queues == {"default"}
