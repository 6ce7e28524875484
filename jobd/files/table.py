"""The rows of files. The bytes are on the disk before a row is committed, and go after it has gone."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import UUID

import msgspec

from jobd.store.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.store.session import Session

CREATE_FILE = statement("create_file", __package__)
READ_FILE = statement("read_file", __package__)
LIST_NEWEST_FILES = statement("list_newest_files", __package__)
LIST_OLDEST_FILES = statement("list_oldest_files", __package__)
DELETE_FILE = statement("delete_file", __package__)
PRUNE_FILES = statement("prune_files", __package__)
READ_FILE_REFS = statement("read_file_refs", __package__)

#: What a file is for: the input of a batch, anything of a user, or what a batch has made.
Purpose: TypeAlias = Literal["batch", "user_data", "batch_output"]


class NewStoredFile(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    owner: str | None
    filename: str
    purpose: Purpose
    bytes: int
    #: Where it is, from the data directory.
    ref: str
    #: Seconds that it stays; None: until it is deleted.
    keep_s: float | None = None


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    #: Name of the token that sent it.
    owner: str | None
    filename: str
    purpose: str
    bytes: int
    #: Where it is, from the data directory.
    ref: str
    created_at: datetime
    #: None: it stays until it is deleted.
    expires_at: datetime | None


async def create_file(session: Session, file: NewStoredFile, *, now: datetime | None = None) -> StoredFile:
    values = file.id, file.owner, file.filename, file.purpose, file.bytes, file.ref, file.keep_s
    (row,) = await session.fetch(CREATE_FILE, *values, now)
    return StoredFile(**dict(row))


async def read_file(session: Session, file_id: UUID, *, now: datetime | None = None) -> StoredFile | None:
    """None: there is no such file, or it has expired."""
    for row in await session.fetch(READ_FILE, file_id, now):
        return StoredFile(**dict(row))
    return None


async def list_files(
    session: Session,
    *,
    most: int,
    after: UUID | None = None,
    newest_first: bool = True,
    owner: str | None = None,
    purpose: str | None = None,
    now: datetime | None = None,
) -> list[StoredFile]:
    """Those behind `after` in the order asked for; with `owner` only those of that token."""
    text = LIST_NEWEST_FILES if newest_first else LIST_OLDEST_FILES
    return [StoredFile(**dict(row)) for row in await session.fetch(text, after, most, owner, purpose, now)]


async def delete_file(session: Session, file_id: UUID) -> str | None:
    """Delete the row; the bytes that it named are for the caller to remove. None: there is none, or it is in use."""
    ref = await session.fetchval(DELETE_FILE, file_id)
    return None if ref is None else str(ref)


async def prune_files(session: Session, *, most: int, now: datetime | None = None) -> list[str]:
    """Delete one batch of rows that have expired; the files that they named are for the caller to remove."""
    return [row["ref"] for row in await session.fetch(PRUNE_FILES, most, now)]


async def read_file_refs(session: Session, file_ids: Sequence[UUID]) -> set[str]:
    """The files that the rows of these ids name."""
    return {row["ref"] for row in await session.fetch(READ_FILE_REFS, list(file_ids))}
