from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.daemon import Jobd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """What `jobd serve` runs on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path that every user can enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="jt-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def jobd(folder: Path) -> Iterator[Callable[..., Jobd]]:
    """Makes `jobd serve` processes, and ends whatever is left of them."""
    made: list[Jobd] = []

    def make(data_dir: Path | None = None, *arguments: str, **variables: str) -> Jobd:
        daemon = Jobd(data_dir or folder / "data", *arguments, **variables)
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.clean_up()


@pytest.fixture(autouse=True)
def no_jobd_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("JOBD_"):
            monkeypatch.delenv(name)
