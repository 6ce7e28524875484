"""Imports point one way: each package imports only those that the table allows it, and no chain of them leads back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import jobd

TOP = Path(jobd.__file__).parent
MODULES = {
    ".".join(("jobd", *path.relative_to(TOP).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(TOP.rglob("*.py"))
}
#: What lies at the top of the package beside packages: the public names, `python -m jobd`, and the errors.
AT_THE_TOP = {"jobd", "jobd.__main__", "jobd.errors"}
#: All that `job` may import besides itself; none of it can reach a clock, a file or another process.
PURE = ("__future__", "collections.abc", "dataclasses", "enum", "msgspec", "typing", "typing_extensions")
#: Package -> the packages that it may import, from the bottom to the top. `errors` is open to all but `job`.
TABLE = """
job         ->
host        ->
occurrences ->
config      -> job host occurrences
wire        -> config
openai      -> job config
supervise   -> host
board       -> config wire supervise
store       -> host supervise
files       -> host store
lifecycle   -> job store
engine      -> job host config supervise store lifecycle
leases      -> job config supervise store lifecycle
tasks       -> job host config wire openai lifecycle
model_servers -> job host config wire supervise lifecycle tasks
stream      -> job host config wire supervise store lifecycle engine tasks
batches     -> config wire openai supervise store files lifecycle engine tasks
auth        -> config wire supervise store
dispatch    -> job host config wire board openai supervise store lifecycle engine leases tasks stream
tickets     -> job host config wire supervise store lifecycle engine leases tasks
schedules   -> job occurrences config wire supervise store lifecycle engine auth tickets
follow      -> job wire supervise store lifecycle stream tickets
servers     -> host config supervise store stream
maintenance -> host config supervise store lifecycle engine auth tickets files batches
http        -> job host config wire board openai supervise store lifecycle engine tasks stream auth dispatch tickets schedules follow occurrences files batches model_servers
client      -> job host config wire
worker      -> job host config wire supervise lifecycle leases tasks stream dispatch client
backup      -> host config supervise store lifecycle engine auth servers files
serve       -> host occurrences config wire board supervise store lifecycle engine leases tasks stream auth dispatch tickets schedules follow servers maintenance http backup files batches model_servers
bench       -> job host config wire store lifecycle tasks servers http client backup serve
testing     -> job host config wire store tasks servers client serve
dev         -> host config supervise tasks
chaos       -> host store tasks
cli         -> host config wire supervise store auth client worker backup serve bench testing dev chaos
"""  # noqa: E501 - a table
MAY_IMPORT = {line.split()[0]: set(line.split()[2:]) for line in TABLE.strip().splitlines()}


def imported(source: str) -> set[str]:
    """The full name of everything that a module imports, wherever in it and for whatever purpose."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def package_of(name: str) -> str:
    """The package of a module or of a name in one; "" for what lies at the top."""
    part = f"{name}.".split(".")[1]
    is_package = (TOP / part).is_dir() if name.count(".") < 2 else f"jobd.{part}" not in AT_THE_TOP
    return part if part and is_package else ""


def wrong_imports(module: str, source: str) -> set[str]:
    names = imported(source)
    package = package_of(module)
    if package == "job":
        return {name for name in names if not name.startswith((*PURE, "jobd.job."))}
    ours = {name for name in names if name == "jobd" or name.startswith("jobd.")}
    if module == "jobd.errors" or package not in {"", *MAY_IMPORT}:
        return ours
    allowed = {"", package, *MAY_IMPORT[package]} if package else {"", *MAY_IMPORT}
    return {name for name in ours if package_of(name) not in allowed}


def cycle_in(table: dict[str, set[str]]) -> list[str]:
    """Packages that import each other in a ring, or nothing."""
    left = {package: set(below) for package, below in table.items()}
    while ready := [package for package, below in left.items() if not below & left.keys()]:
        for package in ready:
            del left[package]
    return sorted(left)


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_what_its_package_may(module: str) -> None:
    assert wrong_imports(module, MODULES[module].read_text("utf-8")) == set()


def test_the_table_has_every_package_and_no_other() -> None:
    packages = {path.parent.name for path in TOP.glob("*/__init__.py")}
    assert set(MAY_IMPORT) == packages
    assert {below for allowed in MAY_IMPORT.values() for below in allowed} <= packages


def test_packages_do_not_import_each_other_in_a_ring() -> None:
    assert cycle_in(MAY_IMPORT) == []
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c", "d"]


def test_what_the_table_allows_is_used() -> None:
    """An entry that nobody needs any more would let something in that nobody looks at."""
    used: dict[str, set[str]] = {package: set() for package in MAY_IMPORT}
    for module, path in MODULES.items():
        if package := package_of(module):
            names = imported(path.read_text("utf-8"))
            used[package] |= {package_of(name) for name in names if name.startswith("jobd.")}
    assert {package: used[package] - {"", package} for package in used} == MAY_IMPORT


def test_only_three_modules_lie_at_the_top() -> None:
    assert {name for name in MODULES if name.count(".") < 2 and MODULES[name].parent == TOP} == AT_THE_TOP


def test_programs_in_strings_import_modules_that_exist() -> None:
    """What jobd starts with `python -c` is text: neither mypy nor the table would notice a module that moved."""
    named = {
        (module, name)
        for module, path in MODULES.items()
        for name in re.findall(r"\bfrom (jobd\.[\w.]+) import", path.read_text("utf-8"))
    }
    assert {(module, name) for module, name in named if name not in MODULES} == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jobd.job.machine", "import os"),
        ("jobd.job.machine", "from time import monotonic"),
        ("jobd.job.machine", "def late():\n    import anyio"),
        ("jobd.job.machine", "from jobd.store import postgres"),
        ("jobd.job.machine", "from jobd.errors import JobdError"),
        ("jobd.errors", "from jobd.job import model"),
        ("jobd.store.postgres", "from jobd import engine"),
        ("jobd.store.migrate", "import jobd.http.app"),
        ("jobd.stream.connection", "if TYPE_CHECKING:\n    from jobd.servers.connections import StoreLink"),
        ("jobd.supervise.supervisor", "from jobd.cli.main import main"),
        ("jobd.http.health", "from jobd import cli"),
        ("jobd.wire.tickets", "from jobd.tickets import read"),
        ("jobd.client.sync", "from jobd.http import app"),
        ("jobd.tasks.openai.runner", "from jobd.client import sync"),
        ("jobd.unheard_of.module", "from jobd.errors import JobdError"),
    ],
)
def test_forbidden_import_is_noticed(module: str, source: str) -> None:
    assert wrong_imports(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jobd.job.machine", "from jobd.job.model import JobView\nfrom msgspec import Struct"),
        ("jobd.store.postgres", "import asyncpg\nfrom jobd.errors import ServerDown\nfrom jobd import __version__"),
        ("jobd.supervise.supervisor", "import clicker\nimport jobdaemon"),
        ("jobd.__main__", "from jobd.cli.main import main"),
    ],
)
def test_allowed_import_is_let_be(module: str, source: str) -> None:
    assert not wrong_imports(module, source)
