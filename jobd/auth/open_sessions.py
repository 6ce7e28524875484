"""The sessions that this node has seen, in memory; an unknown one is looked up in Postgres once.

`jobd.auth.watch` reads them again with the tokens, so a logout on another node counts here within 5 s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from jobd.auth.sessions import SessionRow


class OpenSession(NamedTuple):
    #: Key of its token: an id, or the hash of a token in the configuration; None: `local`.
    token_key: str | bytes | None
    #: By `time.monotonic()` of this process.
    expires_at: float
    #: Milliseconds since 1970, for the page.
    expires_ts: int


async def _none(digests: Sequence[bytes]) -> list[SessionRow]:
    """Of a doorkeeper without a database."""
    return []


class OpenSessions:
    def __init__(self, read: Callable[[Sequence[bytes]], Awaitable[list[SessionRow]]] = _none) -> None:
        self._read = read
        self._by_digest: dict[bytes, OpenSession] = {}

    def get(self, digest: bytes) -> OpenSession | None:
        session = self._by_digest.get(digest)
        return session if session is not None and time.monotonic() < session.expires_at else None

    def add(self, row: SessionRow) -> None:
        key = row.token_id if row.token_id is not None else row.token_sha256
        ends_at = time.monotonic() + row.expires_in_s
        self._by_digest[row.sha256] = OpenSession(key, ends_at, int(row.expires_at.timestamp() * 1000))

    def remove(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._by_digest.pop(digest, None)

    async def look_up(self, digest: bytes) -> bool:
        """Ask Postgres for a session that is not known here; whether there is one."""
        rows = await self._read([digest])
        for row in rows:
            self.add(row)
        return bool(rows)

    async def refresh(self) -> None:
        """Forget what is over by now: expired, or logged out on another node."""
        known = list(self._by_digest)
        if not known:
            return
        open_ = {row.sha256 for row in await self._read(known)}
        self.remove(digest for digest in known if digest not in open_)
