"""The room of batches in a real browser: how far they have come, why one failed, and how to cancel one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.page.browser import PHONE, Tab, grave_faults, scrolls_sideways
from tests.support.forms import send_file
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api

CHAT = "/v1/chat/completions"
NAME = "<b>line</b>"


def made(api: Api, number: int, status: str, **changes: Any) -> str:
    """A batch of that number of lines, once it has that status."""
    body = {"messages": [{"role": "user", "content": "hi"}]}
    calls = [
        {"custom_id": f"{NAME} {n}", "method": "POST", "url": CHAT, "body": body, **changes} for n in range(number)
    ]
    file_id = send_file(api, "\n".join(map(json.dumps, calls)).encode()).json["id"]
    request = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    batch_id: str = api("POST", "/v1/batches", request).json["id"]
    path = f"/v1/batches/{batch_id}"
    wait_until(lambda: api("GET", path).json["status"] == status, lambda: api("GET", path).json)
    return batch_id


@pytest.mark.parametrize("viewport", [None, PHONE])
def test_a_batch_shows_how_far_it_has_come_and_is_cancelled(
    daemon: Jobd, tab: Callable[..., Tab], api: Api, workers: DatabaseWorkers, viewport: Any
) -> None:
    batch_id = made(api, 3, "in_progress")
    query = f"/v1/jobs?label=jobd.batch:{batch_id}"
    wait_until(lambda: len(api("GET", query).json["jobs"]) == 3)
    workers.finish(api("GET", query).json["jobs"][0]["job_id"])
    page = tab(daemon.address, **({"viewport": viewport} if viewport else {})).open("/?view=batches")

    page.get_by_role("link", name=batch_id[-8:]).click()
    for name, value in {"lines": "3", "completed": "1", "failed": "0"}.items():
        figure = page.locator(".figure", has=page.get_by_text(name, exact=True))
        expect(figure.locator(".value")).to_have_text(value)
    expect(page.get_by_role("img", name="1 of 3 lines have ended")).to_be_visible()
    assert grave_faults(page) == []
    assert not scrolls_sideways(page)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the batch").click()

    expect(page.locator(".chip", has_text="cancelled")).to_be_visible()
    assert api("GET", f"/v1/batches/{batch_id}").json["request_counts"]["completed"] == 1


def test_a_batch_that_failed_says_which_line_is_to_blame(daemon: Jobd, tab: Callable[..., Tab], api: Api) -> None:
    batch_id = made(api, 1, "failed", method=NAME)

    page = tab(daemon.address).open(f"/?view=batches&id={batch_id}")

    row = page.get_by_role("table", name="Faults").get_by_role("row").last
    expect(row).to_contain_text("invalid_method")
    expect(row).to_contain_text(NAME)
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    assert grave_faults(page) == []


def test_a_batch_that_is_not_there_is_said_in_words(daemon: Jobd, tab: Callable[..., Tab]) -> None:
    opened = tab(daemon.address)
    opened.allowed = "404"
    page = opened.open("/?view=batches&id=batch_none")

    expect(page.get_by_text("there is no batch")).to_be_visible()
