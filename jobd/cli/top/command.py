"""`jobd top`: a live view of a jobd on the whole terminal.

One task polls jobd, one reads keys, one receives signals; each redraws. A jobd that is away is shown as such and tried
again for as long as the command runs; one that refuses ends it.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import click

from jobd.cli.running import run_async
from jobd.cli.target import PATIENCE_S, CliTarget, target_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.live import Live

    from jobd import AsyncClient
    from jobd.cli.top.rates import SnapshotHistory

#: Timeout of a request in seconds; after that jobd counts as away.
TIMEOUT_S = 5.0
#: Seconds between two redraws, so that the clock in the corner goes on between two snapshots.
TICK_S = 1.0
#: Keys that leave: q, Ctrl-C, Ctrl-D, Escape.
LEAVE = frozenset(b"qQ\x03\x04\x1b")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds between two snapshots.",
)
@click.option("--once", is_flag=True, help="Print one frame and end.")
@target_options
def top(target: CliTarget, interval: float, once: bool) -> None:
    """Watch a jobd live: rates, queues, running jobs with their progress, workers, dead letters. q or Ctrl-C leaves.

    The same in a browser: jobd open. For Prometheus: GET /metrics.

    \b
    Examples:
      jobd top
      jobd top --interval 0.5 --url http://jetson.local:7433
      jobd top --once
    """
    is_live = sys.stdin.isatty() and sys.stdout.isatty()
    if not once and not is_live:
        raise click.UsageError("a live view needs a terminal; --once prints one frame")
    run_async(print_once if once else Top(target, interval).run, *((target,) if once else ()))


async def print_once(target: CliTarget) -> None:
    from rich.console import Console

    from jobd.cli.top.frame import frame
    from jobd.cli.top.rates import MOST, SnapshotHistory, take_snapshot

    async with client_of(target, PATIENCE_S) as client:
        history = SnapshotHistory(target.url)
        history.add(await take_snapshot(client))
    console = Console()
    console.print(frame(history, console.width, 4 * MOST, None), crop=True)


def client_of(target: CliTarget, patience_s: float = 0.0) -> AsyncClient:
    from jobd import AsyncClient

    return AsyncClient(target.url, target.token, TIMEOUT_S, patience_s=patience_s)


class Top:
    def __init__(self, target: CliTarget, interval_s: float) -> None:
        from jobd.cli.top.rates import SnapshotHistory

        self._target = target
        self._interval_s = interval_s
        self._history: SnapshotHistory = SnapshotHistory(target.url)

    async def run(self) -> None:
        from rich.live import Live

        with (
            keys_unbuffered(sys.stdin.fileno()),
            Live(screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
        ):
            async with client_of(self._target) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(self._hear_signals, live, tasks.cancel_scope)
                tasks.start_soon(self._read_keys, tasks.cancel_scope)
                tasks.start_soon(self._tick, live)
                await self._poll(client, live)

    async def _poll(self, client: AsyncClient, live: Live) -> None:
        from jobd.cli.top.rates import take_snapshot
        from jobd.client import Unavailable

        while True:
            try:
                self._history.add(await take_snapshot(client))
            except Unavailable as error:
                self._history.fail(error)
            self._draw(live)
            await anyio.sleep(self._interval_s)

    async def _tick(self, live: Live) -> None:
        while True:
            self._draw(live)
            await anyio.sleep(TICK_S)

    async def _read_keys(self, scope: anyio.CancelScope) -> None:
        fd = sys.stdin.fileno()
        while True:
            await anyio.wait_readable(fd)
            try:
                keys = os.read(fd, 64)
            except OSError:
                keys = b""  # the terminal is gone
            is_key = len(keys) == 1 or not keys.startswith(b"\x1b")  # else it is an arrow or the like
            if not keys or (is_key and LEAVE & {*keys}):
                scope.cancel()
                return

    async def _hear_signals(self, live: Live, scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(*SIGNALS) as received:
            async for number in received:
                if number != signal.SIGWINCH:
                    scope.cancel()
                self._draw(live)

    def _draw(self, live: Live) -> None:
        from jobd.cli.top.frame import frame

        width, height = live.console.size
        live.update(frame(self._history, width, height, self._interval_s), refresh=True)


@contextmanager
def keys_unbuffered(fd: int) -> Iterator[None]:
    """Keys come one by one and unseen; Ctrl-C is a key, too, and Ctrl-Z does nothing."""
    before = termios.tcgetattr(fd)
    raw = termios.tcgetattr(fd)
    raw[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
    termios.tcsetattr(fd, termios.TCSADRAIN, raw)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
