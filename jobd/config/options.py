"""The list of all options, and what each expects.

All of it is read from the Structs in `model`, so an option added there is loaded, explained in errors, shown and
compared without a change elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec.inspect import (
    DictType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
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
    #: `msgspec.NODEFAULT`: the file has to set it.
    default: object

    @property
    def dotted(self) -> str:
        return ".".join(self.key)


#: Tables whose entries are tables with names chosen in the file, such as [queues.NAME].
NAMED: tuple[Key, ...] = (("queues",), ("tasks",), ("tickets", "gates"), ("schedules",), ("models",))


def options(
    queues: Iterable[str],
    tasks: Iterable[str],
    gates: Iterable[str] = (),
    schedules: Iterable[str] = (),
    models: Iterable[str] = (),
) -> dict[Key, Option]:
    """Every option there is when these queues, tasks, gates, schedules and models exist, in order of declaration."""
    names = dict(zip(NAMED, map(tuple, (queues, tasks, gates, schedules, models)), strict=True))
    return {option.key: option for option in _options((), Config, names)}


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
            yield Option(key, field.type, type_info(field.type), _default(field))


def _default(field: msgspec.structs.FieldInfo) -> object:
    is_made = field.default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT
    return field.default_factory() if is_made else field.default


def value_at(config: Config, key: Key) -> object:
    """The value of an option; `msgspec.UNSET` when it belongs to a queue or task that is not there."""
    value: Any = config
    for step in key:
        value = value.get(step, msgspec.UNSET) if isinstance(value, dict) else getattr(value, step, msgspec.UNSET)
    return value


def is_marked(kind: Type, mark: Literal["reload", "secret"]) -> bool:
    return isinstance(kind, Metadata) and bool((kind.extra or {}).get(mark))


def is_list(kind: Type) -> bool:
    """Or a table: what JSON writes, in a variable."""
    return isinstance(bare(kind), (VarTupleType, DictType))


def bare(kind: Type) -> Type:
    """The type without its `Meta` annotations."""
    return bare(kind.type) if isinstance(kind, Metadata) else kind


def expectation(kind: Type) -> str:
    """What a value of this type must be, to follow `server.port must be` in an error."""
    if isinstance(kind, Metadata):
        description = (kind.extra_json_schema or {}).get("description")
        return str(description) if description else expectation(kind.type)
    if isinstance(kind, UnionType):
        return expectation(next(choice for choice in kind.types if not isinstance(choice, NoneType)))
    if isinstance(kind, DictType):
        return "a table"
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
