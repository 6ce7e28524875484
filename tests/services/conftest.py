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
def shared_postgres() -> Iterator[str]:
    """The URL of a Postgres that tests may add databases to."""
    folder = Path(tempfile.mkdtemp(prefix="jt-"))
    folder.chmod(0o755)
    daemon = Jobd(folder / "data").start().until_ready()
    yield daemon.addresses["DATABASE_URL"]
    daemon.clean_up()
    shutil.rmtree(folder)
