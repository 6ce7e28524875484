"""The HTTP application: a route table, and nothing that knows how a route does its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Route

from jobd.api import health, problems

if TYPE_CHECKING:
    from jobd.supervisor import Supervisor


def build_app(supervisor: Supervisor) -> Starlette:
    app = Starlette(
        routes=[
            Route("/livez", health.livez, methods=["GET"]),
            Route("/readyz", health.readyz, methods=["GET"]),
        ],
        exception_handlers=problems.HANDLERS,
    )
    app.state.supervisor = supervisor
    return app
