"""`/livez`: the loop turns. `/readyz`: every service by name; 503 while starting, mending or draining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from jobd.http.endpoint import Call, get, json_answer

if TYPE_CHECKING:
    from starlette.responses import Response


class Liveness(msgspec.Struct, frozen=True):
    status: str = "alive"


class Readiness(msgspec.Struct, frozen=True):
    #: ready, degraded (Redis, or something else that is not needed, is away: jobs run), starting or draining
    status: str
    #: name of the service: waiting, starting, ready, stopped; or, of what one node does for all, standing by (another
    #: node does it) or no leader (another one did, and does not answer)
    services: dict[str, str]
    #: Age of the oldest change that is not in Redis yet, in seconds; null: another node writes to Redis, or none can.
    relay_lag_s: float | None


async def livez(call: Call) -> Response:
    return json_answer(Liveness())


async def readyz(call: Call) -> Response:
    supervisor = call.services.supervisor
    ready = supervisor.is_ready()
    if ready:
        status = "degraded" if supervisor.is_degraded() else "ready"
    else:
        status = "draining" if supervisor.draining else "starting"
    lag_s = call.services.relay_lag_s()
    readiness = Readiness(status, supervisor.notes(), None if lag_s is None else round(lag_s, 3))
    return json_answer(readiness, 200 if ready else 503)


ENDPOINTS = (
    get("/livez", "public", livez, "Whether the process turns", answers={200: Liveness}),
    get("/readyz", "public", readyz, "Whether each service is up", answers={200: Readiness, 503: Readiness}),
)
