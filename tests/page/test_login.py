"""Signing in as a person meets it: the form, a wrong token, a session that ends while one types, one-time codes, and
what a token that may only read gets to see."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from jobd.auth.sessions import create_login_code
from jobd.auth.token import new_token
from jobd.store.postgres import connect
from tests.page.browser import Tab, sign_in
from tests.page.test_rooms import ROOMS, open_room
from tests.support.daemon import Jobd
from tests.support.http import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    OpenTab = Callable[..., Tab]

ADMIN, CLIENT, READER = new_token(), new_token(), new_token()
TOKENS = {"ann": (ADMIN, "admin"), "bob": (CLIENT, "client"), "eve": (READER, "read")}
#: Chromium writes every refusal into the console.
REFUSED = "Failed to load resource: the server responded with a status of 401"
CONFIG = """
[queues.default]
slots = 0
[tickets]
enabled = false
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobd]:
    folder: Path = tmp_path_factory.mktemp("login")
    (folder / "jobd.toml").write_text(CONFIG)
    tokens = [
        {"name": name, "sha256": token.sha256.hex(), "scopes": [scope]} for name, (token, scope) in TOKENS.items()
    ]
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml"), JOBD_AUTH_TOKENS=json.dumps(tokens))
    try:
        yield daemon.start().until_ready()
    finally:
        daemon.clean_up()


