"""Dead letters in the browser: grouped by what went wrong, and run again in bulk, after a question, with progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.http.test_events import claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.page.browser import Tab
    from tests.support.daemon import Jobd
    from tests.support.database_workers import DatabaseWorkers
    from tests.support.http import Api

    OpenTab = Callable[..., Tab]

#: More than two batches of the page.
MANY = 500
ROOM = "/?view=dead_letters"


@pytest.fixture(autouse=True)
def no_letters(workers: DatabaseWorkers) -> None:
    workers.prune()


def bury(api: Api, workers: DatabaseWorkers, number: int = 1, task: str = "embed") -> list[str]:
    jobs = [{"task": task, "payload": {}} for _ in range(number)]
    made = [entry["job_id"] for entry in api("POST", "/v1/jobs/batch", jobs).json["jobs"]]
    for job_id in made:
        workers.fail(job_id)
    return made


def fail_with(api: Api, error: dict[str, object]) -> str:
    job_id: str = api("POST", "/v1/jobs", {"task": "embed", "payload": {}, "queue": "told"}).json["job_id"]
    held = claim(api, job_id)
    answer = api("POST", "/internal/worker/fail", {**held, "error": {"retryable": False, **error}})
    assert answer.status == 200, answer.body
    return job_id


def confirm(page: Page, word: str = "Run again") -> None:
    page.get_by_role("dialog").get_by_role("button", name=word).click()


def test_five_hundred_dead_letters_run_again_by_two_clicks(
    daemon: Jobd, api: Api, workers: DatabaseWorkers, tab: OpenTab
) -> None:
    bury(api, workers, MANY)
    bury(api, workers, task="chat")
    page = tab(daemon.address).open(ROOM)
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/v1/jobs/retry") else None)

    page.get_by_role("button", name=f"Run {MANY} of embed with boom again").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"Run {MANY} jobs again?")
    confirm(page)

    expect(page.get_by_text(f"{MANY} jobs run again", exact=True)).to_be_visible()
    expect(page.get_by_text(f"{MANY} dead letters, {MANY} run again")).to_be_visible()
    assert len(asked) >= MANY // 200
    groups = {group["task"]: group["open"] for group in api("GET", "/v1/dlq/groups").json["groups"]}
    assert groups == {"embed": 0, "chat": 1}, "the other group was left alone"


def test_groups_show_what_went_wrong_with_counts_and_example(
    daemon: Jobd, api: Api, workers: DatabaseWorkers, tab: OpenTab
) -> None:
    bury(api, workers, 2)
    newest = fail_with(api, {"code": "no_model", "message": "qwen3 is not loaded"})

    page = tab(daemon.address).open(ROOM)

    groups = page.locator(".stack > li")
    expect(groups).to_have_count(2)
    first, second = groups.all()
    expect(first).to_contain_text("no_model")
    expect(first).to_contain_text("qwen3 is not loaded")
    expect(first.get_by_role("link", name=f"Newest: job {newest[-8:]}")).to_have_attribute(
        "href", f"./?view=job&id={newest}"
    )
    expect(second).to_contain_text("2 dead letters")


def test_link_to_a_group_finds_its_jobs_whatever_their_error_is_called(
    daemon: Jobd, api: Api, workers: DatabaseWorkers, tab: OpenTab
) -> None:
    bury(api, workers)
    newest = fail_with(api, {"code": 'no "model" \\ here', "message": "x"})
    page = tab(daemon.address).open(ROOM)

    page.locator(".stack > li").first.get_by_role("link", name="show all").click()

    rows = page.locator("main tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(newest[-8:])


def test_all_groups_run_again_and_who_says_no_changes_nothing(
    daemon: Jobd, api: Api, workers: DatabaseWorkers, tab: OpenTab
) -> None:
    bury(api, workers, 3)
    bury(api, workers, 2, task="chat")
    page = tab(daemon.address).open(ROOM)

    page.get_by_role("button", name="Run all 5 jobs again").click()
    confirm(page, "Back")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert all(group["open"] for group in api("GET", "/v1/dlq/groups").json["groups"])
    page.get_by_role("button", name="Run all 5 jobs again").click()
    confirm(page)

    expect(page.get_by_text("5 jobs run again", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="again")).to_have_count(0)


def test_new_dead_letter_appears_by_itself(daemon: Jobd, api: Api, workers: DatabaseWorkers, tab: OpenTab) -> None:
    page = tab(daemon.address).open(ROOM)
    expect(page.get_by_text("Nothing has failed for good.")).to_be_visible()

    bury(api, workers)

    expect(page.get_by_text("1 dead letter")).to_be_visible()
