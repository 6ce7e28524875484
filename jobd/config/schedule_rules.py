"""Rules of `[schedules.NAME]` that a type cannot say."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from jobd.config.model import BrokenRule
from jobd.occurrences.timing import BadTiming, timing_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.config.model import Config, ScheduleConfig

#: Most labels: a job has 16, and two of them say which schedule made it, and for when.
MAX_LABELS = 14
_LABEL_NAME = re.compile(r"(?!jobd\.)[A-Za-z0-9_.-]{1,64}")


def broken_schedule_rules(config: Config) -> Iterator[BrokenRule]:
    for name, schedule in config.schedules.items():
        for setting, message in _broken(schedule, config):
            yield BrokenRule((("schedules", name, setting),), f"schedules.{name}.{setting} {message}")


def _broken(schedule: ScheduleConfig, config: Config) -> Iterator[tuple[str, str]]:
    try:
        timing_of(
            cron=schedule.cron,
            every=schedule.every,
            timezone=schedule.timezone,
            start=schedule.start,
            end=schedule.end,
        )
    except BadTiming as error:
        yield error.field, str(error)
    task = config.tasks.get(schedule.task)
    # The tasks of `tasks_from` are known after their modules were imported; then it is empty here.
    if task is None and not config.tasks_from:
        yield "task", f"must be one of {', '.join(config.tasks)} (got {schedule.task!r})"
    queue = schedule.queue or (task.queue if task is not None else None)
    if queue is not None and queue not in config.queues:
        yield "queue", f"must be one of {', '.join(config.queues)} (got {queue!r})"
    elif queue is not None and task is not None and task.run == "external" and config.queues[queue].slots:
        yield "queue", f"must have slots = 0, since task {schedule.task} is external (got {queue!r})"
    if not is_json(schedule.payload):
        yield "payload", "must be what JSON can hold: no dates, no nan or inf, no integers beyond 64 bits"
    if len(schedule.labels) > MAX_LABELS:
        yield "labels", f"must be at most {MAX_LABELS} (got {len(schedule.labels)})"
    for label, value in schedule.labels.items():
        if not _LABEL_NAME.fullmatch(label) or len(value) > 512 or "\0" in value:
            names = "1 to 64 of A-Z a-z 0-9 _ . - that do not begin with jobd."
            yield "labels", f"must have names of {names}, and values of at most 512 characters (got {label[:64]!r})"


def is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and "\0" not in key and is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_json, value))
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, int):  # a boolean, too
        return -(2**63) <= value < 2**64
    return isinstance(value, float) and math.isfinite(value)
