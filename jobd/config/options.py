"""The options one by one: which there are, and what each expects.

Everything here is read from the Structs of `config`, so an option added there is loaded, explained, shown and
compared without a word elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec.inspect import (
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from jobd.config.model import Config, Key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Option(NamedTuple):
    """One settable value, such as `server.port` or `queues.default.slots`."""

    key: Key
    type: Any
    kind: Type
    #: `msgspec.NODEFAULT` where the file has to say.
    default: object

    @property
    def dotted(self) -> str:
        return ".".join(self.key)


#: Tables whose entries the file names, one table each.
NAMED: tuple[Key, ...] = (("queues",), ("tasks",), ("tickets", "gates"))


def options(queues: Iterable[str], tasks: Iterable[str], gates: Iterable[str] = ()) -> dict[Key, Option]:
    """Every option there is when these queues, tasks and gates exist, in the order of declaration."""
    found = _options((), Config, dict(zip(NAMED, (tuple(queues), tuple(tasks), tuple(gates)), strict=True)))
    return {option.key: option for option in found}


def _options(prefix: Key, struct: type[msgspec.Struct], names: Mapping[Key, Iterable[str]]) -> Iterator[Option]:
    for field in msgspec.structs.fields(struct):
        key = (*prefix, field.name)
        if key in names:
            entry = get_args(field.type)[1]
            for name in names[key]:
                yield from _options((*key, name), entry, names)
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _options(key, field.type, names)
        else:
            yield Option(key, field.type, type_info(field.type), field.default)


def value_at(config: Config, key: Key) -> object:
    """The value of an option; `msgspec.UNSET` when it belongs to a queue or task that is not there."""
    here: Any = config
    for step in key:
        here = here.get(step, msgspec.UNSET) if isinstance(here, dict) else getattr(here, step, msgspec.UNSET)
    return here


def is_marked(kind: Type, mark: Literal["reload", "secret"]) -> bool:
    return isinstance(kind, Metadata) and bool((kind.extra or {}).get(mark))


def is_list(kind: Type) -> bool:
    return isinstance(bare(kind), VarTupleType)


def bare(kind: Type) -> Type:
    return bare(kind.type) if isinstance(kind, Metadata) else kind


def expectation(kind: Type) -> str:
    """The end of a sentence that begins `server.port must be`."""
    if isinstance(kind, Metadata):
        description = (kind.extra_json_schema or {}).get("description")
        return str(description) if description else expectation(kind.type)
    if isinstance(kind, UnionType):
        return expectation(kind.types[0])
    if isinstance(kind, IntType):
        return f"a whole number from {kind.ge} to {kind.le}"
    if isinstance(kind, FloatType):
        return (
            f"a number from {kind.ge} to {kind.le}"
            if kind.gt is None
            else f"a number above {kind.gt}, at most {kind.le}"
        )
    if isinstance(kind, LiteralType):
        return "one of " + ", ".join(str(value) for value in kind.values)
    if isinstance(kind, VarTupleType):
        return "a list with at least one entry" if kind.min_length else "a list"
    if isinstance(kind, StructType):
        return "a table of " + ", ".join(field.name for field in kind.fields)
    return "true or false"


def narrow(kind: Type, value: Any, steps: Iterable[str]) -> tuple[Type, Any]:
    """Follow a path such as `0 sha256` into a list or table, to the part that was wrong."""
    for step in steps:
        within = bare(kind)
        if isinstance(within, VarTupleType):
            kind, value = within.item_type, value[int(step)]
        elif isinstance(within, StructType):
            kind, value = next(field.type for field in within.fields if field.name == step), value[step]
    return kind, value
