"""The room of the board: what a Jetson shows, and why a job waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.board.trees import MEMINFO, ORIN_NANO_JETPACK_6, plant
from tests.page.browser import PHONE, grave_faults, scrolls_sideways
from tests.support.http import Api

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.page.browser import Tab
    from tests.support.daemon import Jobd

CONFIG = """
[tasks.large]
run = "mock"
needs_memory_mb = 3000
[board]
prefix = "{root}"
period_s = 0.1
[tickets]
enabled = false
"""


def test_board_is_shown_and_a_job_says_what_it_waits_for(
    jobd: Callable[..., Jobd], folder: Path, tab: Callable[..., Tab]
) -> None:
    root = plant(folder / "board", ORIN_NANO_JETPACK_6)
    plant(folder / "board", {"/proc/meminfo": MEMINFO.format(total=7620 << 10, available=3000 << 10, swap=0)})
    config = folder / "jobd.toml"
    config.write_text(CONFIG.format(root=root))
    daemon = jobd(None, "--config", str(config)).start().until_ready()

    page = tab(daemon.address, viewport=PHONE).open("/?view=board")

    expect(page.get_by_text("L4T 36.4.3, MAXN_SUPER")).to_be_visible()
    expect(
        page.get_by_role("table", name="Temperatures").get_by_role("row").filter(has_text="tj-thermal")
    ).to_contain_text("52.1 °C")
    expect(page.get_by_role("table", name="Power rails").get_by_text("VDD_IN (all)")).to_be_visible()
    expect(page.get_by_role("table", name="Disks").get_by_role("row").filter(has_text="mmcblk0")).to_contain_text(
        "30 %"
    )
    assert not scrolls_sideways(page)
    assert grave_faults(page) == []

    job_id = Api(daemon.address)("POST", "/v1/jobs", {"task": "large", "payload": {}}).json["job_id"]
    page = tab(daemon.address).open(f"/?view=job&id={job_id}")
    expect(page.get_by_text("It waits for memory: it needs 3000 MB, and 2232 MB are free for jobs.")).to_be_visible()
