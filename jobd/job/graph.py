"""Which jobs wait for each other in a ring, so that none of them could ever run."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def ring_in(waits_for: Mapping[Node, Collection[Node]]) -> list[Node]:
    """A ring of nodes, each of which waits for the next and the last for the first; empty if there is none."""
    left = {node: [other for other in others if other in waits_for] for node, others in waits_for.items()}
    waiters: dict[Node, list[Node]] = {node: [] for node in left}
    for node, others in left.items():
        for other in others:
            waiters[other].append(node)
    open_number = {node: len(others) for node, others in left.items()}
    ready = [node for node, number in open_number.items() if not number]
    for node in ready:  # grows while it is walked through
        for waiter in waiters[node]:
            open_number[waiter] -= 1
            if not open_number[waiter]:
                ready.append(waiter)
    stuck = {node for node, number in open_number.items() if number}
    return _walk(left, stuck)


def _walk(left: Mapping[Node, Collection[Node]], stuck: Collection[Node]) -> list[Node]:
    """From one that is stuck always on to another, until one comes again."""
    way: dict[Node, None] = {}
    node = next(iter(stuck), None)
    while node is not None and node not in way:
        way[node] = None
        node = next(other for other in left[node] if other in stuck)
    nodes = list(way)
    return nodes[nodes.index(node) :] if node is not None else []
