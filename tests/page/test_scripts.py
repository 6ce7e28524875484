"""The two scripts of the page: the overview needs the first alone, all other rooms come with the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Route

    from tests.page.browser import Tab
    from tests.support.daemon import Jobd


def test_other_rooms_come_though_their_script_failed_at_first(daemon: Jobd, tab: Callable[..., Tab]) -> None:
    opened = tab(daemon.address)
    opened.allowed = "ERR_FAILED"
    asked: list[str] = []

    def fail_once(route: Route) -> None:
        asked.append(route.request.url)
        route.abort() if len(asked) == 1 else route.continue_()

    opened.page.route("**/page/rooms.js*", fail_once)

    page = opened.open("/?view=jobs")

    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    expect(page.get_by_role("link", name="Workers")).to_have_count(1)
    assert len(asked) == 2


def test_overview_needs_no_second_script(daemon: Jobd, tab: Callable[..., Tab]) -> None:
    opened = tab(daemon.address)
    held: list[Route] = []
    opened.page.route("**/page/rooms.js*", lambda route: held.append(route))
    page = opened.open()

    expect(page.get_by_role("heading", name="Ready")).to_be_visible()
    page.get_by_role("link", name="Waiting").click()
    expect(page.get_by_role("heading", name="Ready")).to_be_visible()
    held[0].continue_()

    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


def test_overview_goes_on_with_a_clock_in_1970_and_says_that_it_is_not_set(
    daemon: Jobd, tab: Callable[..., Tab]
) -> None:
    """As of a board that starts in 1970 while its page is open: its answers bear that date."""
    opened = tab(daemon.address)
    date = {"date": "Thu, 01 Jan 1970 00:05:00 GMT"}

    def in_1970(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, **date})

    def no_minutes(route: Route) -> None:
        route.fulfill(json={"points": [], "next_ts": None}, headers=date)

    page = opened.open()
    expect(page.get_by_role("heading", name="Ready")).to_be_visible()
    with page.expect_request(lambda request: request.url.endswith("/v1/rollups?since_ts=0")):
        page.route("**/v1/**", in_1970)
        page.route("**/readyz", in_1970)
        page.route("**/v1/rollups*", no_minutes)

    expect(page.get_by_text("The clock of the server shows 1970-01-01, which cannot be right")).to_be_visible()
    page.unroute_all(behavior="ignoreErrors")  # a call may be under way
