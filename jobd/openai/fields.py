"""Checks of a body, field by field, so that a refusal names the field.

Known fields are checked for their type only: what a model can do is for its server to say. Fields that are not known
go through to the server, since clients add their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from jobd.openai.envelope import ENVELOPE
from jobd.openai.errors import InvalidCall
from jobd.openai.models import Model, find_model

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from jobd.config.model import Config

#: Characters of a type error that are shown; it may quote a long field name.
MAX_MESSAGE_CHARS = 500
#: Fields of OpenAI's own service that mean nothing to a model server here: accepted, and left out.
IGNORED = frozenset({"store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})


#: One text, several, the tokens of one, or the tokens of several; `check_texts` says no to mixtures.
Texts: TypeAlias = str | list[str | int | list[int]]


class ModelCall(NamedTuple):
    """A checked call: what the job of it is made from, and how it is to be answered."""

    model: Model
    #: Payload of the job.
    payload: dict[str, Any]
    is_stream: bool = False
    #: Whether a stream ends with a chunk that has the usage.
    include_usage: bool = False


def checked_fields(body: object, types: Mapping[str, Any]) -> dict[str, Any]:
    """The body as an object whose known fields have their types; raises InvalidCall."""
    if not isinstance(body, dict):
        raise InvalidCall(None, "the body must be a JSON object")
    if ENVELOPE in body:
        raise InvalidCall(ENVELOPE, f"the field {ENVELOPE} is jobd's own; leave it out")
    for name, value in body.items():
        if name in types:
            check_type(name, value, types[name])
    return body


def check_type(name: str, value: object, type_: Any) -> None:
    """Raises InvalidCall that names the field and the place in it."""
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        fault, _, path = str(error).rpartition(" - at `$")
        text = f"{name}{path[:-1]}: {fault}" if fault else f"{name}: {error}"
        raise InvalidCall(name, text[:MAX_MESSAGE_CHARS], "invalid_type") from None


def check_texts(name: str, value: Any) -> None:
    """Raises InvalidCall for a list with items of several kinds."""
    kinds = {type(item) for item in value} if isinstance(value, list) else set()
    if len(kinds) > 1:
        raise InvalidCall(name, f"{name} must be text, or a list of texts, of tokens or of lists of tokens, unmixed")


def model_in(body: Mapping[str, Any], config: Config) -> Model:
    return find_model(config, body.get("model"))


def fields_for(model: Model, body: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """The fields that a server gets: those of the body, defaults of the model where there is none, and its name."""
    kept = {name: value for name, value in body.items() if name not in left_out and name not in IGNORED}
    fields = {**model.defaults, **kept}
    if model.server_model:
        fields["model"] = model.server_model
    return fields


def check_one_answer(body: Mapping[str, Any], *names: str) -> None:
    """A job has one answer, so fields that ask for several may only say 1."""
    for name in names:
        if body.get(name) not in (None, 1):
            message = f"{name} must be 1 (got {body[name]}): a job has one answer; send the call several times"
            raise InvalidCall(name, message, "unsupported_value")
