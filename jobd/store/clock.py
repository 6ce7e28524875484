"""The clock of a node: compares Postgres' clock with the boot clock every few seconds, and keeps the table of eras.

All decisions by time use it; the rules are in `clock_eras`. Of several nodes that notice the same step, one writes the
new era and shifts all waits and leases in the same commit; the others read it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from jobd.store.clock_eras import MARK_S, STEP_S, Era, Past, known_time, past, step_s, step_while_off
from jobd.store.statements import statement

if TYPE_CHECKING:
    from asyncpg import Record

    from jobd.store.postgres import Database

log = logging.getLogger(__name__)

READ_CLOCK = statement("read_clock", __package__)
READ_ERAS = statement("read_eras", __package__)
BEGIN_ERA = statement("begin_era", __package__)
MARK_ERA = statement("mark_era", __package__)
#: Run in this order: it is the lock order of all other statements.
SHIFTS = tuple(
    statement(name, __package__)
    for name in (
        *("shift_leases", "shift_expiries", "shift_waits", "shift_budgets", "shift_queues", "shift_starts"),
        *("shift_batches", "shift_files"),
    )
)
SHIFT_LINE = statement("shift_line", __package__)

#: Seconds: an era whose last mark is older has no node that watches the clock.
STALE_S = 2 * MARK_S
#: Queued jobs whose `order_at` is moved in one commit.
LINE_BATCH = 1000
#: Seconds of that work at each check of the clock, so that the caller does not wait for all of them.
LINE_S = 1.0
#: Seconds for the last mark when jobd stops, which must not be held up by it.
LAST_MARK_S = 2.0

#: Year 1 in seconds since 1970: datetime has no earlier time.
YEAR_1 = -62_135_596_800.0

_COLUMNS = Era.__struct_fields__


class ClockReading(msgspec.Struct, frozen=True, kw_only=True):
    """Postgres' clock (`wall`), steady and known time in an era, at `boot_s` of this machine's boot clock."""

    no: int
    wall: float
    steady: float
    known: float
    boot_s: float


class Clock:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = anyio.Lock()
        self._last: ClockReading | None = None
        #: Seconds by which `order_at` of queued jobs is still to be shifted; 0: nothing to do.
        self._line_step_s = 0.0
        self._boot_id = _boot_id()

    async def check(self) -> ClockReading:
        """Compare the clocks. A step, or a start after a pause, begins an era; else its end is moved every `MARK_S`."""
        async with self._lock:
            await self._compare()
            while self._last is None:  # another node was first
                await self._compare()
            await self._move_line()
            return self._last

    async def _compare(self) -> None:
        before = boot_clock_s()
        (row,) = await self._database.fetch(READ_CLOCK)
        boot_s, last = boot_clock_s(), self._last
        if last is not None and boot_s - before > STEP_S / 2:
            return  # the answer took too long to know when Postgres read its clock
        wall, era = row["wall"], _era(row) if row["no"] is not None else None
        if era is None:
            await self._begin(None, wall=wall, boot_s=boot_s)
        elif last is None:
            moved = step_while_off(era, wall=wall, boot_id=self._boot_id, boot_s=boot_s)
            if moved or wall - era.wall_to > STALE_S:
                await self._begin(era, wall=wall, boot_s=boot_s, moved=moved)
            else:
                await self._go_on(era, wall, boot_s, known=era.known)
        elif last.no != era.no:
            await self._go_on(era, wall, boot_s, known=era.known)
        elif moved := step_s(wall_s=wall - last.wall, boot_s=boot_s - last.boot_s):
            log.warning("Postgres' clock was set %s by %.0f s", "forward" if moved > 0 else "back", abs(moved))
            await self._begin(era, wall=wall, boot_s=boot_s, moved=moved)
        else:
            await self._go_on(era, wall, boot_s, known=last.known)

    @property
    def era_no(self) -> int | None:
        """The era of the last reading of the clock; None: there was none yet."""
        return None if self._last is None else self._last.no

    def now_ms(self) -> int:
        """Postgres' clock in ms since 1970, without a query: from its last reading; before that, this machine's."""
        last = self._last
        return int(1000 * (time.time() if last is None else last.wall + boot_clock_s() - last.boot_s))

    async def steady(self) -> datetime:
        """Steady time now."""
        return _at((await self.check()).steady)

    async def past(self, keep_s: float) -> Past:
        """The times of rows that are older than `keep_s` of steady time."""
        steady = (await self.check()).steady
        eras = [_era(row) for row in await self._database.fetch(READ_ERAS)]
        return past(eras, steady=steady, keep_s=keep_s)

    async def mark_last(self) -> None:
        """Mark the end of the era when jobd stops: the time that it is off begins here."""
        last, boot_s = self._last, boot_clock_s()
        if last is not None:
            passed_s = boot_s - last.boot_s
            with anyio.move_on_after(LAST_MARK_S, shield=True), contextlib.suppress(Exception):
                await self._mark(last, last.wall + passed_s, last.steady + passed_s, last.known + passed_s, boot_s)

    async def _go_on(self, era: Era, wall: float, boot_s: float, known: float) -> None:
        steady = max(era.steady_to, era.steady_from + wall - era.wall_from)
        passed_s = boot_s - self._last.boot_s if self._last is not None and self._last.no == era.no else 0.0
        known = known_time(known, passed_s=passed_s, wall=wall, era_s=steady - era.steady_from)
        self._last = ClockReading(no=era.no, wall=wall, steady=steady, known=known, boot_s=boot_s)
        if steady - era.steady_to >= MARK_S:
            await self._mark(self._last, wall, steady, known, boot_s)

    async def _mark(self, reading: ClockReading, wall: float, steady: float, known: float, boot_s: float) -> None:
        await self._database.execute(MARK_ERA, reading.no, wall, steady, known, self._boot_id, boot_s)

    async def _begin(self, ended: Era | None, *, wall: float, boot_s: float, moved: float = 0.0) -> None:
        """Begin an era, unless another node does. It begins at the last check, since the step came after that."""
        last = self._last
        unseen_s = boot_s - last.boot_s if last is not None else 0.0
        no = ended.no + 1 if ended is not None else 1
        known = ended.known if ended is not None else wall
        steady = last.steady + unseen_s if last is not None else ended.steady_to if ended is not None else wall
        known = known_time(last.known if last is not None else known, passed_s=unseen_s, wall=wall, era_s=0.0)
        async with self._database.transaction() as session:
            begun = await session.fetchval(
                BEGIN_ERA, no, wall - unseen_s, steady - unseen_s, wall, steady, known, self._boot_id, boot_s
            )
            if begun is None:
                return  # another node has begun it; the next check reads it
            if last is not None:
                await session.execute(MARK_ERA, last.no, last.wall + unseen_s, steady, known, self._boot_id, boot_s)
            for shift in SHIFTS if moved else ():
                await session.execute(shift, moved, wall - unseen_s)
        self._last = ClockReading(no=no, wall=wall, steady=steady, known=known, boot_s=boot_s)
        self._line_step_s = min(moved, 0.0)

    async def _move_line(self) -> None:
        """After a step back, shift `order_at` of queued jobs, for at most `LINE_S` at each check."""
        until = boot_clock_s() + LINE_S
        while self._line_step_s and boot_clock_s() < until:
            (row,) = await self._database.fetch(SHIFT_LINE, self._line_step_s, LINE_BATCH)
            if row[0] < LINE_BATCH:
                self._line_step_s = 0.0


def in_time(past: Past | None) -> tuple[datetime | None, list[datetime] | None, list[datetime] | None]:
    """The parameters of the retention statements: cutoff, and the beginnings and ends of stretches to keep."""
    if past is None:
        return None, None, None
    return _at(past.before), [_at(low) for low, _ in past.kept], [_at(high) for _, high in past.kept]


def _at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=max(seconds, YEAR_1))


def _era(row: Record) -> Era:
    return Era(**{name: row[name] for name in _COLUMNS})


def boot_clock_s() -> float:
    """CLOCK_BOOTTIME in seconds: goes on while the process is frozen or the machine suspended, and is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
