"""Statements live in .sql files beside the verb that uses them, each under a line `-- name: ...`.

The text is constant, so asyncpg prepares each once per connection, and a missing name fails at import. What several
statements have in common stands once, under a line `-- fragment: ...`, and takes the place of `-- include: ...`.
"""

from __future__ import annotations

import functools
import importlib.resources
import re

_NAME = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


def statement(name: str, package: str = "jobd.lifecycle") -> str:
    return all_statements(package)[name]


@functools.cache
def all_statements(package: str) -> dict[str, str]:
    found: dict[str, dict[str, str]] = {"name": {}, "fragment": {}}
    for entry in importlib.resources.files(package).iterdir():
        if entry.name.endswith(".sql"):
            _, *parts = _NAME.split(entry.read_text("utf-8"))
            for kind, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                if name in found[kind]:
                    raise AssertionError(f"{kind} {name} stands in {package} twice")
                found[kind][name] = text
    fragments = {name: _COMMENT.sub("", text).strip() for name, text in found["fragment"].items()}
    return {
        name: f"-- name: {name}{_INCLUDE.sub(lambda include: fragments[include[1]], text)}"
        for name, text in found["name"].items()
    }
