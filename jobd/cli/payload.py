"""The payload of a job from the command line: JSON, a file, standard input, and single values on top of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click
import msgspec
from msgspec import Raw

if TYPE_CHECKING:
    from collections.abc import Sequence

_SET = re.compile(r"(?P<key>[^=]+?)(?P<sign>:=|=)(?P<value>.*)", re.DOTALL)


def read_payload(ctx: click.Context, parameter: click.Parameter, text: str) -> Raw:
    """The JSON as it was written; that it is an object is known here, the rest jobd checks."""
    if ctx.resilient_parsing:  # somebody presses Tab: nothing is read for that
        return Raw(b"{}")
    try:
        if text == "-":
            raw = sys.stdin.buffer.read()
        else:
            raw = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode("utf-8", "surrogateescape")
        is_object = isinstance(msgspec.json.decode(raw), dict)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, not UTF-8, no such path
        raise click.BadParameter(f"cannot be read: {_why(error)}") from None
    if not is_object:
        raise click.BadParameter("""must be a JSON object, as in '{"text": "hello"}'""")
    return Raw(raw.strip())


def read_values(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, Raw]:
    """`key=text`, `key=@file` for the text of a file, `key:=JSON` for anything that is no text."""
    return {} if ctx.resilient_parsing else dict(map(_value, texts))


def _value(text: str) -> tuple[str, Raw]:
    match = _SET.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!a} must be like text=hello, text=@file or count:=5")
    key, value = match["key"], match["value"]
    try:
        if match["sign"] == ":=":
            raw = value.encode("utf-8", "surrogateescape")
            msgspec.json.decode(raw)
            return key, Raw(raw.strip())
        words = Path(value[1:]).read_text("utf-8") if value.startswith("@") else value
        return key, Raw(msgspec.json.encode(words))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, not UTF-8, no such path
        raise click.BadParameter(f"the value of {key!a} cannot be read: {_why(error)}") from None


def _why(error: Exception) -> object:
    return error.strerror or error if isinstance(error, OSError) else error


def merged(payload: Raw, values: dict[str, Raw]) -> Raw:
    """The payload with the values in it; as it was written, if there are none."""
    if not values:
        return payload
    return Raw(msgspec.json.encode({**msgspec.json.decode(payload, type=dict[str, Raw]), **values}))


def read_labels(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """`name=value`, each name once."""
    labels: dict[str, str] = {}
    for text in () if ctx.resilient_parsing else texts:
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise click.BadParameter(f"{text!a} must be like team=vision")
        if name in labels:
            raise click.BadParameter(f"label {name!a} was given twice; a job has one value for a name")
        labels[name] = value
    return labels


def read_id(ctx: click.Context, parameter: click.Parameter, text: str | None) -> UUID | None:
    return None if text is None or ctx.resilient_parsing else _id(text)


def read_ids(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> list[UUID]:
    return [] if ctx.resilient_parsing else [_id(text) for text in texts]


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise click.BadParameter(f"{text!a} is no id; `jobd list` shows those of jobs") from None
