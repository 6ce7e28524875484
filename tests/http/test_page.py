"""The web page: small, kept by browsers, from this server only, and made of modules that join soundly."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jobd
from jobd.http import page
from jobd.http.bundle import BundleError, bundle, later_bundle

if TYPE_CHECKING:
    from tests.support.http import Api

SOURCES = Path(jobd.__file__).parent / "http" / "pages" / "app"
#: Bytes of all that the first screen loads, as it is and compressed: a second over a slow line, three requests.
MAX_RAW, MAX_PACKED = 90_000, 30_000
FIRST_SCREEN = (page.SHELL, page.APP_JS, page.APP_CSS)
ASSETS = {
    "/": page.SHELL,
    "/page/app.js": page.APP_JS,
    "/page/rooms.js": page.ROOMS_JS,
    "/page/app.css": page.APP_CSS,
    "/page/icon.svg": page.ICON,
    "/page/manifest.webmanifest": page.MANIFEST_FILE,
}
PACKED = {"Accept-Encoding": "gzip"}


# What a browser gets


def test_first_screen_is_small_and_takes_three_requests() -> None:
    assert sum(len(asset.raw) for asset in FIRST_SCREEN) <= MAX_RAW
    assert sum(len(asset.packed) for asset in FIRST_SCREEN) <= MAX_PACKED
    loaded = re.findall(r'<(?:script|link rel="stylesheet")[^>]*(?:src|href)="([^"]+)"', page.SHELL.raw.decode())
    assert [name.partition("?")[0] for name in loaded] == ["page/app.css", "page/app.js"]


def test_all_other_rooms_take_one_more_request_of_that_size() -> None:
    assert len(page.ROOMS_JS.raw) <= MAX_RAW
    assert len(page.ROOMS_JS.packed) <= MAX_PACKED


@pytest.mark.parametrize("path", ASSETS)
def test_asset_is_served_to_anyone_with_the_policy(api: Api, path: str) -> None:
    answer = api("GET", path)

    assert (answer.status, answer.body) == (200, ASSETS[path].raw)
    assert answer.headers["content-type"].partition(";")[0] == ASSETS[path].media_type
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ASSETS)
def test_head_has_the_headers_and_no_body(api: Api, path: str) -> None:
    answer = api("HEAD", path)

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == str(len(ASSETS[path].raw))


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("br, gzip;q=0.8", True),
        ("GZIP", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("br", False),
        ("", False),
    ],
)
def test_asset_is_compressed_for_who_takes_it(api: Api, accepted: str, is_packed: bool) -> None:
    answer = api("GET", "/page/app.js", headers={"Accept-Encoding": accepted})

    assert answer.headers.get("content-encoding") == ("gzip" if is_packed else None)
    assert answer.headers["vary"] == "Accept-Encoding"
    assert (gzip.decompress(answer.body) if is_packed else answer.body) == page.APP_JS.raw


@pytest.mark.parametrize("path", ["/page/app.js", "/page/rooms.js", "/page/app.css", "/page/icon.svg"])
def test_only_the_version_that_it_has_is_kept_for_good(api: Api, path: str) -> None:
    own, older, none = (api("GET", path + query) for query in (f"?v={ASSETS[path].version}", "?v=older", ""))

    assert own.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert [older.headers["cache-control"], none.headers["cache-control"]] == ["no-cache", "no-cache"]
    assert own.body == older.body


def test_shell_names_the_versions_and_is_asked_for_each_time(api: Api) -> None:
    answer = api("GET", "/?view=jobs&q=status%3Aerror")

    assert answer.headers["cache-control"] == "no-cache"
    named = dict(re.findall(r'"(?:page|\.)/([\w.]+)\?v=(\w+)"', answer.body.decode()))
    assert named == {
        "app.js": page.APP_JS.version,
        "rooms.js": page.ROOMS_JS.version,
        "app.css": page.APP_CSS.version,
        "icon.svg": page.ICON.version,
    }


def test_second_script_belongs_to_the_first_one_that_the_shell_names() -> None:
    assert re.match(r'import\{[\w,]+\}from"\./app\.js\?v=(\w+)";', page.ROOMS_JS.raw.decode())[1] == page.APP_JS.version  # type: ignore[index]


@pytest.mark.parametrize("headers", [{}, PACKED])
def test_asset_that_the_browser_has_is_not_sent_again(api: Api, headers: dict[str, str]) -> None:
    etag = api("GET", "/", headers=headers).headers["etag"]

    answer = api("GET", "/", headers={**headers, "If-None-Match": f'"other", W/{etag}'})
    other = api("GET", "/", headers={**headers, "If-None-Match": '"other"'})

    assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", etag)
    assert other.status == 200


def test_compressed_and_plain_answers_have_etags_of_their_own(api: Api) -> None:
    assert api("GET", "/").headers["etag"] != api("GET", "/", headers=PACKED).headers["etag"]


def test_manifest_names_files_that_there_are(api: Api) -> None:
    manifest = json.loads(page.MANIFEST_FILE.raw)

    assert manifest["start_url"] == "../"
    assert [api("GET", f"/page/{icon['src']}").status for icon in manifest["icons"]] == [200]


# What it is made of


@pytest.mark.parametrize("name", sorted(path.name for path in SOURCES.iterdir()))
def test_source_names_no_other_host_and_writes_no_markup(name: str) -> None:
    text = (SOURCES / name).read_text("utf-8")

    hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w/.-]*", text))
    assert hosts <= {"http://www.w3.org/2000/svg"}, "the name of a namespace, which nobody loads"
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|DOMParser|srcdoc|createContextual|"
        r"sessionStorage|indexedDB|document\.cookie|@import|url\(",
        text,
    )


def test_the_name_of_the_person_is_all_that_a_browser_keeps() -> None:
    kept = [line for path in SOURCES.glob("*.js") for line in path.read_text("utf-8").splitlines() if "Storage" in line]

    assert len(kept) == 2
    assert all("localStorage" in line and "(PERSON_KEY" in line for line in kept)


def test_shell_has_no_script_or_style_inside() -> None:
    assert not re.search(r"<style|style=|<script(?! type=\"module\" src=)|\son\w+=", page.SHELL.raw.decode())


def test_every_module_is_in_one_of_the_bundles() -> None:
    assert sorted(path.name for path in SOURCES.glob("*.js")) == sorted((*page.MODULES, *page.ROOMS))


# Joining modules

ONE = "// A comment.\nexport const a = 1;\nfunction hidden() {\n  return a; // stays\n}\n"
TWO = 'import { a } from "./one.js";\n\nexport async function b() {\n  // gone\n  return a;\n}\n'


def test_modules_become_one_without_imports_comments_and_spaces() -> None:
    script = bundle({"one.js": ONE, "two.js": TWO})

    assert script == ("const a=1;\nfunction hidden(){\nreturn a;// stays\n}\nasync function b(){\nreturn a;\n}\n\n")


def test_second_bundle_imports_what_the_first_exports_for_it() -> None:
    first, later = {"one.js": ONE}, {"two.js": TWO, "three.js": 'import { b } from "./two.js";\nb();\n'}

    assert bundle(first, later) == "const a=1;\nfunction hidden(){\nreturn a;// stays\n}\nexport{a};\n"
    assert later_bundle(later, first, "./x.js") == ('import{a}from"./x.js";\nasync function b(){\nreturn a;\n}\nb();\n')


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("export const a = 2;", "two.js declares a, and so does one.js"),
        ('import { hidden } from "./one.js";', "two.js, line 1: one.js exports no hidden"),
        ('import { a } from "./three.js";', "three.js exports no a"),
        ('import * as one from "./one.js";', "write an import as"),
        ('import { a as c } from "./one.js";', "write an import as"),
        ("export { c };", "where it is declared"),
        ("export default 1;", "where it is declared"),
        ("\nconst c = `two\nlines`;", "two.js, line 2: a text in backquotes"),
    ],
)
def test_module_that_cannot_be_joined_is_refused(source: str, said: str) -> None:
    with pytest.raises(BundleError, match=re.escape(said)):
        bundle({"one.js": ONE, "two.js": source})
    with pytest.raises(BundleError, match=re.escape(said)):
        later_bundle({"two.js": source}, {"one.js": ONE}, "./x.js")
