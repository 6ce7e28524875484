"""Comments of fields are read from the source, and from nothing else."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING

from jobd.http.field_comments import field_comments

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SOURCE = '''
class Base:
    #: Of the base.
    old: int
    # Not for readers.
    quiet: int


class Derived(Base):
    """A class."""

    #: In two
    #: lines.
    new: str = "#: not this"

    #: Apart from its field.

    bare: int
    #: Of the derived.
    old: int


class Stranger(dict[str, int]):
    value: int
'''


def module_of(folder: Path, source: str) -> ModuleType:
    path = folder / "made_up_fields.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("made_up_fields", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_comments_are_those_right_above_a_field_and_those_of_the_bases(folder: Path) -> None:
    assert field_comments(module_of(folder, SOURCE)) == {
        "Base": {"old": "Of the base."},
        "Derived": {"old": "Of the derived.", "new": "In two lines."},
        "Stranger": {},
    }


def test_module_without_source_has_no_comments_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert field_comments(ModuleType("nowhere")) == {}
    assert "the source of nowhere is missing" in caplog.text
