"""Login of the web page: what `/v1/session` takes and answers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

Secret = Annotated[str, Meta(min_length=1, max_length=1000)]


class LogIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of the two."""

    #: A token, as `jobd token create` printed it.
    token: Secret | UnsetType = UNSET
    #: The code behind `#login=` in the address that `jobd open` printed.
    code: Secret | UnsetType = UNSET


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    #: Name of the token, `local` or `anonymous`; null: not logged in.
    name: str | None
    scopes: list[str]
    #: Whether the caller sees and touches only jobs that it has sent itself.
    own_jobs: bool
    #: When the session ends, in milliseconds since 1970; null: the caller has no session.
    expires_ts: int | None
    #: Whether callers like this one need a token or a session at all.
    login_needed: bool
