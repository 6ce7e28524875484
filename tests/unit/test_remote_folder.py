"""The folder of a worker: its own while it runs, and that of a dead one afterwards."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from jobd.config.model import Config, Task
from jobd.errors import DataDirRefused
from jobd.worker.folder import own_folder

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = {"tool": Task(run="command", argv=("/bin/true",))}


def test_workers_on_one_machine_have_folders_of_their_own(tmp_path: Path) -> None:
    config = Config(data_dir=str(tmp_path / "w"), tasks=COMMAND)

    with own_folder(config) as first, own_folder(config) as second:
        pass
    with own_folder(config) as third:
        pass

    assert first == tmp_path / "w" / "0"
    assert second != first
    assert third == first, "what a dead worker left is found by the next"
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o700


def test_worker_whose_tasks_need_no_folder_makes_none(tmp_path: Path) -> None:
    with own_folder(Config(data_dir=str(tmp_path / "w"))):
        pass

    assert not (tmp_path / "w").exists()


def test_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = Config(data_dir=str(tmp_path / "file" / "w"), tasks=COMMAND)

    with pytest.raises(DataDirRefused, match=r"file/w cannot be used: .*--data-dir"), own_folder(config):
        pass
