"""Batches as the statements want them: each item once, in one order for everybody, so that no two can deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

Item = TypeVar("Item")
#: The id of a resource first, then what else must be current for the statement to touch it: an attempt, a lease token.
Proof = TypeVar("Proof", bound="tuple[UUID, object] | tuple[UUID, object, object]")


def sorted_once(items: Sequence[Item], proof: Callable[[Item], Proof]) -> dict[Proof, int]:
    """What each item shows, once, with the position of the first that shows it, in the order of the resources' ids.

    A proof is the id of the resource and what else has to be current. Items that show different things for one resource
    all go: at most one of them is right, and which one only the statement knows.
    """
    seen: dict[Proof, int] = {}
    for position, item in enumerate(items):
        seen.setdefault(proof(item), position)
    return dict(sorted(seen.items(), key=lambda shown: shown[0][0].int))
