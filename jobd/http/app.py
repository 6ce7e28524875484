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
    problems,
    queues,
    reports,
    result,
    schemas,
    tasks,
    ticket_decisions,
    ticket_events,
    tickets,
    worker,
    worker_events,
    workers,
)
from jobd.http.descriptions import with_descriptions
from jobd.http.endpoint import Endpoint, routes

if TYPE_CHECKING:
    from jobd.http.services import Services

#: The first that fits answers, so what is called most stands first.
ENDPOINTS: tuple[Endpoint, ...] = with_descriptions(
    (
        *jobs.ENDPOINTS,
        *job_batch.ENDPOINTS,
        *worker.ENDPOINTS,
        *reports.ENDPOINTS,
        *worker_events.ENDPOINTS,
        *result.ENDPOINTS,
        *events.ENDPOINTS,
        *queues.ENDPOINTS,
        *tasks.ENDPOINTS,
        *workers.ENDPOINTS,
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
