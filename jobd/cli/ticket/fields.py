"""What a ticket says, from the command line: the options that `jobd ticket new` and `edit` share, and who says it."""

from __future__ import annotations

import functools
import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Raw

from jobd.cli.payload import read_payload, read_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GATES = """sign_off, command=NAME, minimum=/score:0.8, schema=@FILE, or JSON. May be repeated."""


def read_gates(ctx: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> list[Any]:
    """Each as the API takes it; what it means is checked there."""
    if ctx.resilient_parsing:
        return []
    try:
        return [_gate(text) for text in texts]
    except (OSError, ValueError, RecursionError) as error:
        raise click.BadParameter(f"cannot be read: {error}") from None


def _gate(text: str) -> Any:
    if text.startswith(("{", "@")):
        return _json(text)
    kind, _, value = text.partition("=")
    if kind == "sign_off" and not value:
        return {"type": kind}
    if kind == "command" and value:
        return {"type": kind, "name": value}
    if kind == "schema" and value:
        return {"type": kind, "schema": _json(value)}
    pointer, _, number = value.rpartition(":")
    if kind == "minimum" and number:
        return {"type": kind, "pointer": pointer, "value": float(number)}
    raise ValueError(f"{text!a} is no gate; one is {GATES}")


def _json(text: str) -> Any:
    return msgspec.json.decode(Path(text[1:]).read_bytes() if text.startswith("@") else text.encode())


def _payload_if_any(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Raw | None:
    return None if text is None else read_payload(ctx, parameter, text)


def field_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Hands the command `fields`: what was said, by the names of the API; and the single values for the payload."""

    @functools.wraps(command)
    def with_fields(
        criteria: Sequence[str],
        gates: list[Any],
        blocked_on: Sequence[str],
        budget: float | None,
        **rest: Any,
    ) -> None:
        names = ("title", "payload", "max_runs", "repo_ref", "base_branch")
        given = {
            **{name: rest.pop(name) for name in names},
            "acceptance_criteria": list(criteria),
            "gates": gates,
            "blocked_on": list(blocked_on),
            "budget_ms": budget and round(budget * 1000),
        }
        command(fields={name: value for name, value in given.items() if value not in (None, [])}, **rest)

    for option in (
        click.option("--base-branch", metavar="NAME", help="What its branch starts from."),
        click.option("--repo-ref", metavar="REF", help="Where its code is, as the task understands it."),
        click.option(
            *("--max-runs", "max_runs"),
            type=click.IntRange(1, 100),
            metavar="N",
            help="Runs until a failed gate blocks it (default: 1).",
        ),
        click.option(
            "--budget", type=click.FloatRange(min=0.001), metavar="S", help="Time for its job (default: the task's)."
        ),
        click.option("--blocked-on", multiple=True, metavar="TICKET", help="Has to be DONE first. May be repeated."),
        click.option("--gate", "gates", multiple=True, callback=read_gates, metavar="GATE", help=f"One of {GATES}"),
        click.option(
            *("--set", "values"),
            multiple=True,
            callback=read_values,
            metavar="KEY=TEXT",
            help="Put a text into the payload; KEY=@FILE: that of a file, KEY:=JSON: any value. May be repeated.",
        ),
        click.option("--payload", callback=_payload_if_any, metavar="JSON|@FILE|-", help="A JSON object; -: stdin."),
        click.option("--criterion", "criteria", multiple=True, metavar="TEXT", help="Has to hold. May be repeated."),
    ):
        with_fields = option(with_fields)
    return with_fields


def by_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--by",
        callback=_known_by,
        metavar="NAME",
        help="Your name (default: that of your token, or without one that of your login).",
    )(command)


def _known_by(context: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """The name for the option --by or its like; None: the server takes the name of the token."""
    has_token = context.params.get("token_file") or os.environ.get("JOBD_TOKEN")
    return name or (None if has_token else _login_name())


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise click.UsageError("nobody knows your login name here; say who you are with --by") from None
