"""Sessions of browsers: a cookie for a token, on every node and through a crash, and worth nothing to other sites."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from jobd.auth.sessions import COOKIE, LIFE_S, create_login_code, session_in
from jobd.auth.token import new_token
from jobd.store.postgres import connect
from jobd.wire.problems import ApiError
from tests.support.daemon import Jobd
from tests.support.http import Answer, Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ADMIN, READER = new_token(), new_token()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Jobd]:
    tokens = [
        {"name": "ann", "sha256": ADMIN.sha256.hex(), "scopes": ["admin"]},
        {"name": "eve", "sha256": READER.sha256.hex(), "scopes": ["read"]},
    ]
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    daemon = Jobd(folder / "data", JOBD_AUTH_TOKENS=json.dumps(tokens), JOBD_QUEUES_DEFAULT_SLOTS="0")
    try:
        yield daemon.start().until_ready()
    finally:
        daemon.clean_up()
        shutil.rmtree(folder)


@pytest.fixture
def api(daemon: Jobd) -> Api:
    return Api(daemon.address)


def log_in(api: Api, token: str = ADMIN.text, **headers: str) -> tuple[Answer, str]:
    """The answer, and the cookie as a browser sends it."""
    answer = api("POST", "/v1/session", {"token": token}, headers)
    return answer, answer.headers.get("set-cookie", "").partition(";")[0]


def own_page(api: Api, cookie: str) -> dict[str, str]:
    return {"Cookie": cookie, "Origin": f"http://{api.address}", "Sec-Fetch-Site": "same-origin"}


def test_login_sets_a_cookie_that_only_this_servers_pages_can_use(api: Api) -> None:
    answer, cookie = log_in(api)

    flags = answer.headers["set-cookie"].split("; ")[1:]
    assert set(flags) == {"Path=/", f"Max-Age={LIFE_S}", "HttpOnly", "SameSite=Strict"}
    assert ADMIN.text not in cookie
    assert ADMIN.text.encode() not in answer.body
    assert (answer.json["name"], answer.json["scopes"], answer.json["login_needed"]) == ("ann", ["admin"], True)
    assert answer.json["expires_ts"]


def test_cookie_is_secure_where_the_page_came_over_tls(api: Api) -> None:
    answer, _ = log_in(api, Origin=f"https://{api.address}")

    assert "Secure" in answer.headers["set-cookie"].split("; ")


def test_cookie_is_the_caller_and_says_who_it_is(api: Api) -> None:
    _, cookie = log_in(api)

    assert api("GET", "/v1/queues", headers={"Cookie": cookie}).status == 200
    assert api("GET", "/v1/session", headers={"Cookie": cookie}).json["name"] == "ann"


@pytest.mark.parametrize("cookie", ["", f"{COOKIE}=", f"{COOKIE}=wrong", "other=1"])
def test_session_route_never_asks_for_a_login_itself(api: Api, cookie: str) -> None:
    answer = api("GET", "/v1/session", headers={"Cookie": cookie} if cookie else {})

    assert answer.status == 200
    assert answer.json == {
        "name": None,
        "scopes": [],
        "own_jobs": False,
        "expires_ts": None,
        "login_needed": True,
    }


def test_every_login_has_a_new_secret_and_ends_the_session_it_came_with(api: Api) -> None:
    _, first = log_in(api)

    answer = api("POST", "/v1/session", {"token": ADMIN.text}, own_page(api, first))

    second = answer.headers["set-cookie"].partition(";")[0]
    assert second != first
    assert api("GET", "/v1/queues", headers={"Cookie": first}).code == "unauthorized"
    assert api("GET", "/v1/queues", headers={"Cookie": second}).status == 200


def test_secret_that_the_client_chose_becomes_no_session(api: Api) -> None:
    chosen = f"{COOKIE}=chosen-by-another"

    answer = api("POST", "/v1/session", {"token": ADMIN.text}, own_page(api, chosen))

    assert answer.headers["set-cookie"].partition(";")[0] != chosen
    assert api("GET", "/v1/queues", headers={"Cookie": chosen}).code == "unauthorized"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "no_origin"),
        ({"Sec-Fetch-Site": "same-origin"}, "no_origin"),
        ({"Origin": "null"}, "foreign_origin"),
        ({"Origin": "http://evil.example"}, "foreign_origin"),
        ({"Origin": "http://127.0.0.1:1"}, "foreign_origin"),
        ({"Origin": "OWN", "Sec-Fetch-Site": "cross-site"}, "foreign_origin"),
        ({"Origin": "OWN", "Sec-Fetch-Site": "same-origin"}, None),
        ({"Origin": "OWN"}, None),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/queues/default/resume"), ("DELETE", "/v1/session")])
def test_write_with_a_cookie_must_come_from_our_own_page(
    api: Api, method: str, path: str, headers: dict[str, str], code: str | None
) -> None:
    _, cookie = log_in(api)
    sent = {name: value.replace("OWN", f"http://{api.address}") for name, value in headers.items()}

    answer = api(method, path, headers={"Cookie": cookie, **sent})

    assert answer.code == code
    assert (answer.status == 200) is (code is None)


def test_token_counts_before_the_cookie(api: Api) -> None:
    _, cookie = log_in(api)

    answer = api("GET", "/v1/session", headers={"Cookie": cookie, "Authorization": f"Bearer {READER.text}"})

    assert answer.json["name"] == "eve"


def test_logout_ends_the_session_on_the_server(api: Api) -> None:
    _, cookie = log_in(api)

    answer = api("DELETE", "/v1/session", headers=own_page(api, cookie))

    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert api("GET", "/v1/queues", headers={"Cookie": cookie}).code == "unauthorized"


def test_session_reads_only_what_its_token_may(api: Api) -> None:
    _, cookie = log_in(api, READER.text)

    assert api("GET", "/v1/jobs", headers={"Cookie": cookie}).status == 200
    assert api("POST", "/v1/jobs", {"task": "chat", "payload": {}}, own_page(api, cookie)).code == "forbidden"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid"),
        ({"token": ADMIN.text, "code": "x"}, "invalid"),
        ({"token": 1}, "invalid"),
        ({"token": ""}, "invalid"),
        ({"password": "x"}, "invalid"),
        ([], "not_object"),
        ({"token": "wrong"}, "unauthorized"),
        ({"code": "wrong"}, "unauthorized"),
    ],
)
def test_bad_login_is_refused_and_sets_no_cookie(api: Api, body: object, code: str) -> None:
    answer = api("POST", "/v1/session", body)

    assert answer.code == code
    assert "set-cookie" not in answer.headers


async def test_login_code_works_once_and_is_local(daemon: Jobd, api: Api) -> None:
    connection = await connect(daemon.addresses["DATABASE_URL"])
    try:
        code = await create_login_code(connection, "test")
    finally:
        await connection.close()

    answers = [api("POST", "/v1/session", {"code": code}) for _ in range(2)]

    assert [answer.code for answer in answers] == [None, "unauthorized"]
    assert answers[0].json["name"] == "local"
    assert "admin" in answers[0].json["scopes"]


async def test_expired_session_and_expired_code_count_for_nothing(daemon: Jobd, api: Api) -> None:
    _, cookie = log_in(api)
    connection = await connect(daemon.addresses["DATABASE_URL"])
    try:
        code = await create_login_code(connection, "test")
        for table in ("sessions", "login_codes"):
            await connection.execute(f"UPDATE jobd.{table} SET expires_at = now() - interval '1 second'")
    finally:
        await connection.close()

    wait_until(lambda: api("GET", "/v1/session", headers={"Cookie": cookie}).json["name"] is None, daemon.log)
    assert api("POST", "/v1/session", {"code": code}).code == "unauthorized"


async def test_database_has_no_usable_secret(daemon: Jobd, api: Api) -> None:
    _, cookie = log_in(api)
    connection = await asyncpg.connect(daemon.addresses["DATABASE_URL"])
    try:
        hashes = [row["sha256"] for row in await connection.fetch("SELECT sha256 FROM jobd.sessions")]
    finally:
        await connection.close()

    assert session_in(cookie.encode()) in hashes
    assert cookie.partition("=")[2] not in daemon.log()
    assert ADMIN.text not in daemon.log()


def test_session_outlives_a_kill_of_jobd(daemon: Jobd, api: Api) -> None:
    _, cookie = log_in(api)

    daemon.kill()
    daemon.start().until_ready()

    assert Api(daemon.address)("GET", "/v1/queues", headers={"Cookie": cookie}).status == 200


def test_two_cookies_of_the_name_are_refused() -> None:
    with pytest.raises(ApiError) as raised:
        session_in(f"{COOKIE}=a; {COOKIE}=b".encode())

    assert raised.value.code == "bad_request"
