"""Batches as clients of the OpenAI interface see them. All times are seconds since 1970."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta

#: What the lines of a batch may ask for.
ENDPOINTS = ("/v1/chat/completions", "/v1/embeddings", "/v1/responses")
#: Seconds of the only window that there is, `24h`.
WINDOW_S = 86_400
#: Pairs of metadata, and characters of their names and values.
MAX_METADATA = 16
BatchStatus: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
_ID = re.compile(r"batch_([0-9a-f]{32})")


class OutputExpiry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"]
    #: An hour to 30 days.
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: A file of the purpose `batch`.
    input_file_id: str
    #: /v1/chat/completions or /v1/embeddings.
    endpoint: str
    #: 24h.
    completion_window: str
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    #: How long the output and the error file are kept.
    output_expires_after: OutputExpiry | None = None


class BatchFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a batch failed."""

    code: str
    message: str
    #: Of the input file, from 1; null: it is about all of it.
    line: int | None = None
    #: Field of the line that is to blame.
    param: str | None = None


class BatchFaults(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class LineCounts(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    #: `batch_` and 32 hexadecimal digits.
    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str = "24h"
    status: BatchStatus
    #: Answers of the lines that succeeded; null: none did, or the batch has not ended.
    output_file_id: str | None
    #: Lines that failed, or that were not run.
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: LineCounts
    metadata: dict[str, str] | None
    #: Of all lines; null: they differ, or are not known yet.
    model: str | None
    #: Tokens of all lines, when the batch has ended.
    usage: dict[str, Any] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def batch_id_text(batch_id: UUID) -> str:
    return f"batch_{batch_id.hex}"


def batch_id_in(text: str) -> UUID | None:
    """None: no batch has such an id."""
    named = _ID.fullmatch(text)
    return None if named is None else UUID(named[1])
