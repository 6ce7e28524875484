"""Imports point one way: `job` <- `store`, `stream`, `lifecycle` <- `api`, `services` <- `supervisor` <- `cli`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jobd

TOP = Path(jobd.__file__).parent
MODULES = {
    ".".join(("jobd", *path.relative_to(TOP).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(TOP.rglob("*.py"))
}
#: All that `job` may import besides itself; none of it can reach a clock, a file or another process.
PURE = ("__future__", "collections.abc", "dataclasses", "enum", "msgspec", "typing", "typing_extensions")
ABOVE_THE_STORES = ("jobd.api", "jobd.services", "jobd.supervisor", "jobd.daemon", "jobd.cli")


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


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def wrong_imports(module: str, source: str) -> set[str]:
    names = imported(source)
    if is_within(module, ("jobd.job",)):
        return {name for name in names if not is_within(name, (*PURE, "jobd.job"))}
    if is_within(module, ("jobd.store", "jobd.stream", "jobd.lifecycle")):
        return {name for name in names if is_within(name, ABOVE_THE_STORES)}
    if module in ("jobd.cli", "jobd.__main__"):  # the latter only to call it
        return set()
    return {name for name in names if is_within(name, ("jobd.cli",))}


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_nothing_from_above_it(module: str) -> None:
    assert wrong_imports(module, MODULES[module].read_text("utf-8")) == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jobd.job.machine", "import os"),
        ("jobd.job.machine", "from time import monotonic"),
        ("jobd.job.machine", "def late():\n    import anyio"),
        ("jobd.job.machine", "from jobd.store import postgres"),
        ("jobd.store.postgres", "from jobd import supervisor"),
        ("jobd.store.migrate", "import jobd.api.app"),
        ("jobd.stream.connection", "if TYPE_CHECKING:\n    from jobd.services.links import StoreLink"),
        ("jobd.supervisor", "from jobd.cli import main"),
        ("jobd.api.health", "from jobd import cli"),
    ],
)
def test_import_from_above_is_noticed(module: str, source: str) -> None:
    assert wrong_imports(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("jobd.job.machine", "from jobd.job.model import JobView\nfrom msgspec import Struct"),
        ("jobd.store.postgres", "import asyncpg\nfrom jobd.errors import ServerDown"),
        ("jobd.supervisor", "import clicker\nfrom jobd import climate"),
        ("jobd.__main__", "from jobd.cli import main"),
    ],
)
def test_import_from_below_is_let_be(module: str, source: str) -> None:
    assert not wrong_imports(module, source)


def test_every_layer_that_the_rules_speak_of_is_there() -> None:
    assert {"jobd.cli", "jobd.supervisor", "jobd.job", "jobd.store", "jobd.stream", "jobd.services"} <= set(MODULES)
