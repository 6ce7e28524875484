"""The `#:` comments above the fields of a module's classes, read from its source: the field descriptions of OpenAPI.

A class also has the comments of its bases in the same module. Without source (an installation of .pyc files only) there
are no comments; that is logged, and the tests fail for a comment that does not reach the document.
"""

from __future__ import annotations

import ast
import inspect
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

log = logging.getLogger(__name__)

MARK = "#:"


def field_comments(module: ModuleType) -> dict[str, dict[str, str]]:
    """The comment of each field, by class."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        log.warning("the source of %s is missing: its fields have no descriptions in /openapi.json", module.__name__)
        return {}
    lines = source.splitlines()
    by_class: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            comments: dict[str, str] = {}
            for base in node.bases:
                comments |= by_class.get(base.id, {}) if isinstance(base, ast.Name) else {}
            by_class[node.name] = comments | _comments_in(node, lines)
    return by_class


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
