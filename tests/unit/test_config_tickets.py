"""`[tickets]`: gates are tables that the file names, as queues and tasks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jobd.config.load import load
from jobd.config.model import GateCommand
from jobd.config.show import changes, rows
from jobd.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

LINT = '[tickets.gates.lint]\nargv = ["/usr/bin/lint", "--strict"]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobd.toml"


def test_a_gate_is_read_with_its_defaults(path: Path) -> None:
    path.write_text(f"[tickets]\nfour_eyes = true\n{LINT}")

    tickets = load(path, {}, {}).config.tickets

    assert (tickets.four_eyes, tickets.enabled, tickets.poll_s) == (True, True, 1)
    assert tickets.gates == {"lint": GateCommand(argv=("/usr/bin/lint", "--strict"), timeout_s=60)}


def test_without_any_gate_there_is_none(path: Path) -> None:
    path.write_text("")

    assert load(path, {}, {}).config.tickets.gates == {}


def test_a_variable_overrides_what_a_gate_says(path: Path) -> None:
    path.write_text(LINT)

    loaded = load(path, {"JOBD_TICKETS_GATES_LINT_TIMEOUT_S": "5"}, {})

    assert loaded.config.tickets.gates["lint"].timeout_s == 5
    assert loaded.origins["tickets.gates.lint.timeout_s"] == "env JOBD_TICKETS_GATES_LINT_TIMEOUT_S"


def test_gates_are_shown_and_compared(path: Path) -> None:
    path.write_text(LINT)
    loaded = load(path, {}, {})
    path.write_text(LINT.replace("strict", "lenient"))

    shown = {row.key: row.value for row in rows(loaded)}
    (change,) = changes(loaded.config, load(path, {}, {}).config)

    assert shown["tickets.gates.lint.argv"] == '["/usr/bin/lint", "--strict"]'
    assert (change.key, change.reloadable) == ("tickets.gates.lint.argv", False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tickets.gates.lint]\n", "tickets.gates.lint.argv is missing; it must be a list with at least one entry"),
        ("[tickets.gates.lint]\nargv = []\n", "must be a list with at least one entry (got an empty list)"),
        ('[tickets.gates.lint]\nargv = ["bin/lint"]\n', "must begin with an absolute path, or a name to find in PATH"),
        ('[tickets.gates.lint]\nargv = [""]\n', "must begin with an absolute path"),
        ('[tickets.gates.lint]\nargv = ["x"]\nshell = true\n', "unknown key tickets.gates.lint.shell"),
        ('[tickets.gates.lint]\nargv = ["x"]\ntimeout_s = 0\n', "must be a number above 0, at most 86400 (got 0)"),
        ('[tickets.gates."a b"]\nargv = ["x"]\n', "tickets.gates.a b: a name is 1 to 64 of a-z 0-9 _ . -"),
        ("[tickets]\ngates = 3\n", "unknown key tickets.gates"),
        ("[tickets]\nfour_eyes = 1\n", "tickets.four_eyes must be true or false (got 1)"),
    ],
)
def test_a_gate_that_makes_no_sense_is_refused_by_name(path: Path, text: str, expected: str) -> None:
    path.write_text(text)

    with pytest.raises(ConfigError) as refused:
        load(path, {}, {})

    assert expected in str(refused.value)
