"""What a call does, as values: a flow yields steps and is sent what came of each.

So a call is written once, and the two clients differ only in how they take a step: one blocks, the other awaits.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")


class CallSettings(msgspec.Struct, frozen=True, kw_only=True):
    #: The address of jobd, without secrets.
    url: str
    #: Seconds for which a call is retried while jobd is away or busy.
    patience_s: float


class ApiRequest(msgspec.Struct, frozen=True, kw_only=True):
    #: What it is about, for errors: `job 0192...`.
    what: str
    method: str = "GET"
    path: str
    #: A list: the parameter is sent with each of its values.
    query: Mapping[str, str | list[str]] = {}
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    #: Seconds that the answer may take beyond the usual timeout.
    hold_s: float = 0.0
    #: Idempotent, so it is retried when the answer was lost.
    is_repeatable: bool = True

    def __repr__(self) -> str:
        return f"<{self.method} {self.path}>"


class Reply(NamedTuple):
    status: int
    #: By lower-case name.
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"<Reply {self.status}>"


class Lost(NamedTuple):
    """The connection failed before the whole answer was there."""

    reason: str
    #: Nothing of the request can have arrived.
    is_unsent: bool = False


class Send(NamedTuple):
    """Gives a Reply or Lost."""

    request: ApiRequest


class Open(NamedTuple):
    """Gives a Reply or Lost; after status 200 there is a stream to read, and the one before is closed."""

    request: ApiRequest


class Read(NamedTuple):
    """Gives the next bytes of the stream, none at its end, or Lost."""


class Pause(NamedTuple):
    seconds: float


Step: TypeAlias = Send | Open | Read | Pause
Flow: TypeAlias = Generator[Step, Any, T]
