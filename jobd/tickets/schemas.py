"""The published JSON schemas: one for each artifact, made from its Struct, and that of claim records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jobd.lifecycle.lease import claim_record_schema
from jobd.wire import tickets as wire

if TYPE_CHECKING:
    from collections.abc import Mapping

DIALECT = "https://json-schema.org/draft/2020-12/schema"

ARTIFACTS: Mapping[str, type[msgspec.Struct]] = {
    "ticket": wire.Ticket,
    "event": wire.Event,
    "context_snapshot": wire.ContextSnapshot,
    "workorder": wire.Workorder,
    "output_bundle": wire.OutputBundle,
    "run_record": wire.RunRecord,
    "pause_state": wire.PauseState,
}
SCHEMA_NAMES = (*ARTIFACTS, "claim_record")


def schema_of(name: str) -> dict[str, Any]:
    """The JSON schema of one of SCHEMA_NAMES; KeyError for any other name."""
    if name == "claim_record":
        return claim_record_schema()
    struct = ARTIFACTS[name]
    definitions = msgspec.json.schema(struct)["$defs"]
    top = definitions.pop(struct.__name__)
    rest = {"$defs": definitions} if definitions else {}
    return {"$schema": DIALECT, **top, "title": name, "additionalProperties": False, **rest}
