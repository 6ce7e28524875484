"""What the `#:` comments above the fields of a module's classes say, read from its source.

A class has the comments of its bases in the same module too. Where there is no source there are no comments.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

MARK = "#:"


def field_comments(module: ModuleType) -> dict[str, dict[str, str]]:
    """The comment of each field, by class."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        return {}
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            comments: dict[str, str] = {}
            for base in node.bases:
                comments |= found.get(base.id, {}) if isinstance(base, ast.Name) else {}
            found[node.name] = comments | _comments_in(node, lines)
    return found


def _comments_in(node: ast.ClassDef, lines: Sequence[str]) -> dict[str, str]:
    comments = {}
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            comment = _comment_above(field.lineno - 1, lines)
            if comment:
                comments[field.target.id] = comment
    return comments


def _comment_above(index: int, lines: Sequence[str]) -> str:
    parts: list[str] = []
    while index and (line := lines[index - 1].strip()).startswith(MARK):
        parts.insert(0, line.removeprefix(MARK).strip())
        index -= 1
    return " ".join(parts)
