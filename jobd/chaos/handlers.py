"""The tasks of the drill. Each run is written down when it begins and when it comes to its end, in a file that no fault
touches: what was really run, not what jobd believes.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from jobd.tasks.runner import TaskFailed

if TYPE_CHECKING:
    from jobd.tasks.runner import Context

#: Environment variable with the path of the file.
RUNS_VARIABLE = "CHAOS_RUNS_FILE"
#: Seconds that a short and a long job take.
SHORT_S = 0.005
LONG_S = 1.0


def work(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Does what the kind of the job says."""
    kind = payload["kind"]
    note(ctx, "begin")
    time.sleep(LONG_S if kind == "long" else SHORT_S)
    if kind == "failing" or (kind == "retried" and ctx.attempt == 1):
        raise TaskFailed("drill", "this job is to fail")
    if kind == "fatal":
        raise TaskFailed("drill", "this job is to fail for good", retryable=False)
    note(ctx, "end")
    return {"n": payload["n"]}


def take_down(payload: dict[str, Any], ctx: Context) -> None:
    """Kills the jobd that runs it, as a handler does that uses up all memory."""
    note(ctx, "begin")
    os.kill(os.getpid(), signal.SIGKILL)


def note(ctx: Context, what: str) -> None:
    os.write(_file(), f"{what} {ctx.job_id} {ctx.attempt} {time.time():.6f}\n".encode())


@functools.cache
def _file() -> int:
    return os.open(os.environ[RUNS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
