"""The room of jobs: search by terms, a list that is live and stays still, and changes to many jobs at once."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from jobd.auth.token import new_token
from tests.page.board import running_board
from tests.page.browser import PHONE, grave_faults, scrolls_sideways
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tests.page.board import Board
    from tests.page.browser import Tab

CI, READER = new_token(), new_token()
NEVER = "2020-01-01"


def jobs_at(tab: Tab, search: str = "") -> Page:
    page = tab.open(f"/?view=jobs&q={quote(search)}")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    expect(page.get_by_text("Searching…")).to_have_count(0)
    return page


def shown(page: Page) -> list[str]:
    """The last eight characters of the ids in the list."""
    return page.locator(".jobs td.name code").all_text_contents()


def short(*job_ids: str) -> list[str]:
    return [job_id[-8:] for job_id in job_ids]


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


# Finding


@pytest.fixture(scope="module")
def jobs(board: Board) -> dict[str, str]:
    """One job of each kind, by the kind; all have the label `set:terms`."""
    made = {}

    def submit(name: str, **fields: Any) -> str:
        labels = {"set": "terms", **fields.pop("labels", {})}
        made[name] = board.submit(labels=labels, **fields)
        return made[name]

    board.until(submit("done", payload={"seconds": 0}, task="embed"), "done")
    submit("error", queue="still", labels={"user": "ann"}, max_attempts=1)
    board.fail(board.claim(), code="out_of_memory", message='the Kernel: killed "it" at C:\\x', retryable=False)
    submit("running", queue="still", labels={"user": "bob smith"})
    board.claim()
    submit("queued", queue="other", labels={"odd": 'a"b\\c'})
    board.api("POST", f"/v1/jobs/{submit('canceled', queue='other', task='plan')}/cancel")
    return made


EVERY = {"done", "error", "running", "queued", "canceled"}
SEARCHES: dict[str, set[str]] = {
    "": EVERY,
    **{f"status:{status}": {status} for status in EVERY},
    "task:embed": {"done"},
    "queue:other": {"queued", "canceled"},
    "queue:other status:queued": {"queued"},
    "label.user:ann": {"error"},
    'label.user:"bob smith"': {"running"},
    r'label.odd:"a\"b\\c"': {"queued"},
    "label.user:ann status:done": set(),
    "error:out_of_memory": {"error"},
    "error:timeout": set(),
    "text:KERNEL": {"error"},
    "kernel": {"error"},
    '"kernel: killed"': {"error"},
    'text:"Kernel: killed"': {"error"},
    r'"killed \"it\" at C:\\x"': {"error"},
    "the Kernel": {"error"},
    "Kernel the": set(),
    "age<1h": EVERY,
    "age>1h": set(),
    "age>0s": EVERY,
    f"since:{NEVER}": EVERY,
    f"until:{NEVER}": set(),
    f"since:{NEVER}T10:30 age>0s status:done": {"done"},
    "owner:nobody": set(),
}


@pytest.mark.parametrize(("search", "names"), SEARCHES.items(), ids=range(len(SEARCHES)))
def test_search_finds_what_the_terms_say(
    board: Board, jobs: dict[str, str], tab: Callable[..., Tab], search: str, names: set[str]
) -> None:
    page = jobs_at(tab(board.address), f"label.set:terms {search}")

    found = [name for name, job_id in jobs.items() if job_id[-8:] in shown(page)]
    assert set(found) == names
    assert page.locator(".jobs tbody tr").count() == len(names)
    expect(page.locator(".search .problem")).to_have_count(0)


BAD = {
    "staus:error": "There is no term staus:",
    "label:ann": "There is no term label:",
    "status:broken": "There is no status broken; a job is queued, running, done, error, canceled.",
    "status:error status:done": "status is there twice",
    "label.user:ann label.user:bob": "user is there twice",
    "kernel text:panic": "text is there twice",
    f"since:{NEVER} age<2d": "since is there twice",
    "task:": "task: needs a value right behind it",
    "age>soon": "soon is no span of time; write it as in 90s",
    "age:1h": "There is no term age:",
    "since:yesterday": "yesterday is no date; write it as in 2026-05-31",
    'text:"open': "A quotation mark is not closed",
    "queue:no/such": "queue",
    f"error:{'x' * 200}": "128",
    "01a1ee38-da4a-7000-9270-000000000000": "there is no job 01a1ee38-da4a-7000-9270-000000000000",
}


@pytest.mark.parametrize(("search", "said"), BAD.items(), ids=range(len(BAD)))
def test_term_that_means_nothing_is_explained_at_the_box(
    board: Board, tab: Callable[..., Tab], search: str, said: str
) -> None:
    opened = tab(board.address)
    opened.allowed = "status of (422|404)"
    page = jobs_at(opened, search)

    problem = page.locator(".search .problem")
    expect(problem).to_contain_text(said)
    box = page.get_by_role("combobox", name="Search jobs")
    assert box.get_attribute("aria-describedby") == problem.get_attribute("id")
    expect(box).to_have_value(search)


def test_search_is_the_address_and_an_id_leads_to_its_job(
    board: Board, jobs: dict[str, str], tab: Callable[..., Tab]
) -> None:
    page = jobs_at(tab(board.address))
    box = page.get_by_role("combobox", name="Search jobs")

    box.fill("status:error label.user:ann")
    box.press("Enter")
    expect(page.locator(".jobs tbody tr")).to_have_count(1)
    assert page.url.endswith("/?view=jobs&q=status%3Aerror+label.user%3Aann")
    page.reload()
    expect(box).to_have_value("status:error label.user:ann")
    page.locator(".filters").get_by_text("running").click()
    expect(box).to_have_value("status:running label.user:ann")
    page.go_back()
    expect(box).to_have_value("status:error label.user:ann")
    assert jobs_at_once(page, jobs["error"])
    box.fill(jobs["done"].upper())
    box.press("Enter")

    expect(page.get_by_role("heading", name=re.compile(f"embed {jobs['done'][-8:]}"))).to_be_visible()


def jobs_at_once(page: Page, job_id: str) -> bool:
    expect(page.locator(".jobs td.name code")).to_have_text(short(job_id))
    return True


def test_box_suggests_terms_and_what_this_jobd_has(board: Board, jobs: dict[str, str], tab: Callable[..., Tab]) -> None:
    page = jobs_at(tab(board.address))
    box = page.get_by_role("combobox", name="Search jobs")

    def suggested(typed: str, wanted: str) -> list[str]:
        box.fill(typed)
        expect(page.locator(f"#terms option[value={json.dumps(wanted)}]")).to_have_count(1)
        values: list[str] = page.eval_on_selector_all("#terms option", "all => all.map((each) => each.value)")
        return values

    assert suggested("s", "status:") == ["status:", "since:"]
    assert suggested("age<1h st", "age<1h status:") == ["age<1h status:"]
    assert "status:error queue:still" in suggested("status:error queue:", "status:error queue:still")
    assert "task:ask" in suggested("task:a", "task:ask")
    assert suggested("label.u", "label.user:") == ["label.user:"]
    assert 'label.user:"bob smith"' in suggested("label.user:", "label.user:ann")


# The list


def test_pages_follow_each_other_without_a_gap(board: Board, tab: Callable[..., Tab]) -> None:
    board.submit_many(120, queue="still", labels={"set": "pages"})
    page = jobs_at(tab(board.address), "label.set:pages")

    press(page, "Load more")
    expect(page.locator(".jobs tbody tr")).to_have_count(100)
    press(page, "Load more")
    expect(page.locator(".jobs tbody tr")).to_have_count(120)

    expect(page.get_by_role("button", name="Load more")).to_have_count(0)
    assert len(set(shown(page))) == 120


def test_list_is_live_and_does_not_move_while_it_is_in_use(board: Board, tab: Callable[..., Tab]) -> None:
    first = board.submit(queue="still", labels={"set": "live"})
    page = jobs_at(tab(board.address), "label.set:live")
    expect(page.locator(".jobs td.name code")).to_have_text(short(first))

    second = board.submit(queue="still", labels={"set": "live"})
    expect(page.locator(".jobs td.name code")).to_have_text(short(second, first))
    page.get_by_label(f"Select job {first[-8:]}").check()
    third = board.submit(queue="still", labels={"set": "live"})
    board.api("POST", f"/v1/jobs/{first}/cancel")
    expect(page.get_by_role("button", name="Show 1 new job")).to_be_visible()
    expect(page.locator(".jobs tbody tr").nth(1).locator(".chip")).to_have_text("canceled")
    assert shown(page) == short(second, first)
    press(page, "Show 1 new job")

    expect(page.locator(".jobs td.name code")).to_have_text(short(third, second, first))
    expect(page.get_by_label(f"Select job {first[-8:]}")).to_be_checked()


def test_keyboard_alone_finds_and_opens_a_job(board: Board, jobs: dict[str, str], tab: Callable[..., Tab]) -> None:
    page = tab(board.address).open()
    expect(page.get_by_role("heading", name="Ready")).to_be_visible()

    page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Search jobs")
    expect(box).to_be_focused()
    page.keyboard.type("label.set:terms queue:other")
    page.keyboard.press("Enter")
    expect(page.locator(".jobs td.name code")).to_have_text(short(jobs["canceled"], jobs["queued"]))
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("a[data-row]").nth(1)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("plan"))).to_be_visible()
    page.keyboard.press("Escape")

    expect(box).to_have_value("label.set:terms queue:other")
    expect(page.locator(".jobs tbody tr")).to_have_count(2)


def test_first_visit_says_that_there_are_no_jobs(tab: Callable[..., Tab]) -> None:
    with running_board() as fresh:
        page = jobs_at(tab(fresh.address))
        expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
        page.get_by_role("link", name="Submit the first").click()

        expect(page.get_by_role("heading", name="New job")).to_be_visible()
        page.close()


# Changing many


def test_bulk_retry_runs_each_of_500_dead_letters_again_once(board: Board, tab: Callable[..., Tab]) -> None:
    payload = {"seconds": 0, "tokens": 0, "fail_rate": 1}
    board.submit_many(500, payload=payload, labels={"set": "dead"}, max_attempts=1)
    wait_until(lambda: board.count(status="error", labels={"set": "dead"}) == 500, timeout_s=120)
    page = jobs_at(tab(board.address), "status:error label.set:dead")

    page.get_by_label("Select all that are shown").check()
    expect(page.get_by_role("region", name="Selection")).to_contain_text("50 selected")
    press(page, "Select all that fit")
    expect(page.get_by_role("region", name="Selection")).to_contain_text("All that fit: 500 jobs")
    press(page, "Retry")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("status:error label.set:dead")
    assert board.count(labels={"set": "dead"}) == 500, "nothing happens before it is confirmed"
    dialog.get_by_role("button", name="Retry 500 jobs").click()

    expect(page.locator(".notes")).to_contain_text("Retried 500 jobs")
    expect(page.get_by_role("region", name="Selection")).to_have_count(0)
    wait_until(lambda: board.count(status="error", labels={"set": "dead"}) == 1000, timeout_s=120)
    again = board.api("GET", "/v1/dlq?limit=100").json["letters"]
    assert {letter["redriven_to"] for letter in again} == {None}


def test_all_that_fit_are_canceled_and_the_others_are_not(board: Board, tab: Callable[..., Tab]) -> None:
    board.submit_many(130, queue="still", labels={"set": "cancel", "part": "a"})
    other = board.submit(queue="still", labels={"set": "cancel", "part": "b"})
    page = jobs_at(tab(board.address), "label.set:cancel label.part:a")

    page.get_by_label("Select all that are shown").check()
    press(page, "Select all that fit")
    press(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert board.count(status="canceled", labels={"set": "cancel"}) == 0
    press(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel 130 jobs").click()

    expect(page.locator(".notes")).to_contain_text("Canceled 130 jobs")
    assert board.count(status="canceled", labels={"set": "cancel"}) == 130
    assert board.read(other)["status"] == "queued"
    expect(page.locator(".chip").first).to_have_text("canceled")


def test_finished_jobs_that_fit_are_deleted_and_live_ones_stay(board: Board, tab: Callable[..., Tab]) -> None:
    made = [board.submit(queue="still", labels={"set": "delete"}) for _ in range(3)]
    for job_id in made[:2]:
        board.api("POST", f"/v1/jobs/{job_id}/cancel")
    page = jobs_at(tab(board.address), "label.set:delete")

    page.get_by_label("Select all that are shown").check()
    expect(page.get_by_role("button", name="Delete", exact=True)).to_have_count(0)
    press(page, "Select all that fit")
    press(page, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete 2 jobs").click()

    expect(page.locator(".notes")).to_contain_text("Deleted 2 jobs")
    expect(page.locator(".jobs td.name code")).to_have_text(short(made[2]))
    assert board.read(made[2])["status"] == "queued"


def test_selected_rows_alone_are_canceled(board: Board, tab: Callable[..., Tab]) -> None:
    made = [board.submit(queue="still", labels={"set": "rows"}) for _ in range(3)]
    page = jobs_at(tab(board.address), "label.set:rows")

    for job_id in made[:2]:
        page.get_by_label(f"Select job {job_id[-8:]}").check()
    press(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel 2 jobs").click()

    expect(page.locator(".notes")).to_contain_text("Canceled 2 jobs")
    assert [board.read(job_id)["status"] for job_id in made] == ["canceled", "canceled", "queued"]


def test_change_can_be_stopped_between_its_batches(board: Board, tab: Callable[..., Tab]) -> None:
    board.submit_many(350, queue="still", labels={"set": "stop"})
    page = jobs_at(tab(board.address), "label.set:stop")
    page.get_by_label("Select all that are shown").check()
    press(page, "Select all that fit")
    press(page, "Cancel")
    calls = []

    def second_call_is_slow(route: Any) -> None:
        """It is answered after somebody has pressed Stop."""
        calls.append(route)
        if len(calls) != 2:
            route.continue_()

    page.route("**/v1/jobs/cancel", second_call_is_slow)
    page.get_by_role("dialog").get_by_role("button", name="Cancel 350 jobs").click()
    expect(page.locator(".selection")).to_contain_text("Canceled 100 of 350 jobs")
    wait_until(lambda: page.evaluate("1") and len(calls) == 2)
    press(page, "Stop")
    calls[1].continue_()

    expect(page.locator(".notes")).to_contain_text("Canceled 200 jobs, then stopped")
    assert board.count(status="canceled", labels={"set": "stop"}) == 200


def test_change_goes_on_after_an_answer_was_lost(board: Board, tab: Callable[..., Tab]) -> None:
    board.submit_many(150, queue="still", labels={"set": "lost"})
    opened = tab(board.address)
    opened.allowed = "ERR_FAILED|ERR_CONNECTION"
    page = jobs_at(opened, "label.set:lost")
    calls = []

    def lose_the_first_answer(route: Any) -> None:
        calls.append(route)
        if len(calls) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/v1/jobs/cancel", lose_the_first_answer)
    page.get_by_label("Select all that are shown").check()
    press(page, "Select all that fit")
    press(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel 150 jobs").click()

    expect(page.locator(".notes")).to_contain_text(re.compile("Canceled .* jobs?"))
    assert board.count(status="canceled", labels={"set": "lost"}) == 150


# Who may


@pytest.fixture(scope="module")
def guarded() -> Iterator[Board]:
    tokens = [
        {"name": "ci", "sha256": CI.sha256.hex(), "scopes": ["client"]},
        {"name": "eve", "sha256": READER.sha256.hex(), "scopes": ["read"]},
    ]
    with running_board(JOBD_AUTH_TOKENS=json.dumps(tokens)) as board:
        yield board


def signed_in(tab: Tab, token: str) -> Page:
    tab.allowed = "status of 401"
    page = tab.open("/?view=jobs")
    page.get_by_label("Token").fill(token)
    press(page, "Sign in")
    expect(page.get_by_role("dialog")).to_have_count(0)
    return page


def test_owner_is_found_and_a_reader_sees_no_buttons(guarded: Board, tab: Callable[..., Tab]) -> None:
    bearer = {"Authorization": f"Bearer {CI.text}"}
    body = {"task": "chat", "queue": "still", "payload": {}}
    made = guarded.api("POST", "/v1/jobs", body, **bearer).json["job_id"]
    opened = tab(guarded.address)
    signed_in(opened, READER.text)

    page = jobs_at(opened, "owner:ci")

    expect(page.locator(".jobs td.name code")).to_have_text(short(made))
    expect(page.get_by_role("checkbox")).to_have_count(0)
    expect(page.get_by_role("link", name="New job")).to_have_count(0)
    page.locator("a[data-row]").click()
    expect(page.get_by_role("heading", name=re.compile("chat"))).to_be_visible()
    expect(page.locator("main button, main .act")).to_have_count(0)
    page.goto(f"http://{guarded.address}/?view=jobs&q=owner%3Anobody")
    expect(page.get_by_text("No job fits.")).to_be_visible()


def test_client_token_has_the_buttons(guarded: Board, tab: Callable[..., Tab]) -> None:
    page = signed_in(tab(guarded.address), CI.text)

    expect(page.get_by_role("link", name="New job")).to_be_visible()


# How it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_room_has_no_grave_fault_and_fits(
    board: Board, jobs: dict[str, str], tab: Callable[..., Tab], scheme: str, size: Any
) -> None:
    long = "x" * 60
    board.submit(queue="still", labels={"set": "terms2", long: "y" * 500}, priority=5)
    options = {"viewport": size} if size else {}
    page = jobs_at(tab(board.address, color_scheme=scheme, **options), "")

    page.locator(".jobs input[type=checkbox]").nth(1).check()

    expect(page.get_by_role("region", name="Selection")).to_be_visible()
    assert grave_faults(page) == []
    assert not scrolls_sideways(page)
