"""What the jobs of `jobd bench tasks` do, which is nothing: what is measured is the way there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobd.tasks.runner import Context


async def at_once(payload: dict[str, Any], ctx: Context | None) -> dict[str, Any]:
    return payload


def in_thread(payload: dict[str, Any], ctx: Context | None) -> dict[str, Any]:
    return payload
