"""What a schedule is: when it is due, the job that each occurrence makes, and its policies. PURE."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from jobd.occurrences.timing import Timing, timing_of
from jobd.occurrences.walk import jitter_of

Overlap: TypeAlias = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]
CatchUp: TypeAlias = Literal["one", "none", "all"]


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Kept as JSON in the table; its fields are those of the configuration and of the API."""

    cron: str = ""
    every: str = ""
    timezone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    jitter_s: float = 0.0
    task: str
    payload: dict[str, Any] = {}
    queue: str | None = None
    priority: int = 0
    labels: dict[str, str] = {}
    timeout_s: float | None = None
    max_attempts: int | None = None
    overlap: Overlap = "skip"
    catch_up: CatchUp = "one"
    catch_up_window_s: int = 86_400
    pause_after_failures: int = 0

    def timing(self) -> Timing:
        """Raises BadTiming. The zone of an interval changes nothing, so it is left out."""
        timing = timing_of(
            cron=self.cron, every=self.every, timezone=self.timezone, start=whole(self.start), end=whole(self.end)
        )
        return timing if timing.cron is not None else msgspec.structs.replace(timing, timezone="UTC")

    def due_at(self, name: str, occurrence: datetime) -> datetime:
        """When the occurrence becomes a job."""
        return occurrence + jitter_of(name, occurrence, self.jitter_s) if self.jitter_s else occurrence


def definition_of(fields: object) -> Definition:
    """The definition that a Struct with the same fields describes."""
    return Definition(**{name: getattr(fields, name) for name in Definition.__struct_fields__})


def whole(at: datetime | None) -> datetime | None:
    """Occurrences are whole seconds."""
    return None if at is None else at - timedelta(microseconds=at.microsecond)
