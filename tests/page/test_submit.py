"""The room of a new job: a form from the task's schema, or JSON; faults at their fields, and nothing typed is lost."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from jobd.auth.token import new_token
from tests.page.board import Board, running_board, shown_text
from tests.page.browser import PHONE, grave_faults, scrolls_sideways
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from tests.page.browser import Tab

REFUSED = "status of 422"


def form_at(tab: Tab, query: str = "task=ask") -> Page:
    tab.allowed = REFUSED
    page = tab.open(f"/?view=submit&{query}")
    expect(page.get_by_role("heading", name="New job")).to_be_visible()
    expect(page.get_by_label("Task", exact=True)).to_be_visible()
    return page


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def submitted(board: Board, page: Page) -> Any:
    """The job that the page went to."""
    page.wait_for_url(re.compile("view=job&id="))
    return board.read(page.url.rpartition("id=")[2])


def test_first_visit_to_a_result_by_the_form_alone(board: Board, tab: Callable[..., Tab]) -> None:
    page = tab(board.address).open()
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Task", exact=True).select_option("ask")
    expect(page.get_by_text("Asks a model.")).to_be_visible()
    expect(page.get_by_text("What the model is asked.")).to_be_visible()

    page.get_by_label("prompt").fill('say "hi"\nto <all>')
    page.get_by_label("words").fill("12")
    page.get_by_label("style").select_option(label="poem")
    page.get_by_label("is_public").check()
    page.get_by_label("temperature").fill("0.25")
    page.get_by_label("seed").fill("12345678901234567890")
    page.get_by_label("tags").fill('["a", "b"]')
    page.get_by_label("Priority").fill("-5")
    page.get_by_label("Attempts").fill("2")
    page.get_by_label("Labels").fill('user:ann note:"two words: b"')
    press(page, "Submit")

    expect(page.locator(".lead")).to_contain_text("Done")
    job = submitted(board, page)
    assert job["payload"] == {
        "prompt": 'say "hi"\nto <all>',
        "words": 12,
        "style": "poem",
        "is_public": True,
        "sampling": {"temperature": 0.25, "seed": 12345678901234567890},
        "tags": ["a", "b"],
    }
    assert (job["priority"], job["max_attempts"]) == (-5, 2)
    assert job["labels"] == {"user": "ann", "note": "two words: b"}
    assert shown_text(page) == board.text_of(job["job_id"]) == "".join(f"poem {n} " for n in range(12))


def test_what_is_left_empty_is_left_to_the_defaults(board: Board, tab: Callable[..., Tab]) -> None:
    page = form_at(tab(board.address))
    expect(page.get_by_label("words")).to_have_attribute("placeholder", "3")

    page.get_by_label("prompt").fill("hi")
    page.get_by_label("temperature").fill("1")
    page.get_by_label("temperature").fill("")
    page.get_by_label("Begin in").fill("50min")
    page.get_by_label("Queue").select_option("other")
    press(page, "Submit")

    job = submitted(board, page)
    assert (job["payload"], job["queue"], job["priority"], job["labels"]) == ({"prompt": "hi"}, "other", 0, {})
    assert job["run_after_ts"] - job["created_ts"] == 50 * 60_000


#: What is typed into which field, the field that the answer is shown at, and a part of it.
FAULTS = [
    ({}, "prompt", "missing required field `prompt`"),
    ({"prompt": "x", "words": "501"}, "words", "Expected `int` <= 500"),
    ({"prompt": "x", "words": "1.5"}, "words", "Expected `int`, got `float`"),
    ({"prompt": "x", "words": "many"}, "words", "not complete"),
    ({"prompt": "x", "temperature": "3"}, "temperature", "<= 2"),
    ({"prompt": "x", "tags": "[1"}, "tags", "not complete"),
    ({"prompt": "x", "tags": '["a", 1]'}, "tags", "Expected `str`, got `int`"),
    ({"prompt": "x", "Priority": "5000"}, "Priority", "<= 1000"),
    ({"prompt": "x", "Priority": "high"}, "Priority", "priority"),
    ({"prompt": "x", "Attempts": "0"}, "Attempts", ">= 1"),
    ({"prompt": "x", "Begin in": "soon"}, "Begin in", "no span of time"),
    ({"prompt": "x", "Labels": "user ann"}, "Labels", "Write each as name:value"),
    ({"prompt": "x", "Labels": "no/name:1"}, "Labels", "labels"),
]


@pytest.mark.parametrize(("typed", "label", "said"), FAULTS, ids=range(len(FAULTS)))
def test_fault_is_said_at_its_field_and_what_was_typed_stays(
    board: Board, tab: Callable[..., Tab], typed: dict[str, str], label: str, said: str
) -> None:
    page = form_at(tab(board.address))
    before = board.count()
    for name, text in typed.items():
        page.get_by_label(name).fill(text)

    press(page, "Submit")

    field = page.get_by_label(label)
    expect(field).to_be_focused()
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.locator(f"[id='{field.get_attribute('aria-describedby')}']")).to_contain_text(said)
    assert {name: page.get_by_label(name).input_value() for name in typed} == typed
    assert board.count() == before


def test_fault_without_a_field_is_said_above_the_button(board: Board, tab: Callable[..., Tab]) -> None:
    opened = tab(board.address)
    page = form_at(opened, "task=chat")
    opened.allowed = "status of 400"

    page.get_by_label("Payload as JSON").fill('{"a": 1, "a": 2}')
    press(page, "Submit")

    expect(page.get_by_role("alert")).to_contain_text("twice")
    expect(page.get_by_label("Payload as JSON")).to_have_value('{"a": 1, "a": 2}')


def test_form_and_json_show_the_same_payload(board: Board, tab: Callable[..., Tab]) -> None:
    page = form_at(tab(board.address))
    page.get_by_label("prompt").fill("hi")
    page.get_by_label("seed").fill("12345678901234567890")

    press(page, "Edit as JSON")
    raw = page.get_by_label("Payload as JSON")
    assert raw.input_value() == '{\n  "prompt": "hi",\n  "sampling": {\n    "seed": 12345678901234567890\n  }\n}'
    raw.fill('{"prompt": "ho", "words": 7, "extra": {"kept": [1.50]}')
    press(page, "Back to the form")
    expect(raw).to_have_attribute("aria-invalid", "true")
    raw.fill('{"prompt": "ho", "words": 7, "extra": {"kept": [1.50]}}')
    press(page, "Back to the form")
    expect(page.get_by_label("prompt")).to_have_value("ho")
    page.get_by_label("words").fill("8")
    press(page, "Submit")

    assert submitted(board, page)["payload"] == {"prompt": "ho", "words": 8, "extra": {"kept": [1.5]}}


def test_task_without_schema_takes_json(board: Board, tab: Callable[..., Tab]) -> None:
    page = form_at(tab(board.address), "task=chat")
    expect(page.get_by_role("button", name="Back to the form")).to_have_count(0)

    page.get_by_label("Payload as JSON").fill('{"seconds": 0, "n": 12345678901234567890}')
    press(page, "Submit")

    assert submitted(board, page)["payload"] == {"seconds": 0, "n": 12345678901234567890}


def test_job_is_replayed_with_an_edit(board: Board, tab: Callable[..., Tab]) -> None:
    payload = {"prompt": "hi", "sampling": {"seed": 12345678901234567890}, "words": 2}
    old = board.submit("ask", payload, labels={"user": "ann b"}, priority=3, max_attempts=2)
    board.until(old, "done")
    page = tab(board.address).open(f"/?view=job&id={old}")

    page.get_by_role("link", name="Replay with edits").click()
    expect(page.get_by_label("prompt")).to_have_value("hi")
    expect(page.get_by_label("seed")).to_have_value("12345678901234567890")
    expect(page.get_by_label("Labels")).to_have_value('user:"ann b"')
    page.get_by_label("prompt").fill("hi again")
    press(page, "Submit")

    new = submitted(board, page)
    assert new["job_id"] != old
    assert new["payload"] == {**payload, "prompt": "hi again"}
    assert (new["labels"], new["priority"], new["max_attempts"]) == ({"user": "ann b"}, 3, 2)
    assert "hi again" not in page.url


def test_what_was_typed_stays_from_room_to_room(board: Board, tab: Callable[..., Tab]) -> None:
    page = form_at(tab(board.address))
    page.get_by_label("prompt").fill("a long thought")

    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    page.get_by_role("link", name="New job").click()
    expect(page.get_by_label("prompt")).to_have_value("a long thought")
    press(page, "Start over")

    expect(page.get_by_label("Task", exact=True)).to_be_visible()
    assert page.get_by_text("a long thought").count() == 0


def test_lost_answer_and_another_press_make_one_job(board: Board, tab: Callable[..., Tab]) -> None:
    opened = tab(board.address)
    page = form_at(opened, "task=chat")
    opened.allowed = "ERR_FAILED"
    page.get_by_label("Labels").fill("set:once")
    page.route("**/v1/jobs", lambda route: (route.fetch(), route.abort()) if route.request.method == "POST" else None)
    press(page, "Submit")
    expect(page.get_by_role("alert")).to_contain_text("no answer")
    page.unroute("**/v1/jobs")

    press(page, "Submit")

    submitted(board, page)
    assert board.count(labels={"set": "once"}) == 1


def test_session_that_ended_is_asked_for_and_nothing_typed_is_lost(tab: Callable[..., Tab]) -> None:
    token = new_token()
    tokens = [{"name": "ann", "sha256": token.sha256.hex(), "scopes": ["client"]}]
    with running_board(JOBD_AUTH_TOKENS=json.dumps(tokens)) as board:
        opened = tab(board.address)
        opened.allowed = "status of 401"
        page = opened.open("/?view=submit&task=ask")
        page.get_by_label("Token").fill(token.text)
        press(page, "Sign in")
        page.get_by_label("prompt").fill("typed before")
        page.context.clear_cookies()

        press(page, "Submit")
        expect(page.get_by_role("dialog")).to_contain_text("what you typed is still there")
        page.get_by_label("Token").fill(token.text)
        press(page, "Sign in")

        expect(page.locator(".lead")).to_contain_text("Done")
        wait_until(lambda: shown_text(page) == "plain 0 plain 1 plain 2 ")
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_room_has_no_grave_fault_and_fits(board: Board, tab: Callable[..., Tab], scheme: str, size: Any) -> None:
    options = {"viewport": size} if size else {}
    page = form_at(tab(board.address, color_scheme=scheme, **options))
    page.get_by_label("words").fill("x" * 200)
    press(page, "Submit")
    expect(page.get_by_label("words")).to_have_attribute("aria-invalid", "true")

    assert grave_faults(page) == []
    assert not scrolls_sideways(page)
