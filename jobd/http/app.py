"""The HTTP application: the table of all routes, and nothing that knows how one does its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette

from jobd.http import (
    dead_letters,
    events,
    health,
    job_batch,
    jobs,
    lease_holders,
    problems,
    queues,
    result,
    schemas,
    tasks,
    ticket_decisions,
    ticket_events,
    tickets,
    worker_claim,
    worker_events,
    worker_heartbeat,
    worker_reports,
)
from jobd.http.descriptions import with_descriptions
from jobd.http.endpoint import Endpoint, routes

if TYPE_CHECKING:
    from jobd.http.services import Services

#: All routes. Starlette tries them in this order, so those called most often come first.
ENDPOINTS: tuple[Endpoint, ...] = with_descriptions(
    (
        *jobs.ENDPOINTS,
        *job_batch.ENDPOINTS,
        *worker_heartbeat.ENDPOINTS,
        *worker_claim.ENDPOINTS,
        *worker_reports.ENDPOINTS,
        *worker_events.ENDPOINTS,
        *result.ENDPOINTS,
        *events.ENDPOINTS,
        *queues.ENDPOINTS,
        *tasks.ENDPOINTS,
        *lease_holders.ENDPOINTS,
        *dead_letters.ENDPOINTS,
        *tickets.ENDPOINTS,
        *ticket_decisions.ENDPOINTS,
        *ticket_events.ENDPOINTS,
        *schemas.ENDPOINTS,
        *health.ENDPOINTS,
    )
)


def build_app(services: Services) -> Starlette:
    app = Starlette(routes=routes(ENDPOINTS, services), exception_handlers=problems.HANDLERS)
    app.router.redirect_slashes = False  # a path with a slash too many is no path here, whatever else is there
    return app
