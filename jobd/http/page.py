"""The web page at `/`: one HTML shell, two scripts and one style, and the manifest for the home screen of a phone.

The first script has the frame and the overview, the second one all other rooms; it comes while the first is at work.
Scripts and style are made at import from `pages/app/`, compressed once and named by their content: a browser that has
them never asks again (`immutable`), and the shell, which it always asks for, names the new ones after an upgrade. The
page calls this server only, and its policy allows no script or style inside a page.

A room of the page is one module in `pages/app/` and one entry in `ROOMS`; `pages/app/shell.js` says what is in it.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Raw
from starlette.responses import Response

from jobd.http.bundle import bundle, later_bundle
from jobd.http.descriptions import CSS, HTML, PAGE_HEADERS, SCRIPT
from jobd.http.endpoint import Parameter, get

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.http.endpoint import Call

SVG, MANIFEST = "image/svg+xml", "application/manifest+json"
#: The modules of the first screen, in the order of their script.
MODULES = (
    "dom.js",
    "words.js",
    "api.js",
    "parts.js",
    "shell.js",
    "overview.js",
    "start.js",
)
#: The modules of all other rooms, in the order of their script and of the navigation.
ROOMS = (
    "search.js",
    "jobs.js",
    "job.js",
    "submit.js",
    "tickets.js",
    "ticket.js",
    "ticket_form.js",
    "dead_letters.js",
    "schedules.js",
    "groups.js",
    "models.js",
    "batches.js",
    "limits.js",
    "workers.js",
    "board.js",
    "configuration.js",
    "audit.js",
)
#: Seconds in a year: what a name that changes with its content may be kept for.
KEPT_S = 365 * 24 * 3600
KEEP = f"public, max-age={KEPT_S}, immutable"
ASK = "no-cache"


class Asset(NamedTuple):
    """A file of the page, as it is sent."""

    media_type: str
    raw: bytes
    packed: bytes
    #: Digest of the content: the `v` of its address, and its ETag.
    version: str


def _asset(media_type: str, text: str) -> Asset:
    raw = text.encode()
    return Asset(media_type, raw, gzip.compress(raw, 9, mtime=0), hashlib.sha256(raw).hexdigest()[:16])


def _source(name: str) -> str:
    return files("jobd.http").joinpath("pages").joinpath("app").joinpath(name).read_text("utf-8")


def _tight(style: str) -> str:
    """A style sheet without comments, indentation and spaces that mean nothing."""
    lines = (line.strip() for line in re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL).splitlines())
    return re.sub(
        r";? *([{};,]) *|(?<=[a-z]): +(?=[^{}]*[;}])", lambda found: found[1] or ":", "\n".join(filter(None, lines))
    )


def _shell(versions: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: versions[name[1]], _source("index.html"))


_FIRST, _LATER = ({name: _source(name) for name in names} for names in (MODULES, ROOMS))
APP_JS = _asset(SCRIPT, bundle(_FIRST, _LATER))
ROOMS_JS = _asset(SCRIPT, later_bundle(_LATER, _FIRST, f"./app.js?v={APP_JS.version}"))
APP_CSS = _asset(CSS, _tight(_source("app.css")))
ICON = _asset(SVG, _source("icon.svg"))
MANIFEST_FILE = _asset(MANIFEST, _source("manifest.webmanifest"))
SHELL = _asset(
    HTML,
    _shell({"js": APP_JS.version, "rooms": ROOMS_JS.version, "css": APP_CSS.version, "icon": ICON.version}),
)


async def get_page(call: Call) -> Response:
    return _answer(call, SHELL)


async def get_page_script(call: Call) -> Response:
    return _answer(call, APP_JS)


async def get_page_rooms(call: Call) -> Response:
    return _answer(call, ROOMS_JS)


async def get_page_style(call: Call) -> Response:
    return _answer(call, APP_CSS)


async def get_page_icon(call: Call) -> Response:
    return _answer(call, ICON)


async def get_page_manifest(call: Call) -> Response:
    return _answer(call, MANIFEST_FILE)


def _answer(call: Call, asset: Asset) -> Response:
    """The asset; 304 for a browser that has it. Kept for good only under the version that it has."""
    request = call.request
    is_packed = _takes_gzip(request.headers.get("accept-encoding", ""))
    etag = f'"{asset.version}{"-gzip" if is_packed else ""}"'
    headers = {
        **PAGE_HEADERS,
        "Cache-Control": KEEP if request.query_params.get("v") == asset.version else ASK,
        "ETag": etag,
        "Vary": "Accept-Encoding",
    }
    if etag in re.findall(r'"[^"]*"', request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    return Response(asset.packed if is_packed else asset.raw, media_type=asset.media_type, headers=headers)


def _takes_gzip(accepted: str) -> bool:
    """Whether Accept-Encoding names gzip, or everything, with a weight other than 0."""
    weights = {}
    for part in accepted.lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = not re.fullmatch(r"\s*q=0(\.0*)?\s*", weight)
    return weights.get("gzip", weights.get("*", False))


VERSION = Parameter("v", str, "Version of the file; with the one that it has, the answer may be kept for good.")

ENDPOINTS = tuple(
    get(
        path,
        "public",
        handler,
        summary,
        answers={200: dict[str, Raw] if asset is MANIFEST_FILE else None, 304: None},
        media_type=asset.media_type,
        parameters=(VERSION,) if path != "/" else (),
    )
    for path, handler, summary, asset in (
        ("/", get_page, "The web page", SHELL),
        ("/page/app.js", get_page_script, "Its program", APP_JS),
        ("/page/rooms.js", get_page_rooms, "The part of it that the first screen does without", ROOMS_JS),
        ("/page/app.css", get_page_style, "Its style", APP_CSS),
        ("/page/icon.svg", get_page_icon, "Its icon", ICON),
        (
            "/page/manifest.webmanifest",
            get_page_manifest,
            "What a phone needs to keep it on its home screen",
            MANIFEST_FILE,
        ),
    )
)
