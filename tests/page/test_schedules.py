"""The room of schedules in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from tests.page.browser import PHONE, Tab, grave_faults, scrolls_sideways

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd
    from tests.support.http import Api


@pytest.fixture
def made(api: Api) -> dict[str, Any]:
    """A schedule whose times differ between here and there, and that made jobs."""
    name = f"p{uuid4().hex}"
    body = {"name": name, "cron": "30 2 * * *", "timezone": "Asia/Kathmandu", "task": "embed", "payload": {"a": "<b>"}}
    answer = api("POST", "/v1/schedules", body)
    assert answer.status == 201, answer
    found: dict[str, Any] = answer.json
    return found


def test_list_shows_the_next_five_times_in_both_zones(
    daemon: Jobd, tab: Callable[..., Tab], made: dict[str, Any]
) -> None:
    page = tab(daemon.address, timezone_id="UTC", locale="en-GB").open("/?view=schedules")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=made["name"]))
    expect(row.get_by_text("30 2 * * *")).to_be_visible()

    row.locator("summary").click()

    times = page.get_by_role("table", name=f"Next times of {made['name']}")
    expect(times.get_by_text("Asia/Kathmandu")).to_be_visible()
    expect(times.get_by_text("20:45:00")).to_have_count(5)
    expect(times.get_by_text(", 02:30")).to_have_count(5)


def test_run_now_pause_and_resume(daemon: Jobd, tab: Callable[..., Tab], api: Api, made: dict[str, Any]) -> None:
    name = made["name"]
    page = tab(daemon.address).open(f"/?view=schedules&name={name}")

    page.get_by_role("button", name=f"Run schedule {name} now").click()
    expect(page.get_by_role("region", name="Last jobs").get_by_role("listitem")).to_have_count(1)
    page.get_by_role("button", name=f"Pause schedule {name}").click()
    expect(page.get_by_role("button", name=f"Resume schedule {name}")).to_be_visible()
    assert api("GET", f"/v1/schedules/{name}").json["paused"] is True
    page.get_by_role("button", name=f"Resume schedule {name}").click()
    expect(page.get_by_role("button", name=f"Pause schedule {name}")).to_be_visible()

    (job,) = api("GET", f"/v1/jobs?schedule={name}").json["jobs"]
    link = page.get_by_role("region", name="Last jobs").get_by_role("link")
    expect(link).to_have_attribute("href", f"./?view=job&id={job['job_id']}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_room_has_no_grave_fault(daemon: Jobd, tab: Callable[..., Tab], made: dict[str, Any], scheme: str) -> None:
    opened = tab(daemon.address, color_scheme=scheme)
    for path, shown in (
        ("/?view=schedules", "Schedules"),
        (f"/?view=schedules&name={made['name']}", "Next five times"),
    ):
        page = opened.open(path)
        expect(page.get_by_role("heading", name=shown)).to_be_visible()
        assert grave_faults(page) == []


def test_room_fits_a_phone(daemon: Jobd, tab: Callable[..., Tab], made: dict[str, Any]) -> None:
    opened = tab(daemon.address, viewport=PHONE)
    for path in ("/?view=schedules", f"/?view=schedules&name={made['name']}"):
        page = opened.open(path)
        expect(page.get_by_role("heading", level=2).first).to_be_visible()
        assert not scrolls_sideways(page)
