"""Who may call what: every route with every kind of token, made from the table of routes itself."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest

from jobd.auth.doorkeeper import RouteScope
from jobd.auth.token import new_token
from jobd.config.model import Scope
from jobd.http.app import ENDPOINTS, build_app
from tests.support.daemon import Jobd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.http.endpoint import Endpoint

SCOPES = get_args(Scope)
TOKENS = {scope: new_token() for scope in SCOPES}
#: All that anyone may see of a jobd that has tokens: whether it is up, and what is the same for every jobd.
PUBLIC = {"/livez", "/readyz", "/v1/session"}
DOCUMENTS = {"/docs", "/docs/viewer.css", "/docs/viewer.js", "/openapi.json", "/problems"}
PAGE = {"/", *(f"/page/{name}" for name in ("app.css", "app.js", "rooms.js", "icon.svg", "manifest.webmanifest"))}

CELLS = [(endpoint, scope) for endpoint in ENDPOINTS for scope in (*SCOPES, "none", "unknown")]


def cell_name(cell: Any) -> str:
    return cell if isinstance(cell, str) else f"{cell.method} {cell.path}"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Jobd]:
    tokens = [{"name": scope, "sha256": token.sha256.hex(), "scopes": [scope]} for scope, token in TOKENS.items()]
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    daemon = Jobd(folder / "data", JOBD_AUTH_TOKENS=json.dumps(tokens), JOBD_QUEUES_DEFAULT_SLOTS="0")
    try:
        yield daemon.start().until_ready()
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


def status_of(daemon: Jobd, endpoint: Endpoint, scope: str) -> int:
    """What a call gets that says nothing sensible; a stream is left after its head."""
    headers = {"Content-Type": "application/json"}
    if scope != "none":
        token = TOKENS[scope] if scope in TOKENS else new_token()
        headers["Authorization"] = f"Bearer {token.text}"
    connection = http.client.HTTPConnection(daemon.address, timeout=10)
    try:
        body = b"{" if endpoint.method == "POST" else None
        connection.request(endpoint.method, re.sub(r"\{\w+(:\w+)?\}", "0", endpoint.path), body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def expected(endpoint: Endpoint, scope: str) -> set[int]:
    """The statuses that show that the call was refused, or all that it may have; none if it must not be refused."""
    if (endpoint.method, endpoint.path, scope) == ("GET", "/v1/session", "unknown"):
        return {200, 429}  # it says that nobody is logged in, and counts bad tokens
    if endpoint.scope == "public":
        return set()
    if scope == "read" and endpoint.scope == "client" and endpoint.method == "GET":
        return set()
    if scope == "none":
        return {401}
    if scope == "unknown":
        return {401, 429}
    return set() if scope in (endpoint.scope, "admin") else {403}


@pytest.mark.parametrize(("endpoint", "scope"), CELLS, ids=cell_name)
def test_route_asks_for_its_scope(daemon: Jobd, endpoint: Endpoint, scope: str) -> None:
    status = status_of(daemon, endpoint, scope)

    if refusals := expected(endpoint, scope):
        assert status in refusals
    else:
        assert status not in (401, 403, 404, 405, 429, 500) or (status == 404 and "{" in endpoint.path)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=cell_name)
def test_route_declares_a_scope_that_there_is(endpoint: Endpoint) -> None:
    assert endpoint.scope in get_args(RouteScope)


def test_only_health_and_documents_are_public() -> None:
    public = {endpoint.path for endpoint in ENDPOINTS if endpoint.scope == "public"}

    assert PUBLIC <= public <= PUBLIC | DOCUMENTS | PAGE


def test_public_routes_other_than_login_only_read() -> None:
    public = [endpoint for endpoint in ENDPOINTS if endpoint.scope == "public" and endpoint.path != "/v1/session"]

    assert {endpoint.method for endpoint in public} == {"GET"}


def test_workers_routes_are_for_workers_and_no_others_are() -> None:
    for endpoint in ENDPOINTS:
        assert (endpoint.scope == "worker") == endpoint.path.startswith("/internal/worker/"), endpoint.path


def test_application_has_no_route_beside_the_table() -> None:
    routes = cast("list[Any]", build_app(cast("Any", None)).routes)

    served = {(route.path, method) for route in routes for method in route.methods - {"HEAD"}}

    assert served == {(endpoint.path, endpoint.method) for endpoint in ENDPOINTS}
