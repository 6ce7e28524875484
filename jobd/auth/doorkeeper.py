"""Authenticates callers and knows their scopes: by bearer token, by the session of a browser that logged in with one,
or everybody while no token exists.

Tokens come from the configuration and from the table `tokens`, which `jobd.auth.watch` reads every other
second; while Postgres is away the last known list counts. As soon as there is one token, or ever was one in the table,
every caller needs one, on loopback too. Only over the unix socket root and jobd's own user may go without.

It answers from memory, since it precedes every request, and in the same steps for any token: SHA-256, one look-up by
its public id, one comparison in constant time.
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from jobd.auth.open_sessions import OpenSessions
from jobd.auth.token import digest_of, id_in
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jobd.auth.table import TokenRow
    from jobd.config.model import Config, Token

#: Scope that a route needs; `public` needs none.
RouteScope: TypeAlias = Literal["public", "client", "worker", "metrics", "admin"]

#: Bad tokens that one address may send within `TRIES_S` seconds before it is answered 429.
MAX_TRIES = 20
#: Seconds over which bad tokens of one address are counted.
TRIES_S = 10.0
#: Addresses whose bad tokens are counted, to bound memory; beyond it the oldest is forgotten.
MAX_PEERS = 10_000


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    #: Name of the token, for logs, idempotency keys and the audit table.
    name: str
    scopes: frozenset[str]
    #: The queues that a worker may serve; None: all.
    queues: frozenset[str] | None = None
    #: Whether it sees and touches only jobs that a token of its name has sent.
    own_jobs: bool = False
    #: Whether it came with a token; callers without one share the name `anonymous` or `local`.
    has_token: bool = False
    #: Key of the token: its public id, or the digest of a token in the configuration.
    token_key: str | bytes = ""
    #: Hash of the secret in the cookie that it came with; empty: it came with none.
    session: bytes = b""

    @property
    def sees(self) -> str | None:
        """The owner whose jobs alone it may see; None: every job."""
        return self.name if self.own_jobs else None

    def may(self, scope: RouteScope, *, is_read: bool = False) -> bool:
        """Whether it may call a route of this scope; one that only reads admits `read` where it admits `client`."""
        if is_read and scope == "client" and "read" in self.scopes:
            return True
        return scope == "public" or scope in self.scopes or "admin" in self.scopes


_ALL = frozenset({"client", "worker", "admin", "read", "metrics"})
#: Any caller on a loopback address or the unix socket while no token exists.
EVERYONE = Principal(name="anonymous", scopes=_ALL)
#: Root or jobd's own user on the unix socket.
LOCAL = Principal(name="local", scopes=_ALL)
#: Any caller of a public route.
PASSER_BY = Principal(name="anonymous", scopes=frozenset())

_UNKNOWN_TOKEN = "this token is not known, was revoked or has expired; `jobd token list` shows which are"


class _TokenEntry(NamedTuple):
    digest: bytes
    principal: Principal
    #: By `time.monotonic()` of this process.
    expires_at: float = math.inf


#: Compared with when no token has the id, so that an unknown id takes as long as a wrong secret (timing attack).
_NO_SUCH = _TokenEntry(secrets.token_bytes(32), PASSER_BY, -math.inf)


class Doorkeeper:
    """Knows the tokens and sessions; answers without a wait."""

    def __init__(
        self, config: Callable[[], Config], sessions: OpenSessions | None = None, *, is_loopback: bool
    ) -> None:
        self._config = config
        self.sessions = sessions or OpenSessions()
        self._is_loopback = is_loopback
        self._configured: Sequence[Token] = ()
        self._by_digest: dict[bytes, _TokenEntry] = {}
        self._by_id: dict[str, _TokenEntry] = {}
        #: Whether the table was read at least once.
        self.knows_table = False
        self._had_rows = False
        self._tries = Tries()
        self._trusted_uids = frozenset({0, os.geteuid()})

    def learn(self, rows: Iterable[TokenRow]) -> None:
        """Replace the known tokens by the rows of the table."""
        now, by_id, self._had_rows = time.monotonic(), {}, False
        for row in rows:
            self._had_rows = True
            if row.revoked_at is None:
                until = math.inf if row.expires_in_s is None else now + row.expires_in_s
                by_id[row.id] = _TokenEntry(
                    row.sha256, _principal(row.id, row.name, row.scopes, row.queues, own_jobs=row.own_jobs), until
                )
        self._by_id, self.knows_table = by_id, True

    @property
    def has_tokens(self) -> bool:
        """Whether a token exists, or ever existed in the table (a revoked one counts too)."""
        return self._had_rows or bool(self._config().auth.tokens)

    def needs_login(self, uid: int | None) -> bool:
        """Whether a caller needs a token or a session."""
        return not self.knows_table or self.has_tokens or not self._is_open_to(uid)

    def admit(self, authorization: bytes | None, peer: str, uid: int | None, session: bytes | None = None) -> Principal:
        """The caller, by the Authorization header, the session, or the address and, on the unix socket, the user id.

        Raises ApiError: `unauthorized`, `too_many_attempts`, or `unavailable` while the tokens are not known yet.
        """
        if not self.needs_login(uid):
            return EVERYONE
        if authorization is None:
            if session is not None and (principal := self.principal_of(session)) is not None:
                return principal
            if uid in self._trusted_uids:
                return LOCAL
            if session is not None:
                raise self._refusal("this session is over, or its token was revoked or has expired; log in again")
            raise self._refusal("no token: send `Authorization: Bearer ...`; `jobd token create` makes one")
        if authorization[:7].lower() != b"bearer ":
            raise self.bad_try(peer, _UNKNOWN_TOKEN)
        return self.holder_of(authorization[7:].strip(), peer)

    def holder_of(self, token: bytes, peer: str) -> Principal:
        """Raises ApiError for a token that is not known, as `admit` does."""
        entry = self._find(token)
        if entry is None:
            raise self.bad_try(peer, _UNKNOWN_TOKEN)
        return entry.principal

    def principal_of(self, session: bytes) -> Principal | None:
        """The caller with this session, if it is known here and its token still counts."""
        open_session = self.sessions.get(session)
        if open_session is None:
            return None
        if open_session.token_key is None:
            return msgspec.structs.replace(LOCAL, session=session)
        entry = self._entry_of(open_session.token_key)
        if entry is None or time.monotonic() >= entry.expires_at:
            return None
        return msgspec.structs.replace(entry.principal, session=session)

    async def look_up(self, session: bytes, peer: str, uid: int | None) -> None:
        """Learn a session that this node has not seen; one that is unknown to Postgres too counts as a bad try."""
        if self.sessions.get(session) is not None or not self.needs_login(uid) or uid in self._trusted_uids:
            return
        self.check_tries(peer)
        if not await self.sessions.look_up(session):
            raise self.bad_try(peer, "this session is over; log in again")

    def still_admits(self, principal: Principal) -> bool:
        """Whether the token of a long request is still valid and has the same scopes and queues."""
        if principal is EVERYONE:
            return not self.has_tokens
        if principal.session:
            return self.principal_of(principal.session) == principal
        if not principal.has_token:
            return True
        entry = self._entry_of(principal.token_key)
        return entry is not None and entry.principal == principal and time.monotonic() < entry.expires_at

    def _is_open_to(self, uid: int | None) -> bool:
        return self._is_loopback or uid is not None or self._config().server.insecure

    def _entry_of(self, key: str | bytes) -> _TokenEntry | None:
        """By the id of a token in the table, or the hash of one in the configuration."""
        self._learn_configured()
        return self._by_digest.get(key) if isinstance(key, bytes) else self._by_id.get(key)

    def _find(self, token: bytes) -> _TokenEntry | None:
        self._learn_configured()
        digest = digest_of(token)
        entry = self._by_digest.get(digest) or self._by_id.get(id_in(token), _NO_SUCH)
        is_right = hmac.compare_digest(entry.digest, digest)
        return entry if is_right and time.monotonic() < entry.expires_at else None

    def _learn_configured(self) -> None:
        tokens = self._config().auth.tokens
        if tokens is self._configured:
            return
        self._by_digest = {
            digest: _TokenEntry(
                digest,
                _principal(digest, token.name, token.scopes, token.queues or None, own_jobs=token.own_jobs),
            )
            for token in tokens
            for digest in (bytes.fromhex(token.sha256),)
        }
        self._configured = tokens

    def check_tries(self, peer: str) -> None:
        """Raises ApiError if this address had too many bad tries, before anything is asked of Postgres for it."""
        if self._tries.is_held_back(peer):
            raise _too_many_tries()

    def bad_try(self, peer: str, detail: str) -> ApiError:
        """Count a bad token, session or code; how it is answered."""
        if self.knows_table and self._tries.are_too_many(peer):
            return _too_many_tries()
        return self._refusal(detail)

    def _refusal(self, detail: str) -> ApiError:
        if not self.knows_table:
            return ApiError("unavailable", "jobd does not know its tokens yet; try again", headers={"Retry-After": "1"})
        return ApiError("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


class Tries:
    """Counts bad tokens by address, for a bounded number of addresses."""

    def __init__(self) -> None:
        self._by_peer: dict[str, tuple[float, int]] = {}

    def is_held_back(self, peer: str) -> bool:
        """Whether one more bad token would be too many."""
        since, count = self._by_peer.get(peer, (0.0, 0))
        return count >= MAX_TRIES and time.monotonic() - since <= TRIES_S

    def are_too_many(self, peer: str) -> bool:
        """Count one more bad token; whether that exceeds `MAX_TRIES` within `TRIES_S`."""
        now = time.monotonic()
        since, count = self._by_peer.pop(peer, (now, 0))
        if now - since > TRIES_S:
            since, count = now, 0
        if len(self._by_peer) >= MAX_PEERS:
            del self._by_peer[next(iter(self._by_peer))]
        self._by_peer[peer] = since, count + 1
        return count >= MAX_TRIES


def _too_many_tries() -> ApiError:
    return ApiError(
        "too_many_attempts",
        f"more than {MAX_TRIES} bad tokens from this address in {TRIES_S:.0f} s; wait and check the token",
        headers={"Retry-After": str(int(TRIES_S))},
    )


def _principal(
    key: str | bytes, name: str, scopes: Iterable[str], queues: Iterable[str] | None, *, own_jobs: bool
) -> Principal:
    return Principal(
        name=name,
        scopes=frozenset(scopes),
        queues=None if queues is None else frozenset(queues),
        own_jobs=own_jobs,
        has_token=True,
        token_key=key,
    )
