"""The code of README.md and docs/*.md, as one would type it in, page by page.

toml        goes into the configuration of the jobd that the page is read beside
python      with `# name.py` in its first line is that file; others are scripts, run where they stand
sh          is typed where it stands; `command    # -> text` must print that text
json, yaml  must be well formed

A comment above a block, which readers do not see, says why it is left out: `<!-- not run: reason -->`, or which test
runs it: `<!-- run by: tests/... -->`.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, NamedTuple

from tests.support.daemon import TOP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = re.compile(r"^(?:<!-- (not run|run by): ([^\n]+?) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Kinds of blocks that are pictures or what a program prints.
SHOWN = frozenset({"mermaid", "text"})
PRINTS = "    # -> "


class Block(NamedTuple):
    #: "not run", "run by" or "".
    mark: str
    #: The reason, or the path of the test.
    about: str
    kind: str
    text: str

    @property
    def file_name(self) -> str | None:
        found = re.match(r"# (\S+\.py)\n", self.text) if self.kind == "python" else None
        return found[1] if found else None


class Page(NamedTuple):
    name: str
    blocks: list[Block]

    def of_kind(self, kind: str) -> list[Block]:
        return [block for block in self.blocks if block.kind == kind and not block.mark]

    @property
    def config(self) -> str:
        return "\n".join(block.text for block in self.of_kind("toml"))

    @property
    def files(self) -> dict[str, str]:
        return {block.file_name: block.text for block in self.of_kind("python") if block.file_name}

    @property
    def script(self) -> str:
        """All that is typed, in order, as one script for bash."""
        return "\n".join(line for block in self.blocks if not block.mark for line in _typed(block))

    @property
    def is_typed(self) -> bool:
        return bool(self.script.strip())


def _typed(block: Block) -> Iterator[str]:
    if block.kind == "python" and not block.file_name:
        yield f"python - <<'END_OF_PYTHON'\n{block.text}\nEND_OF_PYTHON"
    elif block.kind == "sh":
        for line in block.text.splitlines():
            command, prints, text = line.partition(PRINTS)
            yield f'printed=$({command})\n[ "$printed" = {shlex.quote(text)} ]' if prints else line


def read_page(path: Path) -> Page:
    return Page(str(path.relative_to(TOP)), [Block(*found) for found in BLOCK.findall(path.read_text())])


def all_pages() -> list[Page]:
    return [read_page(path) for path in (TOP / "README.md", *sorted((TOP / "docs").glob("*.md")))]
