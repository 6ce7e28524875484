"""Batches as the statements want them: each resource once, in one order for everybody, so that no two can deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

Item = TypeVar("Item")


def in_turn(items: Sequence[Item], resource: Callable[[Item], UUID]) -> dict[UUID, int]:
    """Each resource with the position of the first item that names it, in the order of the ids."""
    seen: dict[UUID, int] = {}
    for position, item in enumerate(items):
        seen.setdefault(resource(item), position)
    return dict(sorted(seen.items()))
