"""Options and first steps of the commands that read a configuration; `target.py` has those that call a running jobd."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobd.config import load as config_load
from jobd.config.model import NAME_PATTERN
from jobd.host import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Loaded

json_option = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--data-dir", metavar="DIR", help="Where everything is kept (data_dir)."),
        click.option(
            "--config", "file", metavar="FILE", help="Configuration (default: ./jobd.toml, /etc/jobd/jobd.toml)."
        ),
    ):
        command = option(command)
    return command


def queue_names(ctx: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(NAME_PATTERN, name):
            raise click.BadParameter(f"{name!a} must be 1 to 64 of a-z 0-9 _ . -")
    return names


def load(file: str | None, data_dir: str | None, host: str | None = None, port: int | None = None) -> Loaded:
    flags = {"data_dir": data_dir, "server.host": host, "server.port": port}
    return config_load.load(Path(file) if file is not None else None, os.environ, flags)


def load_quietly(file: str | None, data_dir: str | None) -> Loaded:
    """For a command that prints an answer: of the log, only warnings appear beside it."""
    loaded = load(file, data_dir)
    logs.set_up("warning", loaded.config.log.format, environ=os.environ)
    return loaded


def actor() -> str:
    """The user of the command line, for the audit table."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"cli:{os.getuid()}"


def print_note(text: str) -> None:
    click.echo(f"jobd: note: {text}", err=True)
