"""Stored XSS: whatever a client or a worker can fill is shown as the text that it is, in every room.

The tab notes every dialog, violation of the policy, console error and request to another host, and fails its test then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from playwright.sync_api import expect

from jobd.auth.token import new_token
from tests.page.test_rooms import ROOMS, open_room
from tests.support.daemon import Jobd
from tests.support.http import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.page.browser import Tab

    OpenTab = Callable[..., Tab]

#: One for each field, so that it is seen which of them are shown: they end with its name.
MARKUP = "\"'><img src=x onerror=alert(1)><script>alert(2)</script><a href=javascript:alert(3)>&lt;{}"
CONFIG = """
[queues.default]
slots = 0
[tickets]
enabled = false
"""


def bad(field: str) -> str:
    return MARKUP.format(field)


class Poisoned(NamedTuple):
    daemon: Jobd
    #: Ids of the things that rooms of one thing show.
    ids: dict[str, str]


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poisoned]:
    folder: Path = tmp_path_factory.mktemp("markup")
    (folder / "jobd.toml").write_text(CONFIG)
    daemon = Jobd(folder / "data", "--config", str(folder / "jobd.toml"))
    try:
        api = Api(daemon.start().until_ready().address)
        yield Poisoned(daemon, {"ticket": _ticket(api), "job": _jobs(api)})
    finally:
        daemon.clean_up()


def _ticket(api: Api) -> str:
    ticket = {
        "title": bad("title"),
        "acceptance_criteria": [bad("criterion")],
        "task": "chat",
        "payload": {bad("payload"): bad("payload")},
        "repo_ref": bad("repo"),
        "base_branch": bad("branch"),
        "created_by": bad("by"),
    }
    made: str = api("POST", "/v1/tickets", ticket).json["ticket_id"]
    assert api("PATCH", f"/v1/tickets/{made}", {"max_runs": 2, "edited_by": bad("editor")}).status == 200
    assert api("POST", f"/v1/tickets/{made}/reject", {"by": bad("by"), "why": bad("why")}).status == 200
    return made


def _jobs(api: Api) -> str:
    """One that is held by a worker, and one that failed there."""
    job = {"task": "chat", "payload": {"prompt": bad("payload")}, "labels": {"user": bad("label")}}
    held = []
    for _ in range(2):
        assert api("POST", "/v1/jobs", job).status == 202
        claimed = {"worker_id": bad("worker"), "streams": ["jobs:stream"], "max_wait_ms": 30_000}
        found = api("POST", "/internal/worker/claim", claimed).json
        assert found.get("claimed"), found
        held.append({"worker_id": bad("worker"), **{n: found[n] for n in ("job_id", "attempt_id", "lease_token")}})
    error = {"code": bad("code"), "message": bad("message"), "stack": bad("stack"), "retryable": False}
    proof = {name: held[1][name] for name in ("worker_id", "job_id", "lease_token")}
    events = [
        {"type": "progress", "step": bad("step"), "data": {"share": 0.5, "percent": 50}},
        {"type": "log", "step": bad("log"), "data": {"message": bad("log"), "level": bad("log")}},
        {"type": "token", "step": "model", "data": {"t": bad("token"), "text": bad("token")}},
    ]
    assert api("POST", "/internal/worker/events", {**proof, "events": events}).status == 200
    assert api("POST", "/internal/worker/fail", {**held[0], "error": error}).status == 200
    assert api("POST", "/v1/jobs/cancel", {"task": "none", "owner": bad("by")}).status == 200  # into the audit log
    failed: str = held[0]["job_id"]
    return failed


#: Where a field must be seen: a field that is shown nowhere would prove nothing.
SEEN = {
    "tickets": ("title", "by", "why"),
    "ticket": ("title", "criterion", "by", "editor", "why", "repo", "branch"),
    "dead_letters": ("code", "message"),
    "workers": ("worker", "step"),
    "overview": ("step",),
    "audit": ("by",),
}


@pytest.mark.parametrize("name", ROOMS)
def test_markup_in_any_field_is_text_in_the_room(poisoned: Poisoned, tab: OpenTab, name: str) -> None:
    page = open_room(tab(poisoned.daemon.address), name, poisoned.ids)
    for summary in page.locator("main summary").all():
        summary.click()

    for field in SEEN.get(name, ()):
        expect(page.locator("main")).to_contain_text(bad(field))
    assert page.locator("main img, main script, main iframe, main [onerror], main a[href^='javascript']").count() == 0


def test_ticket_that_is_edited_has_the_markup_in_its_fields(poisoned: Poisoned, tab: OpenTab) -> None:
    api = Api(poisoned.daemon.address)
    ticket = {"title": bad("title"), "task": "chat", "payload": {}, "created_by": bad("by")}
    made = api("POST", "/v1/tickets", ticket).json["ticket_id"]
    page = tab(poisoned.daemon.address).open(f"/?view=ticket_form&id={made}")

    expect(page.get_by_label("Title")).to_have_value(bad("title"))
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("query", ["?view={}", "?view=ticket&id={}", "?view=audit&before={}", "?view=job&id={}", "#{}"])
def test_markup_in_the_address_is_no_markup(poisoned: Poisoned, tab: OpenTab, query: str) -> None:
    opened = tab(poisoned.daemon.address)
    opened.allowed = "the server responded with a status of 4"
    page = opened.open("/" + query.format("%22%3E%3Cimg%20src=x%20onerror=alert(1)%3E"))

    expect(page.get_by_role("navigation", name="Rooms")).to_be_visible()
    expect(page.locator("main h1, main .problem").first).to_be_visible()
    assert page.locator("main img").count() == 0


NAMES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/jobs", {"task": bad("task"), "payload": {}}),
    ("/v1/jobs", {"task": "chat", "payload": {}, "queue": bad("queue")}),
    ("/v1/jobs", {"task": "chat", "payload": {}, "labels": {bad("label"): "x"}}),
    ("/v1/tickets", {"title": "a", "task": bad("task"), "payload": {}, "created_by": "ann"}),
]


@pytest.mark.parametrize(("path", "body"), NAMES, ids=["task", "queue", "label", "task of a ticket"])
def test_name_of_a_task_queue_or_label_can_have_no_markup(poisoned: Poisoned, path: str, body: dict[str, Any]) -> None:
    assert Api(poisoned.daemon.address)("POST", path, body).status == 422


def test_token_of_the_page_reaches_no_address_and_no_log(jobd: Callable[..., Jobd], tab: OpenTab) -> None:
    token = new_token()
    tokens = f'[{{"name": "ann", "sha256": "{token.sha256.hex()}", "scopes": ["admin"]}}]'
    daemon = jobd(None, JOBD_AUTH_TOKENS=tokens, JOBD_LOG_LEVEL="debug").start().until_ready()
    opened = tab(daemon.address)
    opened.allowed = "status of 401"
    addresses: list[str] = []
    opened.page.on("request", lambda request: addresses.append(request.url))
    opened.page.on("framenavigated", lambda frame: addresses.append(frame.url))

    page = opened.open("/?view=tickets")
    page.get_by_label("Token").fill(token.text)
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("button", name="Sign out ann")).to_be_visible()
    page.get_by_role("navigation", name="Rooms").get_by_role("link", name="Workers").click()
    expect(page.get_by_role("heading", name="Workers", exact=True)).to_be_visible()

    (cookie,) = (one["value"] for one in page.context.cookies() if one["name"] == "jobd_session")
    secrets = [token.text, cookie or "none"]
    said = "\n".join([*addresses, page.url, page.content(), daemon.log_file.read_text()])
    assert [secret for secret in secrets if secret in said] == []
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})") == "{}"
