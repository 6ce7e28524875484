"""Tickets in the browser: written, decided about and followed by clicks, by two people with tokens of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.page.browser import PHONE, Tab, grave_faults, scrolls_sideways, sign_in
from tests.support.ticket_daemon import TOKENS, TicketDaemon, ticket_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tests.support.daemon import Jobd

    OpenTab = Callable[..., Tab]

#: What Chromium itself writes into the console about an answer that is no success.
REFUSED = r"Failed to load resource: the server responded with a status of "


@pytest.fixture(scope="module")
def tickets() -> Iterator[TicketDaemon]:
    with ticket_daemon() as running:
        yield running


def open_as(tab: OpenTab, tickets: TicketDaemon, name: str, path: str, **options: object) -> tuple[Tab, Page]:
    opened = tab(tickets.daemon.address, **options)
    opened.allowed = f"{REFUSED}401"
    page = opened.open(path)
    sign_in(page, TOKENS[name].text)
    return opened, page


def decide(page: Page, word: str, why: str = "") -> None:
    page.get_by_role("button", name=word, exact=True).click()
    dialog = page.get_by_role("dialog")
    if why:
        dialog.get_by_label("Why").fill(why)
    dialog.get_by_role("button", name=word, exact=True).click()


def test_ticket_goes_from_new_to_done_by_clicks(tickets: TicketDaemon, tab: OpenTab) -> None:
    _, ann = open_as(tab, tickets, "ann", "/?view=tickets")
    ann.get_by_role("link", name="New ticket").click()
    ann.get_by_label("Title").fill("Count the words")
    ann.get_by_label("Acceptance criteria").fill("all of them\nno fewer")
    ann.get_by_label("Task").select_option("echo")
    ann.get_by_label("Payload").fill('{"text": "one two"}')
    ann.get_by_label("A person signs off").check()
    ann.get_by_role("button", name="Write it").click()
    expect(ann.get_by_role("heading", name="Count the words")).to_be_visible()
    expect(ann.get_by_role("button", name="Approve")).to_have_count(0)
    expect(ann.get_by_text("Four eyes: ann wrote or edited this ticket")).to_be_visible()

    _, bob = open_as(tab, tickets, "bob", "/?view=tickets")
    bob.get_by_role("region", name="New").get_by_role("link", name="Count the words").click()
    expect(bob.get_by_text("no fewer")).to_be_visible()
    decide(bob, "Approve", "needed today")

    trail = bob.get_by_role("region", name="Trail")
    expect(trail.get_by_text("needed today")).to_be_visible()
    decide(bob, "Sign off", "well counted")
    expect(bob.locator(".chip.done", has_text="Done")).to_be_visible()
    expect(trail.get_by_text("Gates passed")).to_be_visible()
    trail.get_by_text("Output", exact=True).click()
    expect(trail.get_by_text('"text": "one two"')).to_be_visible()
    # Ann's page has followed all of it by the ticket's events, without a click.
    expect(ann.get_by_text("well counted")).to_be_visible()
    expect(ann.locator(".chip.done", has_text="Done")).to_be_visible()


def test_decision_about_an_old_version_is_explained_and_keeps_what_was_typed(
    tickets: TicketDaemon, tab: OpenTab
) -> None:
    made = tickets.new(title="Moves on")["ticket_id"]
    opened, page = open_as(tab, tickets, "bob", f"/?view=ticket&id={made}")
    opened.allowed = f"{REFUSED}(401|409)"
    page.get_by_role("button", name="Reject").click()
    page.get_by_role("dialog").get_by_label("Why").fill("not like this")

    tickets.ann("PATCH", f"/v1/tickets/{made}", {"title": "Moved on"})
    page.get_by_role("dialog").get_by_role("button", name="Reject").click()

    expect(page.get_by_role("dialog")).to_contain_text("has changed since you looked at it")
    page.get_by_role("button", name="Show it").click()
    expect(page.get_by_role("heading", name="Moved on")).to_be_visible()
    page.get_by_role("button", name="Reject").click()
    expect(page.get_by_role("dialog").get_by_label("Why")).to_have_value("not like this")
    page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    expect(page.locator(".head .chip", has_text="Blocked")).to_be_visible()
    assert tickets.ticket(made)["blocked_reason"].endswith("not like this")


WORDS = [("reject", "Reject", "Blocked"), ("unblock", "Unblock", "New"), ("reopen", "Reopen", "To do|In progress|Done")]


@pytest.mark.parametrize(("word", "button", "then"), WORDS, ids=[word for word, _, _ in WORDS])
def test_decision_is_kept_with_name_and_reason(
    tickets: TicketDaemon, tab: OpenTab, word: str, button: str, then: str
) -> None:
    made: str = tickets.approved() if word == "reopen" else tickets.new()["ticket_id"]
    if word == "unblock":
        tickets.decide(made, "reject")
    elif word == "reopen":
        tickets.wait_for_status(made, "DONE")
    _, page = open_as(tab, tickets, "bob", f"/?view=ticket&id={made}")

    decide(page, button, "because of that")

    expect(page.locator(".head .chip")).to_have_text(re.compile(then))
    expect(page.get_by_text("because of that").first).to_be_visible()
    kinds = [(one["kind"], one["decided_by"], one["why"]) for one in tickets.trail(made)["decisions"]]
    assert kinds[-1] == (word.upper(), "bob", "because of that")


def test_refused_output_fails_the_gate(tickets: TicketDaemon, tab: OpenTab) -> None:
    made = tickets.approved(gates=[{"type": "sign_off"}])
    tickets.wait_for_status(made, "IN_PROGRESS", "SIGN_OFF")
    _, page = open_as(tab, tickets, "bob", f"/?view=ticket&id={made}")

    decide(page, "Refuse", "too short")

    expect(page.locator(".head .chip", has_text="Blocked")).to_be_visible()
    expect(page.get_by_text("Gates failed")).to_be_visible()


def test_new_ticket_is_edited_and_only_what_changed_is_sent(tickets: TicketDaemon, tab: OpenTab) -> None:
    big = 2**60 + 1  # no number of JavaScript
    made = tickets.new(payload={"n": big}, gates=[{"type": "minimum", "pointer": "/n", "value": 3}])["ticket_id"]
    _, page = open_as(tab, tickets, "ann", f"/?view=ticket&id={made}")

    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Title").fill("Count again")
    page.get_by_role("main").get_by_text("More", exact=True).click()
    page.get_by_label("Runs until").fill("3")
    page.get_by_role("button", name="Save").click()

    expect(page.get_by_role("heading", name="Count again")).to_be_visible()
    ticket = tickets.ticket(made)
    assert (ticket["title"], ticket["max_runs"], ticket["payload"]) == ("Count again", 3, {"n": big})
    assert ticket["gates"] == [{"type": "minimum", "pointer": "/n", "value": 3}]


def test_form_that_is_refused_keeps_what_was_typed_and_says_why(tickets: TicketDaemon, tab: OpenTab) -> None:
    opened, page = open_as(tab, tickets, "ann", "/?view=ticket_form")
    opened.allowed = f"{REFUSED}(401|422)"
    page.get_by_label("Title").fill("Half a thought")
    page.get_by_label("Payload").fill("{no json")

    page.get_by_role("button", name="Write it").click()
    expect(page.get_by_role("alert")).to_contain_text("Payload is no JSON")
    page.get_by_label("Payload").fill("[]")
    page.get_by_role("button", name="Write it").click()

    expect(page.get_by_role("alert")).to_contain_text("payload")
    expect(page.get_by_label("Title")).to_have_value("Half a thought")


def test_phone_shows_one_column_at_a_time(tickets: TicketDaemon, tab: OpenTab) -> None:
    tickets.new(title="On a phone")
    made = tickets.new(title="Turned down")["ticket_id"]
    tickets.decide(made, "reject")
    _, page = open_as(tab, tickets, "bob", "/?view=tickets", viewport=PHONE)

    expect(page.get_by_role("link", name="On a phone")).to_be_visible()
    expect(page.get_by_role("link", name="Turned down")).to_be_hidden()
    page.get_by_role("group", name="Column").get_by_role("button", name="Blocked").click()

    expect(page.get_by_role("link", name="Turned down")).to_be_visible()
    expect(page.get_by_role("link", name="On a phone")).to_be_hidden()
    assert not scrolls_sideways(page)
    assert grave_faults(page) == []


def test_nameless_caller_is_asked_for_a_name_that_is_remembered(daemon: Jobd, tab: OpenTab) -> None:
    """Without tokens nobody knows who calls."""
    page = tab(daemon.address).open("/?view=ticket_form")
    page.get_by_label("Title").fill("By hand")
    page.get_by_label("Your name").fill("carla")
    page.get_by_role("button", name="Write it").click()
    expect(page.get_by_role("heading", name="By hand")).to_be_visible()

    page.reload()
    page.get_by_role("button", name="Reject").click()

    expect(page.get_by_role("dialog").get_by_label("Your name")).to_have_value("carla")
    page.get_by_role("dialog").get_by_role("button", name="Reject").click()
    expect(page.get_by_text("carla rejected it")).to_be_visible()
