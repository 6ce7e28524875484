"""What only an administrator may read: the configuration in force, and the audit log. Times are in ms since 1970."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

#: Most rows of one answer.
MAX_ROWS = 500

AuditLimit: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_ROWS)]
#: Ids are those of a Postgres bigint.
AuditId: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class ConfigInForce(msgspec.Struct, frozen=True, kw_only=True):
    #: Every option by section, as in `jobd.toml`; passwords and hashes of tokens are masked.
    config: dict[str, Any]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at_ts: int
    #: Name of a token, or the user of a command line.
    actor: str
    #: `token.create`, `backup.restore`, ...
    action: str
    #: What it was done to.
    subject: str


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    #: Newest first.
    entries: list[AuditEntry]
    #: Send it as `before` for the next page; null: this was the last.
    next: int | None
