"""The room of one job: text that resumes from its cursor, attempts, contents, actions, and nothing that can run."""

from __future__ import annotations

import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.page.board import Board, free_port, hide, running_board, shown_text
from tests.page.browser import PHONE, grave_faults, scrolls_sideways
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tests.page.browser import Tab

#: What a browser says of a jobd that is gone for a while.
AWAY = r"ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|status of 503"


def job_at(tab: Tab, job_id: str) -> Page:
    page = tab.open(f"/?view=job&id={job_id}")
    expect(page.locator(".head code").first).to_have_text(job_id[-8:])
    return page


def shows(page: Page, text: str) -> bool:
    return shown_text(page) == text


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


# Live text


def test_text_grows_as_it_is_told(board: Board, tab: Callable[..., Tab]) -> None:
    job_id = board.submit(queue="still")
    page = job_at(tab(board.address), job_id)
    expect(page.locator(".lead")).to_contain_text("first in line in queue still")

    held = board.claim()
    expect(page.locator(".lead")).to_contain_text("Attempt 1 of 3 has been running for")
    told = ""
    for text in ("Once ", "upon ", "a  time\n", "é 漢字 🙂"):
        board.tokens(held, text)
        told += text
        wait_until(partial(shows, page, told))
    board.complete(held, {"ok": True})

    expect(page.locator(".lead")).to_contain_text("Done")
    assert shown_text(page) == board.text_of(job_id) == "Once upon a  time\né 漢字 🙂"


def test_hidden_page_closes_its_stream_and_goes_on_from_its_cursor(board: Board, tab: Callable[..., Tab]) -> None:
    job_id = board.submit(queue="still")
    held = board.claim()
    board.tokens(held, "one ")
    page = job_at(tab(board.address), job_id)
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/events" in request.url else None)
    wait_until(lambda: shown_text(page) == "one ")

    hide(page, True)
    board.tokens(held, "two ", "three ")
    page.wait_for_timeout(1500)
    assert shown_text(page) == "one "
    assert streams == []
    hide(page, False)
    wait_until(lambda: shown_text(page) == "one two three ")
    board.tokens(held, "four")
    board.complete(held)

    wait_until(lambda: shown_text(page) == "one two three four" == board.text_of(job_id))
    assert [url.partition("after=")[2] for url in streams] == ["1-1"]


