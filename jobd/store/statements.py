"""Statements live in .sql files beside the verb that uses them, each under a line `-- name: ...`.

The text is constant, so asyncpg prepares each once per connection, and a missing name fails at import. What several
statements have in common stands once, under a line `-- fragment: ...`, and takes the place of `-- include: ...`; with a
number after the name, as in `-- include: ... +10`, its parameters are counted from there, so its $1 is $11.
"""

from __future__ import annotations

import functools
import importlib.resources
import re

_NAME = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include: (\w+)(?: \+(\d+))?$", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+)")


def statement(name: str, package: str = "jobd.lifecycle") -> str:
    return all_statements(package)[name]


@functools.cache
def all_statements(package: str) -> dict[str, str]:
    texts: dict[str, dict[str, str]] = {"name": {}, "fragment": {}}
    for entry in importlib.resources.files(package).iterdir():
        if entry.name.endswith(".sql"):
            _, *parts = _NAME.split(entry.read_text("utf-8"))
            for kind, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                if name in texts[kind]:
                    raise AssertionError(f"{kind} {name} stands in {package} twice")
                texts[kind][name] = text
    return {name: f"-- name: {name}{_included(text, texts['fragment'])}" for name, text in texts["name"].items()}


def _included(text: str, fragments: dict[str, str]) -> str:
    """The text with the fragments that it includes, and those that they include, in place."""

    def fragment(include: re.Match[str]) -> str:
        before = int(include[2] or 0)
        included = _included(fragments[include[1]], fragments)
        return _PARAMETER.sub(lambda n: f"${int(n[1]) + before}", _COMMENT.sub("", included).strip())

    return _INCLUDE.sub(fragment, text)
