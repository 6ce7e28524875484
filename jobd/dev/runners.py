"""Runners that can be exchanged while their jobs run, and that say on the terminal how each job ended.

All runners of one load of the code are a generation. A job that has begun belongs to its generation to the end; a
generation that was replaced is closed when its last job has ended.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import anyio

from jobd.host.logs import job_fields
from jobd.tasks.runner import Runner, Snoozed, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.tasks.runner import Context

log = logging.getLogger(__name__)


class Generation:
    def __init__(self, runners: Mapping[str, Runner]) -> None:
        self.runners = runners
        #: Jobs that have begun and of which something still runs.
        self.jobs: set[Context] = set()

    async def close(self) -> None:
        for runner in self.runners.values():
            await runner.close()


class ExchangedRunner(Runner):
    """The runner of one task, as slots and HTTP see it."""

    def __init__(self, name: str, generation: Generation) -> None:
        self._name = name
        self._generation = generation
        #: Of jobs that were stopped, until nothing of them runs any more.
        self._stopped: dict[Context, Generation] = {}

    @property
    def _runner(self) -> Runner:
        return self._generation.runners[self._name]

    def exchange(self, generation: Generation) -> None:
        self._generation = generation

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        generation, began_at = self._generation, time.monotonic()
        generation.jobs.add(context)
        try:
            result = await generation.runners[self._name].run(payload, context)
        except anyio.get_cancelled_exc_class():
            self._stopped[context] = generation
            _tell(context, "stopped", began_at)
            raise
        except Snoozed as snoozed:
            generation.jobs.discard(context)
            _tell(context, f"put off for {snoozed.delay_s:g} s", began_at)
            raise
        except BaseException as error:
            generation.jobs.discard(context)
            _tell(context, "failed", began_at, error)
            raise
        generation.jobs.discard(context)
        _tell(context, "done", began_at)
        return result

    async def gone(self, context: Context) -> None:
        generation = self._stopped.get(context)
        if generation is None:
            return
        await generation.runners[self._name].gone(context)
        generation.jobs.discard(context)
        self._stopped.pop(context, None)

    def check(self, payload: Mapping[str, Any]) -> None:
        self._runner.check(payload)

    def schema(self) -> dict[str, Any] | None:
        return self._runner.schema()

    async def close(self) -> None:
        await self._runner.close()


def _tell(context: Context, how: str, began_at: float, error: BaseException | None = None) -> None:
    """Neither payload nor result: they may hold secrets. A failure that was meant needs no stack."""
    is_meant = isinstance(error, TaskFailed)
    log.log(
        logging.INFO if error is None else logging.WARNING,
        "%s %s after %.2f s%s",
        context.task,
        how,
        time.monotonic() - began_at,
        f": {error.code}: {error.message}" if isinstance(error, TaskFailed) else "",
        extra=job_fields(context.job_id, context.attempt),
        exc_info=None if is_meant else error,
    )
