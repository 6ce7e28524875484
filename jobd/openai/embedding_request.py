"""The body of `POST /v1/embeddings` as the payload of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from jobd.openai.envelope import enveloped
from jobd.openai.errors import InvalidCall
from jobd.openai.fields import ModelCall, Texts, check_texts, checked_fields, fields_for, model_in

if TYPE_CHECKING:
    from jobd.config.model import Config

Encoding = Literal["float", "base64"]

EMBEDDING_FIELDS: dict[str, Any] = {
    "model": Annotated[str, Meta(min_length=1)] | None,
    "input": Texts,
    "dimensions": Annotated[int, Meta(ge=1)] | None,
    "encoding_format": Encoding | None,
    "user": str | None,
}


class EmbeddingCall(NamedTuple):
    call: ModelCall
    encoding: Encoding


def embedding_call(body: object, config: Config) -> EmbeddingCall:
    """Raises InvalidCall or ModelNotFound. The server is always asked for numbers: not every one knows base64."""
    fields = checked_fields(body, EMBEDDING_FIELDS)
    model = model_in(fields, config)
    if "input" not in fields:
        raise InvalidCall("input", "input is missing: text, a list of texts, or tokens")
    check_texts("input", fields["input"])
    if input_count(fields["input"]) == 0 or any(
        each in ("", []) for each in (fields["input"], *_items(fields["input"]))
    ):
        raise InvalidCall("input", "input must not be empty, nor any text in it")
    passed_on = fields_for(model, fields, ("encoding_format",))
    encoding: Encoding = fields.get("encoding_format") or "float"
    return EmbeddingCall(ModelCall(model, enveloped(passed_on, "embeddings")), encoding)


def input_count(wanted: Any) -> int:
    """How many vectors are asked for: a list of tokens is one text."""
    items = _items(wanted)
    return 1 if isinstance(wanted, str) or (items and isinstance(items[0], int)) else len(items)


def _items(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else []
