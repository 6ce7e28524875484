"""Every room of the page: light and dark, desktop and phone, for screen readers, while jobd is away, and hidden."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

import jobd
from tests.http.test_events import claim
from tests.page.browser import DESKTOP, PHONE, Tab, grave_faults, scrolls_sideways
from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page, Request

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers

    OpenTab = Callable[..., Tab]

SOURCES = Path(jobd.__file__).parent / "http" / "pages" / "app"
#: Every room by its name in the address.
ROOMS = sorted(
    name for path in SOURCES.glob("*.js") for name in re.findall(r'^room\(\{\n  name: "(\w+)"', path.read_text(), re.M)
)
#: Longer than a phone is wide, without a place to break it.
LONG = "x" * 120


@pytest.fixture(scope="module")
def shown(daemon: Jobd, workers: DatabaseWorkers) -> dict[str, str]:
    """Something to see in every room; the ids that rooms of one thing need."""
    api = Api(daemon.address)
    job = {"task": "chat", "payload": {"prompt": LONG}, "labels": {"user": LONG[:60]}}
    job_id = api("POST", "/v1/jobs", job).json["job_id"]
    api("POST", "/v1/jobs", {"task": "chat", "payload": {}, "delay_s": 3600})
    workers.fail(api("POST", "/v1/jobs", job).json["job_id"])
    held = api("POST", "/v1/jobs", {**job, "queue": "told"}).json["job_id"]
    claim(api, held)
    ticket = {"title": f"Read {LONG}", "acceptance_criteria": ["short", LONG], "task": "chat", "payload": {"a": LONG}}
    made = [api("POST", "/v1/tickets", {**ticket, "created_by": "ann"}).json["ticket_id"] for _ in range(2)]
    api("POST", f"/v1/tickets/{made[0]}/reject", {"by": "bob", "why": LONG})
    api("POST", "/v1/jobs/cancel", {"task": "nothing_such"})  # a line in the audit log
    return {"job": job_id, "ticket": made[0]}


def open_room(opened: Tab, name: str, ids: dict[str, str]) -> Page:
    page = opened.open(f"/?view={name}" + (f"&id={ids[name]}" if name in ids else ""))
    expect(page.get_by_text("Asking jobd…")).to_have_count(0)
    expect(page.locator("main h1, main h2").first).to_be_visible()
    return page


def test_all_rooms_are_found() -> None:
    assert {"overview", "tickets", "ticket", "ticket_form", "dead_letters", "workers", "configuration", "audit"} <= {
        *ROOMS
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", ROOMS)
def test_room_is_for_every_screen_and_everybody(
    daemon: Jobd, tab: OpenTab, shown: dict[str, str], name: str, viewport: Any, scheme: str
) -> None:
    page = open_room(tab(daemon.address, viewport=viewport, color_scheme=scheme), name, shown)

    assert not scrolls_sideways(page)
    assert grave_faults(page) == []


def test_table_that_is_too_wide_scrolls_inside_its_card(daemon: Jobd, tab: OpenTab, shown: dict[str, str]) -> None:
    page = open_room(tab(daemon.address, viewport={"width": 280, "height": 800}), "overview", shown)

    table = page.get_by_role("group", name="Queues")
    assert table.evaluate("node => node.scrollWidth > node.clientWidth")
    assert not scrolls_sideways(page)


def test_navigation_leads_to_every_listed_room(daemon: Jobd, tab: OpenTab, shown: dict[str, str]) -> None:
    page = open_room(tab(daemon.address), "overview", shown)
    links = page.get_by_role("navigation", name="Rooms").locator(".rooms a")

    for link in links.all():
        link.click()
        expect(link).to_have_attribute("aria-current", "page")

    assert links.count() >= 6


def test_line_of_a_queue_shows_what_ended_before_the_page_was_opened(
    daemon: Jobd, tab: OpenTab, shown: dict[str, str]
) -> None:
    wait_until(lambda: Api(daemon.address)("GET", "/v1/rollups?queue=default").json["points"], "nothing was rolled up")

    page = open_room(tab(daemon.address), "overview", shown)

    line = page.get_by_role("img", name="jobs of default that ended in each of the last 60 minutes").locator("polyline")
    expect(line).to_have_attribute("points", re.compile(r",2\.0\b"))  # the peak, at the top


def test_overview_draws_disk_and_memory_with_their_limits(daemon: Jobd, tab: OpenTab, shown: dict[str, str]) -> None:
    page = open_room(tab(daemon.address), "overview", shown)

    room = page.get_by_role("region", name="Disk and memory")
    for name in ("Disk", "Memory"):
        expect(room.get_by_role("img", name=f"{name}: ")).to_be_visible()
    expect(room.locator(".limit")).to_have_count(2)
    expect(page.get_by_role("link", name=re.compile(r"Dead letters \d"))).to_have_attribute(
        "href", "./?view=dead_letters"
    )


def test_workers_show_who_holds_what_and_slots(daemon: Jobd, tab: OpenTab, shown: dict[str, str]) -> None:
    page = open_room(tab(daemon.address), "workers", shown)

    row = page.get_by_role("table", name="Workers").get_by_role("row").nth(1)
    expect(row).to_contain_text("HTTP")
    expect(page.get_by_role("table", name="Jobs that are held").get_by_role("link").first).to_be_visible()


def test_configuration_is_folded_by_section(daemon: Jobd, tab: OpenTab, shown: dict[str, str]) -> None:
    page = open_room(tab(daemon.address), "configuration", shown)

    expect(page.get_by_text("min_free_mb")).to_have_count(0)
    page.get_by_text("limits", exact=True).click()

    expect(page.get_by_text("min_free_mb")).to_be_visible()


def test_audit_log_has_pages(daemon: Jobd, api: Api, tab: OpenTab, shown: dict[str, str]) -> None:
    for _ in range(60):
        api("POST", "/v1/jobs/cancel", {"task": "nothing_such"})
    page = open_room(tab(daemon.address), "audit", shown)
    rows = page.get_by_role("table", name="Audit log").locator("tbody tr")
    expect(rows).to_have_count(50)

    page.get_by_role("link", name="Older").click()

    expect(page.get_by_role("heading", name="Older entries")).to_be_visible()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()


# What is not there


def test_board_that_is_away_is_said_with_the_age_of_the_data_and_it_comes_back(
    jobd: Callable[..., Jobd], tab: OpenTab
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    daemon = jobd(None, "--port", port, JOBD_QUEUES_DEFAULT_SLOTS="0").start().until_ready()
    opened = tab(daemon.address)
    opened.allowed = "Failed to load resource|ERR_|net::"
    page = opened.open("/?view=tickets")
    expect(page.get_by_role("heading", name="Tickets")).to_be_visible()

    daemon.kill()
    expect(page.get_by_role("status").filter(has_text="jobd has not answered for")).to_contain_text("What you see is")
    expect(page.get_by_role("heading", name="Tickets")).to_be_visible()
    daemon.start().until_ready()
    Api(daemon.address)(
        "POST", "/v1/tickets", {"title": "Back again", "task": "chat", "payload": {}, "created_by": "ann"}
    )

    expect(page.get_by_role("link", name="Back again")).to_be_visible()
    expect(page.get_by_text("jobd has not answered")).to_have_count(0)


HIDE = """isHidden => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => isHidden });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_hidden_tab_closes_its_stream_and_loads_nothing(daemon: Jobd, tab: OpenTab, shown: dict[str, str]) -> None:
    opened = tab(daemon.address)
    begun: list[str] = []
    ended: list[str] = []
    asked: list[str] = []

    def note_request(request: Request) -> None:
        (begun if "/v1/events" in request.url else asked).append(request.url)

    def note_end(request: Request) -> None:
        ended.append(request.url)

    opened.page.on("request", note_request)
    opened.page.on("requestfailed", note_end)
    page = open_room(opened, "dead_letters", shown)
    wait_until(lambda: bool(page.evaluate("1") and begun), lambda: begun)

    page.evaluate(HIDE, True)
    wait_until(lambda: bool(page.evaluate("1") and len(ended) == len(begun)), lambda: (begun, ended))
    before = len(asked), len(begun)
    Api(daemon.address)("POST", "/v1/jobs", {"task": "chat", "payload": {}})
    page.wait_for_timeout(1500)  # longer than an event takes to lead to a load
    assert (len(asked), len(begun)) == before
    page.evaluate(HIDE, False)

    wait_until(lambda: bool(page.evaluate("1") and len(begun) == before[1] + 1), lambda: (begun, before))
    assert len(asked) > before[0]
