"""What the payload of a job says about the call that it came from, under one key beside the fields of the call.

    {"model": "…", "messages": […], …, "jobd": {"endpoint": "chat/completions", "told_once": true}}

A handler of any kind finds the call where OpenAI's documentation has it. `endpoint` is the path below /v1 that a model
server is asked at. `told_once`: what was emitted was read as it came, so an attempt that has emitted deltas and then
fails is the last one (see `deltas`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The key of the payload.
ENVELOPE = "jobd"
#: Paths of a model server.
ServerPath = Literal["chat/completions", "completions", "embeddings"]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Other keys are let be: they belong to the endpoint that made the job."""

    endpoint: ServerPath
    told_once: bool = False


def enveloped(
    fields: Mapping[str, Any], endpoint: ServerPath, *, told_once: bool = False, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The payload of a job for this call; `more`: what else is to be remembered of it under the same key."""
    about: dict[str, Any] = {"endpoint": endpoint}
    if told_once:
        about["told_once"] = True
    return {**fields, ENVELOPE: {**about, **(more or {})}}


def envelope_in(payload: Mapping[str, Any]) -> Envelope | None:
    """None: the job did not come through the OpenAI interface."""
    found = payload.get(ENVELOPE)
    if not isinstance(found, dict):
        return None
    try:
        return msgspec.convert(found, Envelope)
    except msgspec.ValidationError:
        return None


def fields_in(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the call."""
    return {name: value for name, value in payload.items() if name != ENVELOPE}
