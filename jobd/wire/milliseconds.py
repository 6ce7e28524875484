"""Times as the contract writes them: milliseconds since 1970, rounded as Postgres rounds, so that copies agree."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def ms(at: datetime) -> int:
    return ((at - _EPOCH) // _MICROSECOND + 500) // 1000


def moment(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)
