"""Debian's Chromium, driven by Playwright, and a tab that keeps every fault of a page.

A fault is an error in the console, an uncaught exception, a violation of the page's own content policy, or a request to
another host. Tests that end jobd on purpose allow the errors that come of it.
"""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it ships no types
from playwright.sync_api import sync_playwright

from tests.support.wait import slowness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: Seconds that a page may take to show something, on a machine with a core to spare.
PATIENCE_S = 20.0
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 800}
#: What axe must not find; "minor" and "moderate" are advice.
GRAVE = ("serious", "critical")


def chromium() -> str | None:
    return shutil.which("chromium")


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        yield browser
        browser.close()


class Tab:
    """One page of a fresh browser context, and its faults so far."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.page: Page = context.new_page()
        self.address = address
        self.faults: list[str] = []
        #: Faults that match are no faults: a test sets it before it ends jobd.
        self.allowed = "(?!)"
        self.page.set_default_timeout(patience_ms())
        self.page.on("console", self._note_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        self.page.on("dialog", self._note_dialog)
        self.page.on("request", self._note_request)

    def open(self, path: str = "/") -> Page:
        self.page.goto(f"http://{self.address}{path}")
        return self.page

    def unexpected(self) -> list[str]:
        return [fault for fault in self.faults if not re.search(self.allowed, fault)]

    def _note_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" or "Content Security Policy" in message.text:
            self.faults.append(f"console: {message.text} {message.location.get('url', '')}")

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((f"http://{self.address}/", "data:", "blob:")):
            self.faults.append(f"request to another host: {request.url}")

    def _note_dialog(self, dialog: Any) -> None:
        """Only a script that was injected opens one."""
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def patience_ms() -> float:
    return PATIENCE_S * 1000 * slowness()


def grave_faults(page: Page) -> list[str]:
    """What axe-core holds against the page: rule, elements and why."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for violation in found
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def sign_in(page: Page, token: str) -> None:
    """Through the form, as a person does."""
    form = page.get_by_role("dialog", name="Sign in")
    form.get_by_label("Token").fill(token)
    form.get_by_role("button", name="Sign in").click()
    form.wait_for(state="detached")