class Teller(threading.Thread):
    """A worker elsewhere: tells one token after the other, each until it is taken, through a restart of jobd."""

    def __init__(self, board: Board, held: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._board, self._held = board, held
        self.told = 0
        self.may_end = threading.Event()

    def run(self) -> None:
        while not self.may_end.is_set():
            event = {"type": "token", "data": {"text": f"{self.told} "}}
            self._until_taken("events", {"events": [event], "offset": self.told})
            self.told += 1
            time.sleep(0.01)
        self._until_taken("complete", {"attempt_id": self._held["attempt_id"], "result": 1})

    def _until_taken(self, verb: str, body: dict[str, Any]) -> None:
        names = {"events": ("job_id", "lease_token")}.get(verb, tuple(self._held))
        while True:
            try:
                assert self._board.post(verb, {**{name: self._held[name] for name in names}, **body})["ok"]
                return
            except (OSError, ValueError):
                time.sleep(0.05)
            except AssertionError as error:
                if "503" not in str(error):
                    raise
                time.sleep(0.05)


def test_text_is_whole_though_jobd_is_killed_while_it_is_watched(tab: Callable[..., Tab]) -> None:
    with running_board("--port", str(free_port())) as board:
        job_id = board.submit(queue="still")
        teller = Teller(board, board.claim())
        opened = tab(board.address)
        opened.allowed = AWAY
        page = job_at(opened, job_id)
        teller.start()
        wait_until(lambda: len(shown_text(page).split()) > 20)

        board.daemon.kill()
        expect(page.locator(".banner")).to_contain_text("jobd has not answered for")
        board.daemon.start().until_ready()
        seen, told = len(shown_text(page)), teller.told
        wait_until(lambda: teller.told > told + 20, timeout_s=60)
        wait_until(lambda: len(shown_text(page)) > seen, timeout_s=60)
        teller.may_end.set()
        teller.join(60)

        expect(page.locator(".lead")).to_contain_text("Done")
        expect(page.locator(".banner")).to_have_count(0)
        assert shown_text(page) == board.text_of(job_id) == "".join(f"{n} " for n in range(teller.told))
        page.close()


def test_attempt_that_died_with_jobd_is_followed_by_the_next(tab: Callable[..., Tab]) -> None:
    with running_board("--port", str(free_port())) as board:
        job_id = board.submit("ask", {"prompt": "hi", "words": 60}, max_attempts=5)
        opened = tab(board.address)
        opened.allowed = AWAY
        page = job_at(opened, job_id)
        wait_until(lambda: "plain 3 " in shown_text(page))

        board.daemon.kill()
        board.daemon.start().until_ready()

        expect(page.locator(".lead")).to_contain_text("Done")
        expect(page.locator(".cut").last).to_have_text("Attempt 2")
        assert shown_text(page) == board.text_of(job_id)
        expect(page.locator(".attempts li")).to_have_count(2)
        page.close()


def test_gaps_and_drops_are_shown_where_they_are(board: Board, tab: Callable[..., Tab]) -> None:
    job_id = board.submit(queue="still")
    held = board.claim()
    board.tokens(held, "before ")
    board.say(held, {"type": "dropped", "data": {"count": 12}})
    board.tokens(held, "after")
    page = job_at(tab(board.address), job_id)
    wait_until(lambda: shown_text(page) == "before after")

    assert page.locator(".tall span").all_text_contents() == ["before ", "12 events were dropped here.", "after"]
    board.complete(held)


def test_large_text_and_log_are_bounded_in_the_page(board: Board, tab: Callable[..., Tab]) -> None:
    job_id = board.submit(queue="still", payload={"text": "p" * 60_000})
    held = board.claim()
    for start in range(0, 200, 50):
        board.tokens(held, *(f"{n:0999} " for n in range(start, start + 50)))
    for start in range(0, 700, 100):
        board.say(held, *({"type": "log", "data": {"line": f"line {n}"}} for n in range(start, start + 100)))
    board.complete(held, "r" * 100_000)
    page = job_at(tab(board.address), job_id)

    expect(page.get_by_text("line 699")).to_be_visible()
    wait_until(lambda: shown_text(page).endswith(f"{199:0999} "))
    assert len(shown_text(page)) <= 64_000
    expect(page.get_by_text(re.compile(r"characters at the beginning not shown"))).to_be_visible()
    assert page.locator(".log p").count() == 500
    expect(page.get_by_text("200 lines at the beginning not shown.")).to_be_visible()
    page.get_by_text("Payload", exact=True).click()
    expect(page.locator(".json")).to_have_count(1)
    assert len(page.locator(".json").inner_text()) == 20_000
    page.get_by_text(re.compile("more characters")).click()
    expect(page.locator(".json")).to_have_count(2)
    large = page.get_by_role("link", name="Open the result, which is large")
    assert page.request.get(f"http://{board.address}/{large.get_attribute('href')}").json() == "r" * 100_000


# In words


def test_waiting_is_explained(board: Board, tab: Callable[..., Tab]) -> None:
    delayed = board.submit(queue="other", delay_s=3000)
    page = job_at(tab(board.address), delayed)
    expect(page.locator(".lead")).to_contain_text(re.compile(r"It is to begin in (49|50) min, at "))

    for _ in range(2):
        last = board.submit(queue="other")
    board.api("POST", "/v1/queues/other/pause")
    page.goto(f"http://{board.address}/?view=job&id={last}")
    expect(page.locator(".lead")).to_have_text(
        "Queue other is paused: it waits, second in line, until somebody resumes it."
    )
    board.api("POST", "/v1/queues/other/resume")
    expect(page.locator(".lead")).to_have_text(re.compile(r"^It is second in line in queue other(, about .*)?\.$"))


def test_attempts_are_on_one_axis_with_owner_outcome_and_error(board: Board, tab: Callable[..., Tab]) -> None:
    job_id = board.submit(queue="still", labels={"user": "ann"}, max_attempts=2)
    board.fail(board.claim(), code="oom", message="no memory left", retryable=True)
    board.complete(board.claim(), {"answer": [1, {"deep": 12345678901234567890}]})
    page = job_at(tab(board.address), job_id)

    first, second = page.locator(".attempts li").all()
    expect(first).to_contain_text(re.compile("1.*failed.*w-1.*oom no memory left", re.S))
    expect(second).to_contain_text(re.compile("2.*done.*w-1", re.S))
    places = [float(bar.get_attribute("x") or 0) for bar in page.locator(".axis rect:not(.under)").all()]
    assert 0 <= places[0] < places[1] <= 1000
    expect(page.locator(".facts")).to_contain_text("user ann")
    expect(page.locator(".json")).to_have_count(0)
    page.get_by_text("Result", exact=True).click()
    expect(page.locator(".json")).to_contain_text('"deep": 12345678901234567890')


# Actions


def test_job_is_canceled_after_a_question(board: Board, tab: Callable[..., Tab]) -> None:
    job_id = board.submit(queue="still")
    page = job_at(tab(board.address), job_id)

    press(page, "Cancel")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert board.read(job_id)["status"] == "queued"
    press(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()

    expect(page.locator(".lead")).to_contain_text("Canceled")
    assert board.read(job_id)["status"] == "canceled"
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def test_dead_letter_is_retried_as_a_linked_job(board: Board, tab: Callable[..., Tab]) -> None:
    job_id = board.submit(queue="still", max_attempts=1)
    board.fail(board.claim(), message="no luck", retryable=False)
    page = job_at(tab(board.address), job_id)
    expect(page.locator(".problem")).to_have_text("boom no luck")

    press(page, "Retry")
    expect(page.locator(".facts")).to_contain_text("Retry of")
    again = page.url.rpartition("id=")[2]
    assert board.read(again)["redriven_from"] == job_id
    page.locator(".facts").get_by_role("link", name=job_id[-8:]).click()

    expect(page.locator(".facts")).to_contain_text("Retried as")
    expect(page.locator(".facts").get_by_role("link", name=again[-8:])).to_be_visible()
    press(page, "Retry")
    expect(page.get_by_role("dialog")).to_contain_text("It was run again already")
    board.api("POST", f"/v1/jobs/{again}/cancel")


def test_job_that_is_not_there_is_said(board: Board, tab: Callable[..., Tab]) -> None:
    opened = tab(board.address)
    opened.allowed = "status of 404"

    page = opened.open("/?view=job&id=01a1ee38-da4a-7000-9270-000000000000")

    expect(page.get_by_role("alert")).to_have_text("there is no job 01a1ee38-da4a-7000-9270-000000000000")


# Nothing that a client or worker says can run

MARKUP = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg/onload=alert(3)>',
    "javascript:alert(4)",
    "</pre></textarea><iframe srcdoc='<script>alert(5)</script>'>",
    "{{alert(6)}} ${alert(7)}",
    "\u202egnp.exe\u2066 <a href='javascript:alert(8)'>click</a>",
)
INJECTED = "main script, main iframe, main img, main [onerror], main [onload], main a[href^='javascript' i]"


@pytest.fixture(scope="module", params=MARKUP, ids=range(len(MARKUP)))
def hostile(board: Board, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A job that says it wherever a client or a worker can say something."""
    text: str = request.param
    job_id = board.submit(payload={"p": text, text: 1}, queue="still", labels={"what": text}, max_attempts=2)
    board.fail(board.claim(), code=text[:60], message=text, retryable=True)
    held = board.claim()
    board.tokens(held, text)
    board.say(
        held,
        {"type": "log", "step": text[:200], "data": {"line": text, "level": text}},
        {"type": "progress", "step": text[:200], "data": {"progress": 0.5}},
        {"type": "custom", "step": text[:200], "data": {text: text}},
    )
    yield job_id, text
    board.complete(held, {"r": text, text: [text]})


def test_markup_is_text_in_every_place(board: Board, tab: Callable[..., Tab], hostile: tuple[str, str]) -> None:
    job_id, text = hostile
    page = job_at(tab(board.address), job_id)

    wait_until(lambda: shown_text(page) == text)
    expect(page.locator(".log p")).to_have_count(2)
    page.get_by_text("Payload", exact=True).click()
    for place in (".attempts .error", ".log p:first-child", ".log p:last-child", ".facts .label"):
        assert text[:60] in (page.locator(place).first.text_content() or ""), place
    expect(page.locator(".json")).to_contain_text('"p": ')
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", page.locator(".json").inner_text())
    assert page.locator(INJECTED).count() == 0
    page.goto(f"http://{board.address}/?view=jobs")
    expect(page.locator(".label", has_text=text[:20]).first).to_be_visible()
    page.locator(".label", has_text=text[:20]).first.click()
    expect(page.locator(".jobs tbody tr")).to_have_count(1)
    assert page.locator(INJECTED).count() == 0
    assert page.locator(".label bdi").last.evaluate("(node) => getComputedStyle(node).unicodeBidi") == "isolate"
    page.goto(f"http://{board.address}/?view=submit&from={job_id}")
    expect(page.get_by_label("Payload as JSON")).to_have_value(re.compile('"p": '))
    assert page.locator(INJECTED).count() == 0


def test_markup_in_the_address_is_text(board: Board, tab: Callable[..., Tab]) -> None:
    opened = tab(board.address)
    opened.allowed = "status of 404"
    page = opened.open("/?view=job&id=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(page.get_by_role("alert")).to_contain_text("is no job id")

    page.goto(f"http://{board.address}/?view=jobs&q=%3Cscript%3Ealert(1)%3C/script%3E:x")

    expect(page.get_by_role("combobox", name="Search jobs")).to_have_value("<script>alert(1)</script>:x")
    assert page.locator(INJECTED).count() == 0


# How it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "phone"])
def test_room_has_no_grave_fault_and_fits(board: Board, tab: Callable[..., Tab], scheme: str, size: Any) -> None:
    job_id = board.submit(queue="still", payload={"k" * 90: "v" * 900}, labels={"x" * 60: "y" * 400}, max_attempts=2)
    board.fail(board.claim(), code="c" * 100, message="m" * 500, retryable=True)
    held = board.claim()
    board.tokens(held, "t" * 500)
    board.say(held, {"type": "log", "data": {"line": "l" * 500}}, {"type": "progress", "data": {"percent": 40}})
    options = {"viewport": size} if size else {}
    page = job_at(tab(board.address, color_scheme=scheme, **options), job_id)

    page.get_by_text("Payload", exact=True).click()
    expect(page.locator(".json")).to_be_visible()
    expect(page.get_by_text("40 %")).to_be_visible()

    assert grave_faults(page) == []
    assert not scrolls_sideways(page)
    board.complete(held)
