"""An input of a job: what one of the jobs or groups that it waited for has ended with."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Input(Struct, frozen=True, kw_only=True):
    #: Of a job or a group.
    id: str
    status: str
    #: None unless it is done, and when it is large. Of a group: its counters.
    result: Any = None
    #: The error of a job that is not done.
    error: Any = None
    #: The result is not here, since it is large: `/v1/jobs/{id}/result` has it.
    is_large: bool = False
