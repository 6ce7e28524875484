"""Steps of Postgres' clock: all statements read it through `jobd.clock`, which is replaced here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobd.store.session import Session

YEAR_S = 365.25 * 86_400
#: To about 1970, and to about 2056.
TO_1970_S = -56 * YEAR_S
TO_2056_S = 30 * YEAR_S


async def set_clock(connection: Session, off_by_s: float) -> None:
    """From now on Postgres' clock is `off_by_s` ahead of the true time, for everyone who uses this database."""
    await connection.execute(
        "CREATE OR REPLACE FUNCTION jobd.clock(at timestamptz) RETURNS timestamptz LANGUAGE sql VOLATILE"
        f" RETURN coalesce(at, clock_timestamp() + make_interval(secs => {off_by_s!r}))"
    )