@pytest.fixture
def api(daemon: Jobd) -> Api:
    return Api(daemon.address, {"Authorization": f"Bearer {ADMIN.text}"})


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """In a thread of its own: playwright's event loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


def login_code(daemon: Jobd) -> str:
    async def create() -> str:
        connection = await connect(daemon.addresses["DATABASE_URL"])
        try:
            return await create_login_code(connection, "test")
        finally:
            await connection.close()

    code: str = run(create)
    return code


def end_sessions(opened: Tab, daemon: Jobd) -> None:
    """As if all were signed out elsewhere, or half a day had passed."""
    (cookie,) = (one for one in opened.page.context.cookies() if one["name"] == "jobd_session")
    sent = {"Cookie": f"jobd_session={cookie['value']}", "Origin": f"http://{daemon.address}"}
    assert Api(daemon.address)("DELETE", "/v1/session", headers=sent).status == 200


def signed_in(tab: OpenTab, daemon: Jobd, token: str, path: str = "/") -> tuple[Tab, Page]:
    opened = tab(daemon.address)
    opened.allowed = REFUSED
    page = opened.open(path)
    sign_in(page, token)
    return opened, page


def test_page_asks_for_a_token_says_when_it_is_wrong_and_lets_the_right_one_in(daemon: Jobd, tab: OpenTab) -> None:
    opened = tab(daemon.address)
    opened.allowed = REFUSED
    page = opened.open("/?view=tickets")
    form = page.get_by_role("dialog", name="Sign in")
    expect(form).to_contain_text("asks who you are")
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)

    page.keyboard.press("Escape")
    form.get_by_label("Token").fill("jobd_wrong")
    form.get_by_role("button", name="Sign in").click()
    expect(form.get_by_role("alert")).to_contain_text("this token is not known")
    sign_in(page, CLIENT.text)

    expect(page.get_by_role("heading", name="Tickets")).to_be_visible()
    expect(page.get_by_role("button", name="Sign out bob")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Tickets")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_session_that_ends_in_the_middle_loses_nothing_and_the_call_goes_on(
    daemon: Jobd, api: Api, tab: OpenTab
) -> None:
    opened, page = signed_in(tab, daemon, CLIENT.text, "/?view=ticket_form")
    page.get_by_label("Title").fill("Typed for an hour")
    page.get_by_label("Acceptance criteria").fill("all of it")

    end_sessions(opened, daemon)
    page.get_by_role("button", name="Write it").click()
    expect(page.get_by_role("dialog", name="Sign in")).to_contain_text("Your session is over")
    expect(page.get_by_label("Title")).to_have_value("Typed for an hour")
    sign_in(page, CLIENT.text)

    expect(page.get_by_role("heading", name="Typed for an hour")).to_be_visible()
    made = [one for one in api("GET", "/v1/tickets").json["tickets"] if one["title"] == "Typed for an hour"]
    assert [(one["created_by"], one["acceptance_criteria"]) for one in made] == [("bob", ["all of it"])]


def test_page_follows_events_again_after_a_session_was_renewed(daemon: Jobd, api: Api, tab: OpenTab) -> None:
    made = api("POST", "/v1/tickets", {"title": "Watched", "task": "chat", "payload": {}}).json["ticket_id"]
    opened, page = signed_in(tab, daemon, CLIENT.text, f"/?view=ticket&id={made}")
    opened.allowed = f"{REFUSED}|ERR_INCOMPLETE_CHUNKED_ENCODING"  # jobd cuts the stream with the session
    expect(page.get_by_role("heading", name="Watched")).to_be_visible()

    end_sessions(opened, daemon)
    sign_in(page, CLIENT.text)  # the stream ends with its session, and the next load asks
    api("PATCH", f"/v1/tickets/{made}", {"title": "Watched again"})

    expect(page.get_by_role("heading", name="Watched again")).to_be_visible()


def test_sign_out_ends_the_session_and_asks_again(daemon: Jobd, tab: OpenTab) -> None:
    opened, page = signed_in(tab, daemon, CLIENT.text)

    page.get_by_role("button", name="Sign out bob").click()

    expect(page.get_by_role("dialog", name="Sign in")).to_be_visible()
    assert [one for one in opened.page.context.cookies() if one["name"] == "jobd_session"] == []


def test_code_in_the_fragment_signs_in_once_and_leaves_the_address(daemon: Jobd, tab: OpenTab) -> None:
    code, opened = login_code(daemon), tab(daemon.address)
    opened.allowed = REFUSED
    asked: list[str] = []
    opened.page.on("request", lambda request: asked.append(request.url))

    page = opened.open(f"/?view=workers#login={code}")

    expect(page.get_by_role("heading", name="Workers")).to_be_visible()
    expect(page.get_by_role("button", name="Sign out local")).to_be_visible()
    assert page.url == f"http://{daemon.address}/?view=workers"
    assert [url for url in asked if code in url] == []
    assert code not in daemon.log()
    other = tab(daemon.address)
    other.allowed = REFUSED
    again = other.open(f"/#login={code}")
    expect(again.get_by_role("dialog", name="Sign in").get_by_role("alert")).to_contain_text("was used")
    assert code not in again.url


def test_code_that_is_opened_in_a_tab_with_the_page_signs_in_too(daemon: Jobd, tab: OpenTab) -> None:
    opened = tab(daemon.address)
    opened.allowed = REFUSED
    page = opened.open("/")
    expect(page.get_by_role("dialog", name="Sign in")).to_be_visible()

    page.goto(f"http://{daemon.address}/#login={login_code(daemon)}")

    expect(page.get_by_role("button", name="Sign out local")).to_be_visible()
    assert "#" not in page.url


@pytest.fixture(scope="module")
def shown(daemon: Jobd) -> dict[str, str]:
    api = Api(daemon.address, {"Authorization": f"Bearer {ADMIN.text}"})
    job_id = api("POST", "/v1/jobs", {"task": "chat", "payload": {}}).json["job_id"]
    ticket = api("POST", "/v1/tickets", {"title": "For all to see", "task": "chat", "payload": {}}).json
    return {"job": job_id, "ticket": ticket["ticket_id"]}


#: What a button may be called for one who may only read: to look, to leave, and to choose what is shown.
HARMLESS = re.compile(r"Sign out|watch|More|Column|New |To do|In progress|Blocked|Done|Search|older|Older|Copy|Follow")


@pytest.mark.parametrize("name", ROOMS)
def test_token_that_may_only_read_sees_no_button_that_changes_anything(
    daemon: Jobd, tab: OpenTab, shown: dict[str, str], name: str
) -> None:
    opened = tab(daemon.address)
    opened.allowed = REFUSED
    page = opened.open("/")
    sign_in(page, READER.text)
    page.goto(f"http://{daemon.address}/?view={name}" + (f"&id={shown[name]}" if name in shown else ""))
    expect(page.get_by_role("button", name="Sign out eve")).to_be_visible()
    page.wait_for_load_state("load")
    expect(page.get_by_text("Asking jobd…")).to_have_count(0)

    buttons = [one.inner_text() for one in page.get_by_role("button").all()]
    assert [text for text in buttons if not HARMLESS.match(text)] == []
    assert page.locator("main form").count() == 0 or name == "jobs"  # a search box changes nothing
    assert page.get_by_role("link", name=re.compile("New ticket|Edit|Submit|New job")).count() == 0


def test_rooms_of_administrators_are_listed_for_them_only(daemon: Jobd, tab: OpenTab) -> None:
    listed = {}
    for name, (token, _) in TOKENS.items():
        _, page = signed_in(tab, daemon, token.text)
        expect(page.get_by_role("button", name=f"Sign out {name}")).to_be_visible()
        listed[name] = {"Configuration", "Audit"} & {*page.locator(".rooms a").all_inner_texts()}

    assert listed == {"ann": {"Configuration", "Audit"}, "bob": set(), "eve": set()}


def test_reader_can_look_at_every_room_that_is_listed(daemon: Jobd, tab: OpenTab, shown: dict[str, str]) -> None:
    opened, page = signed_in(tab, daemon, READER.text)
    expect(page.get_by_role("button", name="Sign out eve")).to_be_visible()
    names = [re.sub(r".*view=", "", link.get_attribute("href") or "") for link in page.locator(".rooms a").all()]

    for name in names:
        page = open_room(opened, "overview" if name == "./" else name, shown)
        expect(page.locator("main .problem")).to_have_count(0)
