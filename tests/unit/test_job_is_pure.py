"""`jobd/job` decides without a clock, I/O, awaiting or chance: it has nothing at hand to reach them with."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jobd.job

ALLOWED = {"__future__", "collections.abc", "dataclasses", "enum", "msgspec", "typing", "typing_extensions"}
FORBIDDEN_NAMES = {"open", "input", "__import__", "eval", "exec"}

MODULES = sorted(Path(jobd.job.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_module_imports_nothing_that_could_do_io(path: Path) -> None:
    assert [name for name in imports(path.read_text()) if not is_pure(name)] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_module_awaits_and_opens_nothing(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))

    assert not [node for node in nodes if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    assert not [node for node in nodes if isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES]


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import random",
        "import jobd.store.postgres",
        "from jobd import config",
        "import anyio",
    ],
)
def test_an_impure_import_is_noticed(source: str) -> None:
    assert not all(is_pure(name) for name in imports(source))


def imports(source: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [
                f"{node.module}.{alias.name}" if node.module == "jobd" else f"{node.module}" for alias in node.names
            ]
    return names


def is_pure(name: str) -> bool:
    return name in ALLOWED or name.startswith("msgspec.") or name == "jobd.job" or name.startswith("jobd.job.")
