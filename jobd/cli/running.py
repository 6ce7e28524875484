"""How commands run asynchronous functions, and show progress."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any

import anyio
import click

if TYPE_CHECKING:
    from collections.abc import Callable


#: GIL switch interval in seconds; CPython's default of 5 ms delays the event loop behind every CPU-bound thread.
SWITCH_INTERVAL_S = 0.001


#: Number of objects made beyond those freed at which Python searches the young ones for cycles. CPython's 700 is less
#: than one flush of jobs has, so most of what is searched is still in use; 10 000 small objects are about 1 MB.
YOUNG_OBJECTS = 10_000


def leave_start_to_itself() -> None:
    """Take all that the start has made (modules, routes, services) out of the search for cycles: it stays anyway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def run_async(function: Callable[..., Any], *args: object) -> Any:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return anyio.run(function, *args, backend_options={"use_uvloop": True})
    except asyncio.CancelledError:  # what a Ctrl-C becomes before Python 3.11
        raise KeyboardInterrupt from None


def show_progress(text: str) -> None:
    """On a terminal, in one line that is written over; an empty text takes it away."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)
