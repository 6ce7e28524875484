"""Joins modules of the web page into one script, so that a phone makes one request for all of them.

The sources in `pages/app/` are ES modules, which a browser or an editor takes as they are. The bundle is one module of
all of them, in the order given: import lines are dropped, `export` is dropped from declarations, and so are whole-line
comments, indentation and spaces around punctuation. That is sound under three rules, and a module that breaks one is
refused: imports are of one line and name what the other module exports; a name is declared once among all modules; no
text spans lines.

The page has two bundles. The first exports what modules of the second import from its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_IMPORT = re.compile(r'import \{ (\w+(?:, \w+)*) \} from "\./([\w.-]+)";')
_DECLARATION = re.compile(r"(export )?(?:async )?(?:function|const|let|class) (\w+)")
#: A text in double quotes.
_TEXT = re.compile(r'("(?:[^"\\]|\\.)*")')
#: Punctuation that needs no space on either side; + and - do: `a - -b`.
_PUNCTUATION = re.compile(r" *([{}()\[\],;:=<>?&|!*]) *")
#: What looks like a regular expression or a text in single quotes: such a line is left as it is.
_OTHER_TEXT = re.compile(r"(?:^|[(,=:!&|?{;\[ ])/(?![/* ])|'")


class BundleError(ValueError):
    """A module that cannot be joined with the others."""


def bundle(modules: Mapping[str, str], later: Mapping[str, str] | None = None) -> str:
    """One script made of the sources by file name, in their order; it exports what those of a later one import."""
    lines = _joined(modules, {})
    shared = _imported(later or {}, modules)
    return "\n".join((*lines, f"export{{{','.join(shared)}}};" if shared else "", ""))


def later_bundle(modules: Mapping[str, str], first: Mapping[str, str], address: str) -> str:
    """The second script; `address` is where it finds the first, as its own imports write it."""
    lines = _joined(modules, first)
    return "\n".join((f'import{{{",".join(_imported(modules, first))}}}from"{address}";', *lines, ""))


def _joined(modules: Mapping[str, str], first: Mapping[str, str]) -> list[str]:
    exported = {name: _declared(source)[1] for name, source in (*first.items(), *modules.items())}
    owner = {word: name for name, source in first.items() for word in _declared(source)[0]}
    lines = []
    for name, source in modules.items():
        for word in _declared(source)[0]:
            if word in owner:
                raise BundleError(f"{name} declares {word}, and so does {owner[word]}; rename one")
            owner[word] = name
        for number, line in enumerate(source.splitlines(), 1):
            lines += _kept(f"{name}, line {number}", line, exported)
    return lines


def _imported(modules: Mapping[str, str], first: Mapping[str, str]) -> list[str]:
    """What the modules import from those of the first script, by name."""
    found = [match for source in modules.values() for match in _IMPORT.finditer(source) if match[2] in first]
    return sorted({word for match in found for word in match[1].split(", ")})


def _declared(source: str) -> tuple[list[str], set[str]]:
    """The names that a module declares at its top, and those of them that it exports."""
    found = [match for line in source.splitlines() if (match := _DECLARATION.match(line))]
    return [match[2] for match in found], {match[2] for match in found if match[1]}


def _kept(place: str, line: str, exported: Mapping[str, set[str]]) -> list[str]:
    """The line as it stands in the bundle; none for an import, a comment or an empty line."""
    if line.count("`") % 2:
        raise BundleError(f"{place}: a text in backquotes must end in the line where it begins")
    if line.startswith("import "):
        _check_import(place, line, exported)
        return []
    if line.startswith("export ") and not _DECLARATION.match(line):
        raise BundleError(f"{place}: export a function, const, let or class where it is declared")
    text = line.removeprefix("export ").strip()
    return [_tight(text)] if text and not text.startswith("//") else []


def _tight(line: str) -> str:
    """The line without spaces around punctuation, outside of texts."""
    first, last = line.find("`"), line.rfind("`") + 1
    if first >= 0:
        return _tight_code(line[:first]) + line[first:last] + _tight_code(line[last:])
    return _tight_code(line)


def _tight_code(code: str) -> str:
    parts = _TEXT.split(code)
    if any(_OTHER_TEXT.search(part) for part in parts[::2]):
        return code
    return "".join(part if number % 2 else _PUNCTUATION.sub(r"\1", part) for number, part in enumerate(parts))


def _check_import(place: str, line: str, exported: Mapping[str, set[str]]) -> None:
    match = _IMPORT.fullmatch(line)
    if match is None:
        raise BundleError(f'{place}: write an import as `import {{ a, b }} from "./module.js";` in one line')
    words, module = match[1].split(", "), match[2]
    if missing := [word for word in words if word not in exported.get(module, set())]:
        raise BundleError(f"{place}: {module} exports no {', '.join(missing)}")
