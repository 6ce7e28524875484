"""Admit: jobs with a limit key stand in line only while their key has room, and in some queues take turns by key.

Why a job may stand in line is decided here and nowhere else, by one admission at a time on all nodes; whoever ends an
attempt or takes a job out of the line frees its place in the same commit and leaves a nudge, and a take of jobs whose
starts count leaves one row (0026_takes_of_limited_jobs.sql). So a take of admitted jobs costs what any take does, and
the count of places is never too small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from jobd.store.postgres import Database
    from jobd.store.session import Session

LOCK_ADMISSION = statement("lock_admission")
NOTE_STARTS = statement("note_starts")
DISPLACE_JOBS = statement("displace_jobs")
ADMIT_JOBS = statement("admit_jobs")
NUDGE_KEYS = statement("nudge_keys")
FORGET_STARTS = statement("forget_starts")
SET_LIMIT = statement("set_limit")
DROP_LIMIT = statement("drop_limit")
READ_LIMITS = statement("read_limits")

#: The key of a rule that counts for all keys of the queue without a rule of their own.
ANY_KEY: Final = "*"
#: The key of jobs without one, in a queue whose keys take turns. It has no limits.
NO_KEY: Final = ""
#: Nudges that one commit takes up.
MOST_NUDGES = 500
#: Takes that one commit works off; each is of up to 500 jobs.
MOST_TAKES = 50
#: Jobs of one key in line or running of which the least urgent is sought when a more urgent one comes.
MOST_DISPLACED = 100
#: Jobs of one key in line, in a queue with turns.
TURNS_IN_LINE = 50
#: Jobs of one key that are admitted by one commit.
MOST_OF_KEY = 500


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of every key of a queue, as configured."""

    #: Jobs of a key that run at once; 0: any number.
    running: int = 0
    #: Starts of a key within `rate_s` seconds; 0: any number.
    rate: int = 0
    rate_s: float = 60.0
    #: Whether the keys of the queue take turns.
    fair: bool = False


class LimitRule(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that were set while jobd ran; None: as the rule for ANY_KEY says, or the configuration."""

    queue: str
    key: str
    running: int | None = None
    rate: int | None = None
    rate_s: float | None = None
    weight: float | None = None


#: No queue has limits.
NO_LIMITS: Final[Mapping[str, QueueLimits]] = {}


async def admit(
    database: Database, limits: Mapping[str, QueueLimits] = NO_LIMITS, *, now: datetime | None = None
) -> set[str]:
    """Put in line what may run; the queues in which there is some. While the clock cannot be right, nothing."""
    queues: set[str] = set()
    while True:
        async with database.transaction() as session:
            await session.execute(LOCK_ADMISSION)
            (noted,) = await session.fetch(NOTE_STARTS, MOST_TAKES, now)
            nudges = 0
            if noted["is_clock_agreed"]:
                await session.execute(DISPLACE_JOBS, *_displacing(limits))
                rows = await session.fetch(ADMIT_JOBS, *_arguments(limits, now))
                queues |= {row["queue"] for row in rows if row["queue"] is not None}
                nudges = rows[-1]["number"]
        if nudges < MOST_NUDGES and noted["takes"] < MOST_TAKES:
            return queues


def _displacing(limits: Mapping[str, QueueLimits]) -> tuple[object, ...]:
    return MOST_NUDGES, list(limits), [queue.fair for queue in limits.values()], MOST_DISPLACED


def _arguments(limits: Mapping[str, QueueLimits], now: datetime | None) -> tuple[object, ...]:
    return (
        MOST_NUDGES,
        list(limits),
        [queue.running for queue in limits.values()],
        [queue.rate for queue in limits.values()],
        [queue.rate_s for queue in limits.values()],
        [queue.fair for queue in limits.values()],
        TURNS_IN_LINE,
        MOST_OF_KEY,
        now,
    )


async def nudge_keys(session: Session, queue: str | None = None) -> None:
    """Look at every key of the queue, or of all queues, that holds jobs back: limits have changed."""
    await session.execute(NUDGE_KEYS, queue)


async def set_limit(session: Session, rule: LimitRule, *, now: datetime | None = None) -> None:
    """Set the limits of a key, in place of those that were set before."""
    await session.execute(SET_LIMIT, rule.queue, rule.key, rule.running, rule.rate, rule.rate_s, rule.weight, now)
    await nudge_keys(session, rule.queue)


async def drop_limit(session: Session, queue: str, key: str) -> bool:
    """Forget the limits of a key; whether there were any."""
    was_there = await session.fetchval(DROP_LIMIT, queue, key) is not None
    await nudge_keys(session, queue)
    return was_there


async def read_limits(session: Session, *, after: tuple[str, str] = ("", ""), most: int = 100) -> list[LimitRule]:
    """The limits that were set, by queue and key."""
    return [LimitRule(**dict(row)) for row in await session.fetch(READ_LIMITS, *after, most)]


async def forget_starts(session: Session, *, most: int = 5000, now: datetime | None = None) -> int:
    return cast("int", await session.fetchval(FORGET_STARTS, most, now))
