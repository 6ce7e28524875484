"""The HTTP application: the table of all routes, and nothing that knows how one does its work.

A path without parameters is looked up in a dictionary and its endpoint called. Starlette gets the rest: paths with
parameters, HEAD, and what is not found. Its layers around an endpoint (errors, exceptions, router, route) take 35 us of
CPU for each request, and an endpoint answers all its errors itself.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette

from jobd.http import (
    administration,
    board,
    bulk,
    dead_letters,
    events,
    groups,
    health,
    job_batch,
    jobs,
    lease_holders,
    limits,
    metrics,
    page,
    problems,
    queues,
    result,
    rollups,
    schedules,
    schemas,
    session,
    tasks,
    ticket_decisions,
    ticket_events,
    tickets,
    worker_batches,
    worker_claim,
    worker_events,
    worker_heartbeat,
    worker_reports,
)
from jobd.http.descriptions import with_descriptions
from jobd.http.endpoint import Endpoint, ServedEndpoint
from jobd.http.openai import batches, chat, completions, embeddings, files, responses
from jobd.http.openai import models as openai_models

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import Receive, Scope, Send

    from jobd.http.services import Services

#: All routes. Starlette tries those with parameters in this order, so those called most often come first.
ENDPOINTS: tuple[Endpoint, ...] = with_descriptions(
    (
        *jobs.ENDPOINTS,
        *job_batch.ENDPOINTS,
        *bulk.ENDPOINTS,
        *worker_heartbeat.ENDPOINTS,
        *worker_claim.ENDPOINTS,
        *worker_batches.ENDPOINTS,
        *worker_reports.ENDPOINTS,
        *worker_events.ENDPOINTS,
        *result.ENDPOINTS,
        *events.ENDPOINTS,
        *groups.ENDPOINTS,
        *queues.ENDPOINTS,
        *limits.ENDPOINTS,
        *rollups.ENDPOINTS,
        *files.ENDPOINTS,
        *batches.ENDPOINTS,
        *tasks.ENDPOINTS,
        *board.ENDPOINTS,
        *lease_holders.ENDPOINTS,
        *dead_letters.ENDPOINTS,
        *tickets.ENDPOINTS,
        *ticket_decisions.ENDPOINTS,
        *ticket_events.ENDPOINTS,
        *schedules.ENDPOINTS,
        *administration.ENDPOINTS,
        *chat.ENDPOINTS,
        *completions.ENDPOINTS,
        *embeddings.ENDPOINTS,
        *responses.ENDPOINTS,
        *openai_models.ENDPOINTS,
        *schemas.ENDPOINTS,
        *session.ENDPOINTS,
        *health.ENDPOINTS,
        *metrics.ENDPOINTS,
        *page.ENDPOINTS,
    )
)


class Application(Starlette):
    def __init__(self, endpoints: Sequence[Endpoint], services: Services) -> None:
        served = [ServedEndpoint(endpoint, services) for endpoint in endpoints]
        super().__init__(
            routes=[endpoint.route() for endpoint in served],
            exception_handlers=problems.HANDLERS,
            lifespan=self._serving,
        )
        self._services = services
        self.router.redirect_slashes = False  # a path with a slash too many is no path here, whatever else is there
        self._by_path = {(endpoint.method, endpoint.path): endpoint for endpoint in served if "{" not in endpoint.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._by_path.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if endpoint is None:
            await super().__call__(scope, receive, send)
        else:
            scope["app"] = self
            await endpoint(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _serving(self, _: Starlette) -> AsyncIterator[None]:
        """What goes on beside the requests."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._services.mirror.run)
            tasks.start_soon(self._services.call_readers.run)
            yield
            tasks.cancel_scope.cancel()


def build_app(services: Services) -> Starlette:
    return Application(ENDPOINTS, services)
