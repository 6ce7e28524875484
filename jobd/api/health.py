"""`/livez`: the loop turns. `/readyz`: every service by name; 503 while starting, mending or draining."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.requests import Request

    from jobd.supervisor import Supervisor

HEADERS = {"Cache-Control": "no-store"}


class Readiness(msgspec.Struct, frozen=True):
    #: ready, degraded (Redis is away: jobs are accepted and run all the same), starting or draining
    status: str
    #: name of the service: waiting, starting, ready or stopped
    services: dict[str, str]


async def livez(request: Request) -> Response:
    return Response(b'{"status":"alive"}', media_type="application/json", headers=HEADERS)


async def readyz(request: Request) -> Response:
    supervisor: Supervisor = request.app.state.supervisor
    ready = supervisor.is_ready()
    if ready:
        status = "degraded" if supervisor.is_degraded() else "ready"
    else:
        status = "draining" if supervisor.draining else "starting"
    body = Readiness(
        status=status,
        services={name: state.value for name, state in supervisor.states().items()},
    )
    return Response(
        msgspec.json.encode(body), status_code=200 if ready else 503, media_type="application/json", headers=HEADERS
    )
