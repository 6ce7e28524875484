"""Waits for the end of a job: notified by the commit that ends it, or by a poll.

The tailer has the follower before the job is read (or made), so its end cannot be missed in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from jobd.http.answers import read_whole
from jobd.http.hang_up import while_wanted
from jobd.job.status import FINAL_STATUSES

if TYPE_CHECKING:
    from uuid import UUID

    from starlette.requests import Request

    from jobd.follow.followers import Follower
    from jobd.http.endpoint import Call
    from jobd.job.history import Cursor
    from jobd.lifecycle.read import WholeJob


async def read_when_final(call: Call, job_id: UUID, wait_s: float) -> WholeJob:
    """The job as it stands, if it is final; otherwise when it is, or after `wait_s`."""
    if not wait_s:
        return await read_whole(call, job_id)
    with call.services.tailer.waiting(job_id) as waiter:
        whole = await read_whole(call, job_id)
        if whole.job.status in FINAL_STATUSES:
            return whole
        await wait_for_end(call.request, waiter, wait_s)
        return await read_whole(call, job_id)


async def wait_for_end(request: Request, waiter: Follower[Cursor], wait_s: float) -> None:
    """Return when the job is final, after `wait_s`, when the client disconnects, or when the gateway stops."""
    async with while_wanted(request.app.state.in_flight, request.receive):
        with anyio.move_on_after(wait_s):
            while not waiter.is_over:
                await waiter.next(wait_s)
