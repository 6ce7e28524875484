"""The room of groups in a real browser: counters and members, what can be done, and the graph of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.page.browser import PHONE, Tab, grave_faults, scrolls_sideways

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api

NAME = "<b>nightly</b>"


@pytest.fixture
def group_id(api: Api, workers: DatabaseWorkers) -> str:
    """Three members: one is done, one failed, one waits."""
    made: str = api("POST", "/v1/groups", {"name": NAME, "callback": {"task": "embed", "payload": {}}}).json["group_id"]
    jobs = [{"task": "embed", "payload": {}, "queue": "fast", "group": made} for _ in range(3)]
    first, second, _ = [entry["job_id"] for entry in api("POST", "/v1/jobs/batch", jobs).json["jobs"]]
    api("POST", f"/v1/groups/{made}/seal")
    workers.finish(first)
    workers.fail(second)
    return made


@pytest.mark.parametrize("viewport", [None, PHONE])
def test_a_group_shows_its_counters_and_members(
    daemon: Jobd, tab: Callable[..., Tab], group_id: str, viewport: Any
) -> None:
    page = tab(daemon.address, **({"viewport": viewport} if viewport else {})).open("/?view=groups")

    page.get_by_role("link", name=NAME).first.click()

    for name, value in {"members": "3", "done": "1", "error": "1", "pending": "1", "canceled": "0"}.items():
        figure = page.locator(".figure", has=page.get_by_text(name, exact=True))
        expect(figure.locator(".value")).to_have_text(value)
    expect(page.get_by_role("table", name="Members").get_by_role("row")).to_have_count(4)
    assert grave_faults(page) == []
    assert not scrolls_sideways(page)


def test_failed_members_are_retried_and_the_rest_is_canceled(
    daemon: Jobd, tab: Callable[..., Tab], api: Api, group_id: str
) -> None:
    page = tab(daemon.address).open(f"/?view=groups&id={group_id}")

    page.get_by_role("button", name="Retry failed").click()
    expect(page.get_by_role("table", name="Members").get_by_role("row")).to_have_count(5)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the group").click()

    finished = api("GET", f"/v1/groups/{group_id}?wait_s=20").json
    assert (finished["members"], finished["canceled"], finished["pending"]) == (4, 2, 0)


def test_the_graph_of_a_job_is_drawn_in_layers(daemon: Jobd, tab: Callable[..., Tab], api: Api) -> None:
    item = {"task": "embed", "payload": {}, "queue": "fast"}
    items = [
        {**item, "ref": "a"},
        {**item, "ref": "b", "depends_on": [{"ref": "a"}]},
        {**item, "ref": "c", "depends_on": [{"ref": "a", "on": "any"}]},
        {**item, "depends_on": [{"ref": "b"}, {"ref": "c"}]},
    ]
    ids = [entry["job_id"] for entry in api("POST", "/v1/jobs/batch", items).json["jobs"]]
    page = tab(daemon.address).open(f"/?view=job&id={ids[1]}")

    page.get_by_role("link", name="Graph").click()

    expect(page.locator(".graph a")).to_have_count(4)
    expect(page.locator(".graph path")).to_have_count(4)
    expect(page.locator(".graph path.any")).to_have_count(1)
    places = {
        job_id: page.locator(f'.graph a[href="./?view=job&id={job_id}"] rect').get_attribute("x") for job_id in ids
    }
    assert (
        float(places[ids[0]] or 0)
        < float(places[ids[1]] or 0)
        == float(places[ids[2]] or 0)
        < float(places[ids[3]] or 0)
    )
    assert grave_faults(page) == []
    page.locator(f'.graph a[href="./?view=job&id={ids[3]}"]').click()
    expect(page.get_by_text("It waits for 2 jobs or groups to end.").first).to_be_visible()
