"""Answers of `/v1/embeddings`."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jobd.openai.answer import answer_of
from jobd.openai.errors import OpenAIError

if TYPE_CHECKING:
    from jobd.openai.embedding_request import Encoding


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, int]


def embedding_list(model: str, result: Any, encoding: Encoding) -> EmbeddingList:
    """Raises OpenAIError for a result that has no vectors: the task answers something else."""
    counts = answer_of(result).counts
    return EmbeddingList(
        data=[
            {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}
            for index, vector in enumerate(_vectors(result))
        ],
        model=model,
        usage={"prompt_tokens": counts["prompt_tokens"], "total_tokens": counts["total_tokens"]},
    )


def _vectors(result: Any) -> list[list[float]]:
    """As `run = "openai"` has them, or one alone, as the built-in mock."""
    found = result if isinstance(result, dict) else {}
    vectors = found.get("embeddings", [found["vector"]] if "vector" in found else None)
    try:
        return msgspec.convert(vectors, list[list[float]])
    except msgspec.ValidationError:
        message = "the task of this model answered no vectors; it must return {embeddings: [[...], ...]}"
        raise OpenAIError(502, message, code="upstream_error", should_retry=False) from None


def _encoded(vector: list[float], encoding: Encoding) -> list[float] | str:
    """base64: of the numbers as little-endian float32, which clients ask for because it is half as long."""
    if encoding == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
