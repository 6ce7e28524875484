"""Statements live in .sql files beside the verb that uses them, each under a line `-- name: ...`.

The text is constant, so asyncpg prepares each once per connection, and a missing name fails at import.
"""

from __future__ import annotations

import functools
import importlib.resources
import re

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def statement(name: str, package: str = "jobd.lifecycle") -> str:
    return all_statements(package)[name]


@functools.cache
def all_statements(package: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in importlib.resources.files(package).iterdir():
        if entry.name.endswith(".sql"):
            _, *parts = _NAME.split(entry.read_text("utf-8"))
            for name, text in zip(parts[::2], parts[1::2], strict=True):
                if name in found:
                    raise AssertionError(f"statement {name} stands in {package} twice")
                found[name] = f"-- name: {name}{text}"
    return found
