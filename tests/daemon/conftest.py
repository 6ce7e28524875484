from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import Jobd

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def shared() -> Iterator[Jobd]:
    """One jobd for all tests that only look at it, all of it made by itself."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    daemon = Jobd(folder / "data").start(prepared=False).until_ready()
    yield daemon
    daemon.clean_up()
    shutil.rmtree(folder)
