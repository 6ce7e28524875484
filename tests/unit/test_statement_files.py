"""Statements in files: their names, and the fragments that they share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from jobd.store.statements import all_statements, statement

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A package whose name no other test has: statements are read once."""
    name = f"statements_{abs(hash(request.node.name))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def write(tmp_path: Path, package: str, file: str, text: str) -> None:
    (tmp_path / package / file).write_text(text)


def test_a_fragment_stands_in_the_place_of_its_include_without_its_comments(tmp_path: Path, package: str) -> None:
    write(
        tmp_path,
        package,
        "a.sql",
        "-- fragment: both\n-- What it is.\n$1 AND $2\n\n-- name: one\nSELECT\n-- include: both\n;\n",
    )

    assert statement("one", package) == "-- name: one\nSELECT\n$1 AND $2\n;\n"


def test_an_include_may_count_the_parameters_from_a_number(tmp_path: Path, package: str) -> None:
    write(tmp_path, package, "a.sql", "-- fragment: both\n$1 AND $12\n")
    write(tmp_path, package, "b.sql", "-- name: one\nSELECT $1,\n-- include: both +10\n")

    assert statement("one", package) == "-- name: one\nSELECT $1,\n$11 AND $22\n"


def test_fragments_may_include_fragments_and_count_on(tmp_path: Path, package: str) -> None:
    write(tmp_path, package, "a.sql", "-- fragment: inner\n$1\n\n-- fragment: outer\n$1,\n-- include: inner +2\n")
    write(tmp_path, package, "b.sql", "-- name: one\nSELECT\n-- include: outer +10\n")

    assert statement("one", package) == "-- name: one\nSELECT\n$11,\n$13\n"


def test_a_name_that_stands_twice_is_refused(tmp_path: Path, package: str) -> None:
    for file in ("a.sql", "b.sql"):
        write(tmp_path, package, file, "-- name: one\nSELECT 1\n")

    with pytest.raises(AssertionError, match="name one stands in"):
        all_statements(package)


def test_a_fragment_that_is_missing_is_refused(tmp_path: Path, package: str) -> None:
    write(tmp_path, package, "a.sql", "-- name: one\nSELECT\n-- include: missing\n")

    with pytest.raises(KeyError, match="missing"):
        all_statements(package)


def test_every_statement_that_starts_jobs_notes_the_starts_that_count() -> None:
    starting = {
        name
        for name, text in all_statements("jobd.lifecycle").items()
        if re.search(r"attempt_no = (jobs\.)?attempt_no \+", text)
    }

    noting = {name for name, text in all_statements("jobd.lifecycle").items() if "INSERT INTO limit_takes" in text}

    assert "take_jobs" in starting
    assert starting == noting
