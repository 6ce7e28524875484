"""What a token looks like: `jobd_<8 hex digits>_<43 characters>`. The middle names it and is no secret."""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

PREFIX = "jobd"
#: Hex digits of the public id.
ID_CHARS = 8
#: Random bytes of the secret.
SECRET_BYTES = 32
#: Names that tokens must not have: in logs and in the audit table they mean callers without a token.
RESERVED_NAMES = frozenset({"anonymous", "local"})


class NewToken(NamedTuple):
    #: The token itself; shown once and stored nowhere.
    text: str
    id: str
    sha256: bytes


def new_token() -> NewToken:
    id_ = secrets.token_hex(ID_CHARS // 2)
    text = f"{PREFIX}_{id_}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewToken(text, id_, digest_of(text.encode()))


def digest_of(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def id_in(token: bytes) -> str:
    """The public part; empty for a token of another form, such as one that only the configuration knows."""
    parts = token.split(b"_", 2)
    if len(parts) != 3 or parts[0] != PREFIX.encode() or len(parts[1]) != ID_CHARS:
        return ""
    return parts[1].decode("latin-1")
