"""What other sites may not do to the web page: frame it, write with its cookie, or choose its session; by tables.

Login itself is in test_sessions.py; what is stored and shown again in tests/page/test_stored_markup.py.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from jobd.auth.sessions import COOKIE
from jobd.auth.token import new_token
from tests.support.certificates import make_certificate
from tests.support.daemon import READY_S, Jobd
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ADMIN = new_token()
TOKENS = json.dumps([{"name": "ann", "sha256": ADMIN.sha256.hex(), "scopes": ["admin"]}])


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobd]:
    folder: Path = tmp_path_factory.mktemp("page")
    daemon = Jobd(folder / "data", JOBD_AUTH_TOKENS=TOKENS, JOBD_QUEUES_DEFAULT_SLOTS="0")
    try:
        yield daemon.start().until_ready()
    finally:
        daemon.clean_up()


@pytest.fixture
def api(daemon: Jobd) -> Api:
    return Api(daemon.address)


@pytest.fixture
def cookie(api: Api) -> str:
    """That of a person who has signed in, as the browser sends it along."""
    answer = api("POST", "/v1/session", {"token": ADMIN.text}, {"Origin": f"http://{api.address}"})
    return answer.headers["set-cookie"].partition(";")[0]


# Clickjacking


@pytest.mark.parametrize(
    "path", ["/", "/?view=tickets", "/page/app.js", "/page/rooms.js", "/page/app.css", "/docs", "/problems"]
)
def test_no_other_site_may_frame_a_page(api: Api, path: str) -> None:
    answer = api("GET", path)

    assert answer.status == 200
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == policy["object-src"] == "'none'"
    assert policy["default-src"] == "'self'"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_page_has_nothing_of_the_caller_in_it(api: Api, cookie: str) -> None:
    """What is the same for everybody can be kept by any cache, and tells nobody anything."""
    assert api("GET", "/", headers={"Cookie": cookie}).body == api("GET", "/").body


# Cross-site request forgery

OWN = "OWN"
WRITES: dict[str, tuple[str, str, Any]] = {
    "pause a queue": ("POST", "/v1/queues/default/pause", None),
    "submit a job": ("POST", "/v1/jobs", {"task": "chat", "payload": {}}),
    "cancel all jobs": ("POST", "/v1/jobs/cancel", {"all": True}),
    "run all again": ("POST", "/v1/jobs/retry", {"all": True}),
    "write a ticket": ("POST", "/v1/tickets", {"title": "a", "task": "chat", "payload": {}}),
    "log out": ("DELETE", "/v1/session", None),
}
ORIGINS: dict[str, tuple[dict[str, str], str]] = {
    "of another site": ({"Origin": "https://evil.example"}, "foreign_origin"),
    "of another port": ({"Origin": "http://127.0.0.1:1"}, "foreign_origin"),
    "of a sandbox or a file": ({"Origin": "null"}, "foreign_origin"),
    "of a host that begins like ours": ({"Origin": f"http://{OWN}.evil.example"}, "foreign_origin"),
    "of no page": ({}, "no_origin"),
    "with a referrer only": ({"Referer": f"http://{OWN}/"}, "no_origin"),
    "with a forged header of a proxy": ({"X-Forwarded-Host": "evil.example", "Referer": OWN}, "no_origin"),
    "that the browser calls cross-site": (
        {"Origin": f"http://{OWN}", "Sec-Fetch-Site": "cross-site"},
        "foreign_origin",
    ),
}


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("write", WRITES)
def test_write_with_the_cookie_is_refused(api: Api, cookie: str, write: str, origin: str) -> None:
    (method, path, body), (headers, code) = WRITES[write], ORIGINS[origin]
    sent = {name: value.replace(OWN, api.address) for name, value in headers.items()}

    answer = api(method, path, body, {"Cookie": cookie, **sent})

    assert (answer.status, answer.code) == (403, code)
    assert api("GET", "/v1/queues", headers={"Cookie": cookie}).status == 200, "still signed in"


#: What a form or a script of another site can send without asking first, were the check of the origin ever to fail.
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
@pytest.mark.parametrize("path", [path for method, path, body in WRITES.values() if body])
def test_body_that_needs_no_preflight_is_refused(api: Api, cookie: str, path: str, content_type: str) -> None:
    headers = {"Cookie": cookie, "Origin": f"http://{api.address}", "Content-Type": content_type}

    answer = api("POST", path, b'{"all": true}', headers)

    assert (answer.status, answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/session", {"X-HTTP-Method-Override": "DELETE"}),
        ("/v1/session", {"X-HTTP-Method": "DELETE"}),
        ("/v1/session", {"X-Method-Override": "DELETE"}),
        ("/v1/session?_method=DELETE", {}),
    ],
)
def test_method_is_that_of_the_request_line(api: Api, cookie: str, path: str, headers: dict[str, str]) -> None:
    answer = api("GET", path, headers={"Cookie": cookie, **headers})

    assert (answer.status, "set-cookie" in answer.headers) == (200, False)
    assert api("GET", "/v1/session", headers={"Cookie": cookie}).json["name"] == "ann"


@pytest.mark.parametrize("path", [path for method, path, _ in WRITES.values() if method == "POST"])
def test_no_get_changes_anything(api: Api, cookie: str, path: str) -> None:
    answer = api("GET", path, headers={"Cookie": cookie})

    assert answer.status in (200, 404, 405), "a list, or no such route"
    assert api("GET", "/v1/queues", headers={"Cookie": cookie}).json["queues"][0]["paused"] is False


def test_other_sites_are_told_of_no_sharing(api: Api, cookie: str) -> None:
    sent = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST", "Cookie": cookie}

    answers = [api(method, "/v1/jobs", headers=sent) for method in ("OPTIONS", "GET")]

    assert [name for answer in answers for name in answer.headers if name.startswith("access-control-")] == []


# Session fixation


@pytest.mark.parametrize("chosen", ["chosen", "a" * 43, "", "; Path=/; Domain=evil.example", "%00"])
def test_secret_of_a_session_is_never_the_one_that_was_sent(api: Api, chosen: str) -> None:
    planted = f"{COOKIE}={chosen}"

    answer = api("POST", "/v1/session", {"token": ADMIN.text}, {"Cookie": planted, "Origin": f"http://{api.address}"})

    given = answer.headers["set-cookie"].partition(";")[0]
    assert (answer.status, given != planted) == (200, True)
    assert api("GET", "/v1/queues", headers={"Cookie": planted}).code == "unauthorized"
    assert api("GET", "/v1/queues", headers={"Cookie": given}).status == 200


# Cookie flags


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_flags_of_the_cookie(jobd: Callable[..., Jobd], folder: Path, scheme: str) -> None:
    options = {"JOBD_AUTH_TOKENS": TOKENS, "JOBD_QUEUES_DEFAULT_SLOTS": "0"}
    context = None
    if scheme == "https":
        cert, key = make_certificate(folder)
        options |= {"JOBD_SERVER_TLS_CERT": str(cert), "JOBD_SERVER_TLS_KEY": str(key)}
        context = ssl.create_default_context(cafile=str(cert))
    daemon = jobd(None, **options).start()
    wait_until(lambda: _status_of(daemon, context, "GET", "/readyz")[0] == 200, daemon.log, READY_S)

    status, cookie = _status_of(daemon, context, "POST", "/v1/session", {"token": ADMIN.text})

    assert status == 200
    flags = {part.strip() for part in cookie.split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= flags
    assert ("Secure" in flags) is (scheme == "https")
    assert not any(flag.startswith("Domain") for flag in flags), "other hosts of the domain would get it"


def _status_of(
    daemon: Jobd, context: ssl.SSLContext | None, method: str, path: str, body: object = None
) -> tuple[int, str]:
    """Status and cookie of an answer; 0 while nobody answers."""
    try:
        address = daemon.addresses["JOBD_URL"].partition("://")[2]
        made = http.client.HTTPConnection(address) if context is None else _over_tls(address, context)
        with closing(made) as line:
            line.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            with line.getresponse() as answer:
                return answer.status, answer.headers.get("set-cookie", "")
    except (OSError, http.client.HTTPException, KeyError):
        return 0, ""


def _over_tls(address: str, context: ssl.SSLContext) -> http.client.HTTPConnection:
    return http.client.HTTPSConnection(address, context=context)
