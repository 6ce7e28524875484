"""What a project gets by installing jobd beside pytest: fixtures, found by their entry point, free while unused."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.daemon import TOP
from tests.support.prepared import KEPT

if TYPE_CHECKING:
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]  # only Python 3.10 has it installed

TASKS = """
from jobd import TaskFailed, task

@task
def double(payload, ctx):
    ctx.progress(1)
    return 2 * payload["n"]

@task(retry_base_s=300)
def third_time(payload, ctx):
    if ctx.attempt < 3:
        raise TaskFailed("again", "not yet")
    return ctx.attempt
"""
CONFIG = """
tasks_from = ["shop"]
[postgres]
url = "postgresql://nobody@192.0.2.1/in_earnest"
[redis]
url = "redis://192.0.2.1/0"
[schedules.often]
every = "1s"
task = "double"
payload = { n = 1 }
"""
TESTS = """
from shop import double

def test_call(jobd_context):
    assert double({"n": 2}, jobd_context) == 4
    assert jobd_context.shares == [1.0]

def test_server(jobd_server):
    assert jobd_server.run("double", {"n": 21}).result == 42
    assert jobd_server.client.stats() is not None
    assert jobd_server.client.schedules().schedules == []

def test_attempts_follow_at_once(jobd_server):
    job = jobd_server.run("third_time")
    assert (job.status, job.result) == ("done", 3)

def test_start(jobd_start):
    one, other = jobd_start(), jobd_start('[tasks.lines]\\nrun = "command"\\nargv = ["wc", "-l"]\\n')
    assert one.url != other.url
    assert one.run("double", {"n": 1}).result == 2
    assert other.run("lines").result == 0

def test_fails(jobd_server):
    print("here")
    assert jobd_server.run("double", {}).status == "done"
"""


#: Plugins that are installed here and take a second to import.
OTHERS = [
    f"-pno:{name}" for name in ("cacheprovider", "anyio", "hypothesispytest", "schemathesis", "xdist", "playwright")
]


def entry_points() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["entry-points"]
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with jobd as installed: on the import path, with the entry points of pyproject.toml."""
    meta = tmp_path / "site" / "jobd-0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: jobd\nVersion: 0\n")
    lines = [f"{name} = {where}" for name, where in entry_points()["pytest11"].items()]
    (meta / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return folder


def run_pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ,
        "PYTHONPATH": f"{TOP}:{project.parent / 'site'}",
        "JOBD_TEST_CACHE": str(KEPT),
        "JOBD_URL": "http://192.0.2.1:1",
        "JOBD_SERVER_PORT": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *OTHERS, *arguments],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        timeout=150,
    )


def test_project_tests_its_tasks_inline_and_in_a_jobd_of_its_own(project: Path) -> None:
    (project / "shop.py").write_text(TASKS)
    (project / "jobd.toml").write_text(CONFIG)
    (project / "test_shop.py").write_text(TESTS)

    ran = run_pytest(project, "-rA")

    assert "1 failed, 4 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "- jobd log -" in ran.stdout


def test_configuration_that_is_wrong_is_named_in_the_test_that_needs_it(project: Path) -> None:
    (project / "other.toml").write_text('tasks_from = ["no_such_module"]\n')
    (project / "pytest.ini").write_text("[pytest]\njobd_config = other.toml\n")
    (project / "test_it.py").write_text("def test_it(jobd_server):\n    pass\n")

    ran = run_pytest(project)

    assert "1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "no jobd for a test: tasks_from: cannot import no_such_module" in ran.stdout


def test_unused_it_imports_nothing_of_jobd_but_itself(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    found = {name for name in sys.modules if name.split('.')[0] in ('jobd', 'msgspec', 'anyio', 'asyncpg')}\n"
        "    assert found <= {'jobd', 'jobd.testing', 'jobd.testing.plugin'}, found\n"
        "    assert 'jobd.testing.plugin' in found\n"
    )

    ran = run_pytest(project)

    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
