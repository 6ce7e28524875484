"""Waits for the end of a job, as a follower that is woken by its final event only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from jobd.http.hang_up import while_wanted
from jobd.job.history import BEYOND

if TYPE_CHECKING:
    from uuid import UUID

    from starlette.requests import Request

    from jobd.follow.jobs import Tailer


async def wait_for_job(tailer: Tailer, request: Request, job_id: UUID, wait_s: float) -> None:
    """Return when the job is final, after `wait_s`, when the client disconnects, or when the gateway stops."""
    async with while_wanted(request.app.state.in_flight, request.receive):
        with anyio.move_on_after(wait_s), tailer.following(job_id, BEYOND) as follower:
            while not follower.is_over:
                await follower.next(wait_s)
