"""Files as clients of the OpenAI interface see them. All times are seconds since 1970."""

from __future__ import annotations

import re
from typing import Literal
from uuid import UUID

import msgspec

_ID = re.compile(r"file-([0-9a-f]{32})")
_PREFIX = "file-"


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    #: `file-` and 32 hexadecimal digits.
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    #: `batch_output` for files that batches have made.
    purpose: Literal["batch", "user_data", "batch_output"]
    #: Deprecated, but clients require it.
    status: Literal["processed"] = "processed"
    #: When it is deleted; null: it stays.
    expires_at: int | None = None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def file_id_text(file_id: UUID) -> str:
    return f"{_PREFIX}{file_id.hex}"


def file_id_in(text: str) -> UUID | None:
    """None: no file has such an id."""
    named = _ID.fullmatch(text)
    return None if named is None else UUID(named[1])
