"""`/openapi.json`, `/docs` and `/problems`: the API described for programs and people, the same for every jobd.

The pages need nothing from elsewhere and work offline. Their policy lets them load from and call this server only, and
run no script that stands in a page itself.
"""

from __future__ import annotations

import html
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from jobd.http.endpoint import HEADERS, JSON, Endpoint, get
from jobd.http.openapi import document
from jobd.wire.problems import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from jobd.http.endpoint import Call

HTML, CSS, SCRIPT = "text/html", "text/css", "text/javascript"
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {**HEADERS, "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}


def with_descriptions(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """The table of routes, with those that describe it and themselves."""

    @cache
    def described() -> bytes:
        return msgspec.json.encode(document(every))

    async def get_openapi(call: Call) -> Response:
        return Response(described(), media_type=JSON, headers=HEADERS)

    every = (
        *endpoints,
        get("/openapi.json", "public", get_openapi, "This document", answers={200: dict[str, msgspec.Raw]}),
        _page("/docs", get_docs, "The API as a page", HTML),
        _page("/docs/viewer.css", get_viewer_css, "Its style", CSS),
        _page("/docs/viewer.js", get_viewer_js, "Its program", SCRIPT),
        _page("/problems", get_problems, "Every problem code with what it means", HTML),
    )
    return every


def _page(path: str, handler: Any, summary: str, media_type: str) -> Endpoint:
    return get(path, "public", handler, summary, answers={200: None}, media_type=media_type)


async def get_docs(call: Call) -> Response:
    return Response(_file("docs.html"), media_type=HTML, headers=PAGE_HEADERS)


async def get_viewer_css(call: Call) -> Response:
    return Response(_file("viewer.css"), media_type=CSS, headers=PAGE_HEADERS)


async def get_viewer_js(call: Call) -> Response:
    return Response(_file("viewer.js"), media_type=SCRIPT, headers=PAGE_HEADERS)


async def get_problems(call: Call) -> Response:
    return Response(_problems(), media_type=HTML, headers=PAGE_HEADERS)


@cache
def _file(name: str) -> str:
    return files("jobd.http").joinpath("pages").joinpath(name).read_text("utf-8")


@cache
def _problems() -> str:
    rows = "\n".join(_row(code, kind.status, kind.meaning) for code, kind in sorted(CATALOGUE.items()))
    return _file("problems.html").replace("<!-- rows -->", rows)


def _row(code: str, status: int, meaning: str) -> str:
    text = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(meaning))
    return f'<tr id="{code}"><td><a href="#{code}"><code>{code}</code></a></td><td>{status}</td><td>{text}</td></tr>'
