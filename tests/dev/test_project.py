"""`jobd new`: what it writes passes its own tests, and it overwrites nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jobd.config.load import load
from jobd.dev.project import FILES
from tests.support.daemon import TOP, run_jobd
from tests.support.prepared import KEPT

if TYPE_CHECKING:
    from pathlib import Path


def test_new_project_passes_its_tests(tmp_path: Path) -> None:
    written = run_jobd("new", str(tmp_path / "shop"))
    assert written.returncode == 0, written.stderr
    assert {path.name for path in (tmp_path / "shop").iterdir()} == set(FILES)

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "jobd.testing.plugin", "-p", "no:schemathesis"],
        cwd=tmp_path / "shop",
        env={**os.environ, "PYTHONPATH": str(TOP), "JOBD_TEST_CACHE": str(KEPT)},
        capture_output=True,
        text=True,
        timeout=150,
    )

    assert "5 passed" in ran.stdout, ran.stdout + ran.stderr


def test_its_configuration_is_right_also_with_the_model(tmp_path: Path) -> None:
    model = (
        FILES["jobd.toml"].replace("# [tasks.chat]\n# run", "[tasks.chat]\nrun").replace("\n# base_url", "\nbase_url")
    )
    (tmp_path / "jobd.toml").write_text(model)

    config = load(tmp_path / "jobd.toml", {}, {}).config

    assert (config.tasks["chat"].run, config.data_dir) == ("openai", str(tmp_path / "data"))


@pytest.mark.parametrize("what", ["file", "full folder"])
def test_nothing_is_overwritten(tmp_path: Path, what: str) -> None:
    place = tmp_path / "shop"
    if what == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "tasks.py").write_text("mine")

    refused = run_jobd("new", str(place))

    assert (refused.returncode, refused.stdout) == (78, "")
    assert str(place) in refused.stderr
    assert (place if what == "file" else place / "tasks.py").read_text() == "mine"
    assert what == "file" or len(list(place.iterdir())) == 1
