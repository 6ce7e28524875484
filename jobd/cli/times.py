"""Times on the command line: a moment, how long ago, how long."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

#: The units of `2h` and its like.
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_time(ctx: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    try:
        if ago:
            return datetime.now(timezone.utc) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        import click

        raise click.BadParameter(
            f"{text[:64]!a} is no time; write 2026-11-01, 2026-11-01T08:00 or how long ago: 90s, 15m, 2h, 3d"
        ) from None


def lasting(seconds: float) -> str:
    """A number of seconds in the largest unit of which there are at least two."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
