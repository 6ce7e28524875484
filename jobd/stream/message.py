"""A message of a job stream: a hint that a job may be had. Nothing in it is believed but the id to look up."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Largest enqueue id, an int4 in Postgres.
LARGEST = (1 << 31) - 1


def read_message(fields: Mapping[bytes, bytes]) -> tuple[UUID, int] | None:
    """Job and enqueue id of a message; None for anything that is not one."""
    try:
        job_id, enqueue_id = UUID(fields[b"job_id"].decode("ascii")), int(fields.get(b"enqueue_id", b"1")[:20])
    except (KeyError, ValueError):  # UnicodeDecodeError is one
        return None
    return (job_id, enqueue_id) if 0 <= enqueue_id <= LARGEST else None
