"""Which jobd a command talks to: its options, its token, and a client of it.

The token comes from a file or from JOBD_TOKEN and is no option here: other users of the machine could read it in the
list of processes. Only `jobd worker` has `--token`, and its help warns of that.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds for which a command tries to reach a jobd that is away; a restart of jobd takes less.
PATIENCE_S = 3.0


class CliTarget(NamedTuple):
    url: str
    #: None: the client takes JOBD_TOKEN, if that is set.
    token: str | None

    def __repr__(self) -> str:
        return f"<CliTarget {self.url}>"


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say which jobd is meant, and hands the command its target."""

    @functools.wraps(command)
    def with_target(
        url: str | None, token_file: str | None, file: str | None, data_dir: str | None, **rest: Any
    ) -> None:
        command(cli_target_of(url, token_file, file, data_dir), **rest)

    for option in (
        click.option("--data-dir", metavar="DIR", help="The jobd of this data directory (default: of the usual one)."),
        click.option("--config", "file", metavar="FILE", help="The jobd of this configuration."),
        click.option("--token-file", metavar="FILE", help="Holds the token (default: JOBD_TOKEN)."),
        click.option("--url", metavar="URL", help="http://host:port or unix:///path (default: JOBD_URL)."),
    ):
        with_target = option(with_target)
    return with_target


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but hands the command a client."""

    @functools.wraps(command)
    def with_client(target: CliTarget, **rest: Any) -> None:
        from jobd import Client  # not needed for --help

        with Client(target.url, target.token, patience_s=PATIENCE_S) as client:
            command(client, **rest)

    return target_options(with_client)


def cli_target_of(url: str | None, token_file: str | None, file: str | None, data_dir: str | None) -> CliTarget:
    return CliTarget(url or url_of(file, data_dir), read_token(token_file))


def url_of(file: str | None, data_dir: str | None) -> str:
    """What was named on the command line, else JOBD_URL, else the jobd that keeps its data in the usual place."""
    named = file is not None or data_dir is not None
    if not named and (variable := os.environ.get("JOBD_URL")):
        return variable
    from jobd.config import load as config_load
    from jobd.host.account import server_account
    from jobd.host.data_dir import DataDir

    flags = {"data_dir": data_dir}
    loaded = config_load.load(Path(file) if file is not None else None, os.environ, flags)
    return DataDir(Path(loaded.config.data_dir), server_account()).read_addresses().JOBD_URL


def read_token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        token = Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text file"
        raise click.BadParameter(f"{file}: {why}", param_hint="--token-file") from None
    if not token:
        raise click.BadParameter(f"{file} is empty; `jobd token create` makes a token", param_hint="--token-file")
    return token
