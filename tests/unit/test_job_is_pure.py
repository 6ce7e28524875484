"""`jobd/job` decides without awaiting and without built-ins that reach a file; test_layers.py holds its imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jobd.job

FORBIDDEN_NAMES = {"open", "input", "__import__", "eval", "exec"}

MODULES = sorted(Path(jobd.job.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_module_awaits_and_opens_nothing(path: Path) -> None:
    assert impure(path.read_text()) == []


@pytest.mark.parametrize("source", ["async def f(): ...", "open('x')", "def f():\n    return eval('1')"])
def test_what_is_impure_is_noticed(source: str) -> None:
    assert impure(source)


def impure(source: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(source)))
    awaiting = [ast.unparse(node) for node in nodes if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
    return awaiting + [node.id for node in nodes if isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES]
