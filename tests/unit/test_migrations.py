from __future__ import annotations

import importlib.resources

import pytest

from jobd.store.migrate import NAME, known_migrations


def test_known_migrations_are_numbered_from_one_without_a_gap() -> None:
    known = known_migrations()

    assert [migration.number for migration in known] == list(range(1, len(known) + 1))
    assert known


def test_every_sql_file_of_the_package_is_a_known_migration() -> None:
    files = {
        entry.name
        for entry in importlib.resources.files("jobd.store").joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    }

    assert files == {f"{migration.number:04d}_{migration.name}.sql" for migration in known_migrations()}


def test_every_migration_says_something() -> None:
    assert all(migration.sql.strip() for migration in known_migrations())


@pytest.mark.parametrize(
    "name", ["1_short.sql", "0001-dash.sql", "0001_Upper.sql", "0001_x.sql.orig", "0001_.sql", "x.sql"]
)
def test_file_of_another_name_is_no_migration(name: str) -> None:
    assert not NAME.fullmatch(name)
