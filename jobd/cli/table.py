"""Rows for people and for programs: a table on a terminal, else one line a row with tabs between its values.

A terminal that is too narrow loses the columns that matter least; what is still too wide is cut at its edge.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import click

from jobd.cli.show import one_line
from jobd.cli.times import lasting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GAP = "  "
STATUS_COLOURS = {"queued": "cyan", "running": "blue", "done": "green", "error": "red", "canceled": "yellow"}
STATUS_COLOURS |= {"NEW": "cyan", "TODO": "cyan", "IN_PROGRESS": "blue", "BLOCKED": "red", "DONE": "green"}


class Column(NamedTuple):
    title: str
    is_number: bool = False
    #: Left out of a table that would be too wide; the last such column goes first.
    is_extra: bool = False


def is_terminal() -> bool:
    return sys.stdout.isatty()


def show_rows(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, nothing: str) -> None:
    """`nothing` is said on a terminal when there are no rows."""
    texts = ([one_line(_text(value)) for value in row] for row in rows)
    if not is_terminal():
        for row in texts:
            click.echo("\t".join(row))
        return
    lines = list(texts)
    if not lines:
        click.echo(nothing)
        return
    for line in table_lines(columns, lines, shutil.get_terminal_size().columns):
        click.echo(line)


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    widths = [max(len(column.title), *(len(row[n]) for row in rows)) for n, column in enumerate(columns)]
    kept = list(range(len(columns)))
    for n in reversed(range(len(columns))):
        if _total(widths, kept) > width and columns[n].is_extra:
            kept.remove(n)
    head = _line([column.title for column in columns], columns, widths, kept)
    lines = [coloured(_cut(head, width), bold=True)]
    lines.extend(_with_colour(_cut(_line(row, columns, widths, kept), width), row) for row in rows)
    return lines


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[n] for n in kept) + len(GAP) * (len(kept) - 1)


def _line(row: Sequence[str], columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int]) -> str:
    cells = (row[n].rjust(widths[n]) if columns[n].is_number else row[n].ljust(widths[n]) for n in kept)
    return GAP.join(cells).rstrip()


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _with_colour(line: str, row: Sequence[str]) -> str:
    for status, colour in STATUS_COLOURS.items():
        if status in row:
            before, word, after = line.partition(f"{GAP}{status}")
            return f"{before}{coloured(word, fg=colour)}{after}"
    return line


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    return "-" if value is None else str(value)


def coloured(text: str, *, fg: str | None = None, bold: bool = False) -> str:
    """For `click.echo`, which leaves colours out where there is no terminal."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if unwanted or not text else click.style(text, fg=fg, bold=bold or None)


def ago(ts: int | None) -> str | None:
    """How long ago a moment was, roughly; never less than nothing, whatever the two clocks say."""
    return None if ts is None else lasting(time.time() - ts / 1000)
