"""Gates: what an output has to pass. Those that need nothing but the output are evaluated here; PURE: no clock, no I/O.

A schema is compiled when its ticket is written, so that its author learns of a mistake at once. References outside of
the schema are refused, and patterns are matched in linear time, so look-around and back-references do not exist.
References inside of it can still make a small schema take years (sixty definitions, each with two references to the
one before), so a schema with references, or with a large output, is evaluated in a process that can be killed.
A command is chosen by name from the configuration: the API cannot define one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from jobd.tickets.errors import TicketRefused
from jobd.wire.tickets import CommandGate, GateResult, MinimumGate, SchemaGate, SignOffGate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from jobd.wire.tickets import Gate

#: Largest schema as JSON.
MAX_SCHEMA_BYTES = 64 * 1024
#: Largest compiled pattern of a schema.
MAX_PATTERN_BYTES = 1 << 20
#: Longest reason of a gate's result in characters.
REASON_CHARACTERS = 500
#: Most bytes of schema times bytes of output that are evaluated on the event loop: a few milliseconds.
CHEAP = 10_000_000

_REFERENCE = re.compile(rb'"\$(dynamic|recursive)?[rR]ef"')

_POINTER = re.compile(r"(/([^~/]|~[01])*)*")


def check_gates(gates: Sequence[Gate], commands: Collection[str]) -> None:
    """Refuse gates that could never be evaluated; `commands` are those of the configuration."""
    for n, gate in enumerate(gates):
        where = f"gates[{n}]"
        if isinstance(gate, SchemaGate):
            _check_schema(gate, where)
        elif isinstance(gate, MinimumGate) and not _POINTER.fullmatch(gate.pointer):
            raise TicketRefused(
                "bad_gate", f"{where}.pointer must be a JSON pointer such as /score (got {gate.pointer!r})"
            )
        elif isinstance(gate, CommandGate) and gate.name not in commands:
            known = ", ".join(sorted(commands)) or "none"
            raise TicketRefused(
                "unknown_gate", f"{where}: there is no [tickets.gates.{gate.name}] in the configuration; it has {known}"
            )
    if sum(isinstance(gate, SignOffGate) for gate in gates) > 1:
        raise TicketRefused("bad_gate", "gates has more than one sign_off; a person is asked once for each output")


def _check_schema(gate: SchemaGate, where: str) -> None:
    if len(msgspec.json.encode(gate.schema)) > MAX_SCHEMA_BYTES:
        raise TicketRefused("bad_schema", f"{where}.schema has more than {MAX_SCHEMA_BYTES} bytes")
    try:
        compiled(gate.schema)
    except ValueError as error:
        message = str(error).partition("\n")[0][:REASON_CHARACTERS]
        raise TicketRefused("bad_schema", f"{where}.schema does not compile: {message}") from None


def compiled(schema: dict[str, Any] | bool) -> Any:
    """A validator; ValueError for a schema that is none."""
    import jsonschema_rs  # here, so that a jobd without tickets does not load it

    options = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
    any_schema: Any = schema  # its types differ from version to version
    return jsonschema_rs.validator_for(any_schema, retriever=_retrieve_nothing, pattern_options=options)


def _retrieve_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not part of the schema")


def is_cheap(gate: SchemaGate, output_bytes: int) -> bool:
    text = msgspec.json.encode(gate.schema)
    return len(text) * output_bytes <= CHEAP and not _REFERENCE.search(text)


def passes_schema(gate: SchemaGate, output: Any) -> GateResult:
    try:
        fault = next(iter(compiled(gate.schema).iter_errors(output)), None)
    except ValueError as error:  # it compiled when the ticket was written
        return _result("schema", f"the schema does not compile: {error}")
    if fault is None:
        return _result("schema", None)
    path = "".join(f"/{step}" for step in fault.instance_path)
    return _result("schema", f"the output does not fit the schema at {path or 'its top'}: {fault.message}")


def passes_minimum(gate: MinimumGate, output: Any) -> GateResult:
    where = gate.pointer or "the output"
    try:
        value = at_pointer(output, gate.pointer)
    except LookupError:
        return _result("minimum", f"the output has nothing at {where}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _result("minimum", f"{where} is not a number")
    return _result("minimum", None if value >= gate.value else f"{where} is {value:.9g}, below {gate.value:.9g}")


def at_pointer(value: Any, pointer: str) -> Any:
    """The value at a JSON pointer (RFC 6901); LookupError when nothing is there."""
    for step in pointer.split("/")[1:]:
        if isinstance(value, dict):
            value = value[step.replace("~1", "/").replace("~0", "~")]
        elif isinstance(value, list) and re.fullmatch(r"0|[1-9][0-9]{0,8}", step):
            value = value[int(step)]
        else:
            raise LookupError(pointer)
    return value


def result_of(gate: SchemaGate | CommandGate, fault: str | None) -> GateResult:
    """The result of a gate that was evaluated in a process; `fault` None: it passes."""
    return _result("schema" if isinstance(gate, SchemaGate) else "command", fault)


def sign_off_result(by: str, why: str, *, accepted: bool) -> GateResult:
    words = f": {why}" if why else ""
    if accepted:
        return GateResult(type="sign_off", result="PASS", reason=f"signed off by {by}{words}"[:REASON_CHARACTERS])
    return _result("sign_off", f"refused by {by}{words}")


def _result(kind: Any, fault: str | None) -> GateResult:
    if fault is None:
        return GateResult(type=kind, result="PASS", reason="")
    return GateResult(type=kind, result="FAIL", reason=fault[:REASON_CHARACTERS])
