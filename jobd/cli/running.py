"""How commands run what is asynchronous, and show that they are at it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import anyio
import click

if TYPE_CHECKING:
    from collections.abc import Callable


#: After so long a thread that computes lets the loop go on, which would else wait for five times as long at every turn.
TURN_S = 0.001


def run_async(function: Callable[..., Any], *args: object) -> Any:
    sys.setswitchinterval(TURN_S)
    try:
        return anyio.run(function, *args, backend_options={"use_uvloop": True})
    except asyncio.CancelledError:  # what a Ctrl-C becomes before Python 3.11
        raise KeyboardInterrupt from None


def show_progress(text: str) -> None:
    """On a terminal, in one line that is written over; an empty text takes it away."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)
