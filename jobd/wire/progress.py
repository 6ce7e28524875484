"""The progress of a job out of the data of its last event, which may be anything."""

from __future__ import annotations

import math
from typing import Any


def share_in(data: Any) -> float | None:
    """From 0 to 1, by `progress` or by `percent`; None: the data has neither."""
    if not isinstance(data, dict):
        return None
    for name, whole in (("progress", 1), ("percent", 100)):
        value = data.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return min(1.0, max(0.0, value / whole))
    return None
