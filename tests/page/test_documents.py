"""The pages that describe the API, in a real browser: they run, and people who cannot see them can use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.page.browser import Tab, grave_faults
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.daemon import Jobd


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/docs", "/problems"])
def test_document_has_no_grave_fault(daemon: Jobd, tab: Callable[..., Tab], path: str, scheme: str) -> None:
    page = tab(daemon.address, color_scheme=scheme).open(path)
    expect(page.get_by_text("/v1/jobs" if path == "/docs" else "queue_full").first).to_be_visible()

    assert grave_faults(page) == []


WRONGS = {
    "console.error('first')": "console: first",
    "setTimeout(() => { throw new Error('second') })": "uncaught: second",
    "document.body.appendChild(document.createElement('script')).textContent = 'alert(3)'": "Content Security Policy",
    "document.body.appendChild(document.createElement('img')).src = 'http://127.0.0.2:1/4'": "another host: http://127",
    "setTimeout(() => alert('fifth'))": "dialog: fifth",
}


@pytest.mark.parametrize(("script", "fault"), WRONGS.items(), ids=range(len(WRONGS)))
def test_tab_keeps_what_a_page_does_wrong(daemon: Jobd, tab: Callable[..., Tab], script: str, fault: str) -> None:
    """What all other tests here rely on."""
    opened = tab(daemon.address, bypass_csp="another host" in fault)
    page = opened.open("/problems")

    page.evaluate(f"() => {{ {script} }}")

    wait_until(lambda: page.evaluate("1") and any(fault in found for found in opened.faults), lambda: opened.faults)
    opened.allowed = ""
