"""A disk that fills up while jobs run: nothing acknowledged is lost, and jobd goes on by itself."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from tests.support import submit_load
from tests.support.disk import small_disk
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.daemon import Jobd

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
DISK = "256m"


def fill(path: Path) -> None:
    """Take what is left, to the last block, whatever others take meanwhile."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


@pytest.fixture
def disk(folder: Path) -> Iterator[Path]:
    with small_disk(folder / "disk", DISK) as path:
        yield path


@pytest.mark.timeout(240)
def test_disk_that_is_full_for_a_while_costs_no_acknowledged_job(
    disk: Path, folder: Path, jobd: Callable[..., Jobd]
) -> None:
    daemon = jobd(disk / "data", *submit_load.arguments(folder), **submit_load.variables(folder)).start().until_ready()

    with submit_load.SubmitLoad(daemon) as submitted:
        submitted.wait_for_more(60, 20)
        fill(disk / "filler")
        wait_until(lambda: len(submitted.refused) > 5, daemon.log, 60)
        (disk / "filler").unlink()
        submitted.wait_for_more(90, 20)

    submitted.check()
    assert set(submitted.refused) <= {429, 503, 507}
    assert daemon.stop() == 0
