"""Runs a supervisor until a signal: SIGTERM and SIGINT drain, a second one stops at once, SIGHUP reloads."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import anyio

from jobd.supervise.supervisor import FLUSH_S, SERVER_STOP_S, exit_in_any_case

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.supervise.supervisor import Supervisor

#: Added to the time that a drain may take before the process is ended from a thread, for the loop's own clean-up.
EXIT_MARGIN_S = 0.5

log = logging.getLogger(__name__)


async def run_until_signal(supervisor: Supervisor, on_reload: Callable[[], None] | None = None) -> int | None:
    """Run the tree until a signal; the signal's number if it had to be sent twice.

    Without `on_reload`, SIGHUP keeps its default action.
    """
    async with anyio.create_task_group() as tasks:
        received = await tasks.start(_obey_signals, supervisor, on_reload)
        await supervisor.run()
        tasks.cancel_scope.cancel()
    return received[-1] if supervisor.hurried else None


async def _obey_signals(
    supervisor: Supervisor,
    on_reload: Callable[[], None] | None,
    *,
    task_status: anyio.abc.TaskStatus[list[int]],
) -> None:
    stops: list[int] = []
    reloads = () if on_reload is None else (signal.SIGHUP,)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *reloads) as signals:
        task_status.started(stops)
        async for number in signals:
            if number == signal.SIGHUP and on_reload is not None:
                on_reload()
                continue
            if not stops:
                log.info("%s: draining for up to %g s", number.name, supervisor.drain_s())
                exit_in_any_case(supervisor.drain_s() + FLUSH_S + SERVER_STOP_S + EXIT_MARGIN_S)
            stops.append(number)
            supervisor.stop()
