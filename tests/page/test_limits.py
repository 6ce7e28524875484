"""The room of limits and pauses: set, dropped, paused and resumed by clicks, and only by those who may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from tests.support.http import Api
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.page.browser import Tab
    from tests.support.daemon import Jobd


def test_limit_of_a_key_is_set_and_dropped(daemon: Jobd, tab: Callable[..., Tab]) -> None:
    page = tab(daemon.address).open("/?view=limits")
    form = page.get_by_role("form", name="Limits of a key of queue default")
    form.get_by_label("Key, or * for all").fill("ann <b>")
    form.get_by_label("At once").fill("2")
    form.get_by_label("Starts").fill("10")
    form.get_by_label("in seconds").fill("60")

    form.get_by_role("button", name="Set").click()

    row = page.get_by_role("table", name="Limits of queue default").get_by_role("row").filter(has_text="ann <b>")
    expect(row).to_contain_text("10 in 1 min")
    (limit,) = Api(daemon.address)("GET", "/v1/queues/default/limits").json["limits"]
    assert limit == {"key": "ann <b>", "running": 2, "rate": 10, "rate_s": 60.0, "weight": None}

    row.get_by_role("button", name="Drop").click()

    expect(row).to_have_count(0)
    assert Api(daemon.address)("GET", "/v1/queues/default/limits").json["limits"] == []


def test_limit_that_jobd_refuses_is_explained_and_stays_typed(daemon: Jobd, tab: Callable[..., Tab]) -> None:
    opened = tab(daemon.address)
    opened.allowed = "422|400"
    page = opened.open("/?view=limits")
    form = page.get_by_role("form", name="Limits of a key of queue default")
    form.get_by_label("Key, or * for all").fill("bob")
    form.get_by_label("Starts").fill("10")

    form.get_by_role("button", name="Set").click()

    expect(page.get_by_text("rate and rate_s go together")).to_be_visible()
    expect(form.get_by_label("Key, or * for all")).to_have_value("bob")


def test_task_and_everything_are_paused_and_resumed(daemon: Jobd, tab: Callable[..., Tab]) -> None:
    def stats() -> Any:
        return Api(daemon.address)("GET", "/v1/stats").json

    page = tab(daemon.address).open("/?view=limits")
    page.get_by_role("button", name="Pause task plan").click()
    expect(page.get_by_role("button", name="Resume task plan")).to_be_visible()
    assert stats()["paused_tasks"] == ["plan"]
    page.get_by_role("button", name="Pause everything").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause everything").click()
    expect(page.get_by_text("Everything is paused: no node starts a job.")).to_be_visible()
    assert stats()["paused"]

    page.goto(f"http://{daemon.address}/")
    expect(page.get_by_text("Everything is paused: no job starts.")).to_be_visible()
    expect(page.get_by_text("Paused: 1 task (plan).")).to_be_visible()

    page.goto(f"http://{daemon.address}/?view=limits")
    page.get_by_role("button", name="Resume everything").click()
    page.get_by_role("button", name="Resume task plan").click()
    wait_until(lambda: not stats()["paused"] and not stats()["paused_tasks"], "something is still paused")
