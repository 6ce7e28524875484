"""`GET /v1/workers`: who holds leases right now (slots, HTTP workers, raw Redis workers), and on which jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from jobd.http.endpoint import Call, Parameter, get, json_answer
from jobd.http.query import read_query
from jobd.lifecycle.workers import HeldJob, Holder, list_held_jobs, list_workers
from jobd.store.leader import NODE_PREFIX
from jobd.stream.keys import RAW_OWNER_PREFIX
from jobd.wire import workers as wire
from jobd.wire.milliseconds import ms
from jobd.wire.progress import share_in

if TYPE_CHECKING:
    from starlette.responses import Response

#: Workers in an answer when the query names no limit.
PAGE = 100
PARAMETERS = (
    Parameter("limit", wire.WorkerLimit, "Largest number of workers in the answer; 100 without it."),
    Parameter("held", wire.HeldLimit, "Largest number of held jobs in the answer; none without it."),
)


async def get_workers(call: Call) -> Response:
    query = read_query(call.request, PARAMETERS)
    most_held = query.get("held", 0)
    holders, total = await list_workers(call.services.database, most=query.get("limit", PAGE))
    sees = call.principal.sees
    held = await list_held_jobs(call.services.database, most=most_held, owner=sees) if most_held else []
    workers = [_worker(holder) for holder in holders] if sees is None else []
    return json_answer(wire.Workers(workers=workers, total=total, held=[_held(job) for job in held]))


def _worker(holder: Holder) -> wire.Worker:
    return wire.Worker(
        worker_id=holder.owner_id,
        kind=kind_of(holder.owner_id),
        jobs=holder.jobs,
        oldest_lease_ts=ms(holder.oldest_lease_at),
        last_heartbeat_ts=ms(holder.heartbeat_at),
        lease_expires_ts=ms(holder.lease_expires_at),
    )


def kind_of(owner_id: str) -> Literal["slots", "http", "redis"]:
    if owner_id.startswith(RAW_OWNER_PREFIX):
        return "redis"
    return "slots" if owner_id.startswith(NODE_PREFIX) else "http"


def _held(job: HeldJob) -> wire.HeldJob:
    return wire.HeldJob(
        job_id=job.job_id,
        task=job.task,
        queue=job.queue,
        worker_id=job.owner_id,
        attempt=job.attempt_no,
        started_ts=ms(job.acquired_at),
        cancel_requested=job.cancel_requested,
        progress=None if job.data is None else share_in(msgspec.json.decode(job.data)),
        step=job.step or "",
    )


ENDPOINTS = (
    get(
        "/v1/workers",
        "client",
        get_workers,
        "Who holds jobs, and which",
        answers={200: wire.Workers},
        problems=("invalid",),
        parameters=PARAMETERS,
        own_jobs=True,
    ),
)
