from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.page.board import Board, running_board
from tests.page.browser import DESKTOP, Tab, chromium, patience_ms, running_browser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a file; each test has contexts of its own, which share nothing.

    No longer than that: while playwright is up, its event loop runs in this thread, and no other test can run one.
    """
    if chromium() is None:
        pytest.skip("THE WEB PAGE IS NOT TESTED: no chromium here; on Debian: apt-get install chromium")
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    """One jobd with slots, for the tests of a file."""
    with running_board() as board:
        yield board


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Opens tabs of a jobd's page. A fault in any of them fails the test at its end."""
    opened: list[Tab] = []
    expect.set_options(timeout=patience_ms())

    def make(address: str, **options: Any) -> Tab:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        opened.append(Tab(context, address))
        return opened[-1]

    yield make
    faults = [fault for one in opened for fault in one.unexpected()]
    for context in list(browser.contexts):
        context.close()
    assert faults == []
