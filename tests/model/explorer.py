"""Breadth-first search through every state that a protocol can reach, with the shortest way to a bad one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

S = TypeVar("S")


class Step(Generic[S]):
    """One atomic step: what happens, and the state after it."""

    __slots__ = ("state", "text")

    def __init__(self, text: str, state: S) -> None:
        self.text = text
        self.state = state


class Found(NamedTuple):
    """A broken invariant, and the shortest list of steps that leads to it."""

    broken: str
    steps: list[str]

    def __str__(self) -> str:
        lines = [f"{number:3}. {text}" for number, text in enumerate(self.steps, 1)]
        return "\n".join([*lines, f"     => {self.broken}"])


class Graph(Generic[S]):
    """The states reached so far; `found` is the first bad one, if any. A state is known by its number."""

    def __init__(self) -> None:
        self.numbers: dict[S, int] = {}
        self.states: list[S] = []
        #: For each state the one that it was first reached from, and by which step.
        self.reached_by: list[tuple[int, str]] = []
        #: For each state the steps that lead to it: the state before, and the step's text. Only if asked for.
        self.before: list[list[tuple[int, str]]] = []
        #: The texts of all steps that were taken.
        self.texts: set[str] = set()
        self.found: Found | None = None

    def __len__(self) -> int:
        return len(self.states)

    def way_to(self, number: int) -> list[str]:
        steps: list[str] = []
        while number:
            number, text = self.reached_by[number]
            steps.append(text)
        return steps[::-1]


class TooManyStates(Exception):
    """The bounds of the model are too wide for an exhaustive search."""


def explore(
    start: S,
    steps: Callable[[S], Iterable[Step[S]]],
    broken: Callable[[S], str | None],
    *,
    most: int,
    key: Callable[[S], S] = lambda state: state,
    keep_edges: bool = False,
) -> Graph[S]:
    """All states that can be reached, until one breaks an invariant. Raises TooManyStates after `most` of them.

    Of states with the same `key` only the first is followed.
    """
    graph: Graph[S] = Graph()
    waiting: deque[int] = deque()

    def meet(state: S, before: int, text: str) -> bool:
        number = graph.numbers.get(known := key(state))
        is_new = number is None
        if number is None:
            number = graph.numbers[known] = len(graph.states)
            graph.states.append(state)
            graph.reached_by.append((before, text))
            graph.before.append([])
            waiting.append(number)
        if keep_edges and text:
            graph.before[number].append((before, text))
        return is_new

    meet(start, 0, "")
    while waiting:
        number = waiting.popleft()
        for step in steps(graph.states[number]):
            graph.texts.add(step.text)
            if not meet(step.state, number, step.text):
                continue
            if (why := broken(step.state)) is not None:
                graph.found = Found(why, graph.way_to(len(graph) - 1))
                return graph
            if len(graph) > most:
                raise TooManyStates(f"more than {most} states")
    return graph


def stuck(
    graph: Graph[S], is_end: Callable[[S], bool], counts: Callable[[str], bool], matters: Callable[[S], bool]
) -> Found | None:
    """The nearest state that matters from which no list of steps that count leads to an end; needs the edges."""
    can_end = [is_end(state) for state in graph.states]
    waiting = [number for number, ends in enumerate(can_end) if ends]
    while waiting:
        for before, text in graph.before[waiting.pop()]:
            if not can_end[before] and counts(text):
                can_end[before] = True
                waiting.append(before)
    for number, ends in enumerate(can_end):
        if not ends and matters(graph.states[number]):
            return Found(f"from here the job is never finished: {graph.states[number]}", graph.way_to(number))
    return None
