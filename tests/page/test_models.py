"""The room of the models: their names, and what becomes of a server that jobd runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.page.browser import PHONE, grave_faults, scrolls_sideways

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.page.browser import Tab
    from tests.support.daemon import Jobd

CONFIG = """
[models.talker]
task = "chat"
[models.small]
base_url = "http://127.0.0.1:9/v1"
argv = ["/nowhere/llama-server"]
start = "always"
[tickets]
enabled = false
"""


def test_models_are_shown_with_the_state_of_their_servers(
    jobd: Callable[..., Jobd], folder: Path, tab: Callable[..., Tab]
) -> None:
    config = folder / "jobd.toml"
    config.write_text(CONFIG)
    daemon = jobd(None, "--config", str(config)).start().until_ready()

    page = tab(daemon.address, viewport=PHONE).open("/?view=models")

    rows = page.get_by_role("table", name="Models").get_by_role("row")
    expect(rows.filter(has_text="talker")).to_contain_text("not run by jobd")
    expect(rows.filter(has_text="small")).to_contain_text("failed")
    assert not scrolls_sideways(page)
    assert grave_faults(page) == []
