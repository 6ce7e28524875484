"""What a person may see of the configuration: values without secrets, where each came from, what changed."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
from msgspec.inspect import DictType, StructType, Type, VarTupleType, type_info

from jobd.config.model import Config, Loaded
from jobd.config.options import bare, is_marked, options, value_at
from jobd.host.masking import HIDDEN, masked_url

#: Characters of a key or value that an error quotes.
MAX_SHOWN_CHARS = 80


class OptionRow(NamedTuple):
    key: str
    #: As TOML writes it; `unset` for None, which TOML cannot write.
    value: str
    origin: str


def rows(loaded: Loaded) -> list[OptionRow]:
    """Every option in force, in the order of declaration."""
    config = loaded.config
    return [
        OptionRow(option.dotted, _shown(value_at(config, option.key), option.kind), loaded.origins[option.dotted])
        for option in options(
            config.queues, config.tasks, config.tickets.gates, config.schedules, config.models
        ).values()
    ]


def public(config: Config) -> dict[str, Any]:
    """The whole configuration as builtins, for JSON."""
    shown: dict[str, Any] = masked(config, type_info(Config))
    return shown


class OptionChange(NamedTuple):
    key: str
    #: As in OptionRow; `unset` also where the queue or task does not exist. Two different secrets are shown alike.
    old: str
    new: str
    #: False: it takes effect at the next start only.
    reloadable: bool


def changes(old: Config, new: Config) -> list[OptionChange]:
    """What a reload would change, in the order of declaration."""
    changed = []
    gates = {**old.tickets.gates, **new.tickets.gates}
    schedules = {**old.schedules, **new.schedules}
    models = {**old.models, **new.models}
    for option in options({**old.queues, **new.queues}, {**old.tasks, **new.tasks}, gates, schedules, models).values():
        before, after = value_at(old, option.key), value_at(new, option.key)
        if before != after:
            is_reloadable = is_marked(option.kind, "reload")
            changed.append(
                OptionChange(option.dotted, _shown(before, option.kind), _shown(after, option.kind), is_reloadable)
            )
    return changed


def _shown(value: object, kind: Type) -> str:
    return "unset" if value is msgspec.UNSET or value is None else literal(masked(value, kind))


def masked(value: Any, kind: Type) -> Any:
    """The value as builtins, fit to be printed: no password, no hash of a token."""
    value, within = msgspec.to_builtins(value), bare(kind)
    if isinstance(value, str):
        return _masked_secret(value) if is_marked(kind, "secret") else masked_url(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (list, tuple)) and isinstance(within, VarTupleType):
        return [masked(item, within.item_type) for item in value]
    if isinstance(value, dict) and isinstance(within, StructType):
        return {field.name: masked(value[field.name], field.type) for field in within.fields}
    if isinstance(value, dict) and isinstance(within, DictType):
        return {name: masked(item, within.value_type) for name, item in value.items()}
    return value


def _masked_secret(text: str) -> str:
    if "://" in text:
        return masked_url(text)
    return HIDDEN if text else ""


def quoted(value: object, kind: Type) -> str:
    """A refused value for an error message: short, on one line, without secrets, whatever its type is."""
    if isinstance(value, dict):
        return cut("a table of " + ", ".join(value)) if value else "an empty table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 64:  # Python refuses to print one of some thousand digits
        return "a huge number"
    if isinstance(value, str) and isinstance(bare(kind), (StructType, VarTupleType)):
        return "text"  # where a list of tokens belongs, it might be a token
    if isinstance(value, str):
        value = masked(value, kind)
    return cut(literal(value))


def literal(value: object) -> str:
    """The value in TOML syntax, safe to print: unprintable characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isprintable() else json.dumps(value, default=str)


def cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
