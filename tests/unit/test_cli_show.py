"""What commands make of rows, words of strangers, payload flags, and how a list of commands says what they do."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from msgspec import Raw

from jobd.cli.lazy import COMPLETION, JOBS, TOKEN, Later
from jobd.cli.payload import merged, read_values
from jobd.cli.show import bar, event_line, indented, one_line, plain
from jobd.cli.table import Column, ago, table_lines
from jobd.cli.times import lasting
from jobd.client import Event
from tests.support.daemon import environment

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = (Column("JOB"), Column("STATUS"), Column("N", is_number=True), Column("MORE", is_extra=True))
ROWS = (("aaaa", "done", "7", "something"), ("b", "running", "12345", "-"))


@pytest.fixture(autouse=True)
def no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


# -- tables -------------------------------------------------------------------------------------------------------


def test_table_stands_in_columns() -> None:
    assert table_lines(COLUMNS, ROWS, 80) == [
        "JOB   STATUS       N  MORE",
        "aaaa  done         7  something",
        "b     running  12345  -",
    ]


def test_table_that_is_too_wide_loses_its_extras_and_then_its_edge() -> None:
    assert table_lines(COLUMNS, ROWS, 25)[1] == "aaaa  done         7"
    assert table_lines(COLUMNS, ROWS, 10)[1] == "aaaa  don…"


def test_colour_is_that_of_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "xterm")

    assert table_lines(COLUMNS, ROWS, 80)[1] == "aaaa\x1b[32m  done\x1b[0m         7  something"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0.9, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_a_moment_to_come_was_no_time_ago() -> None:
    assert (ago(None), ago(int(time.time() * 1000) + 60_000)) == (None, "0s")


# -- words of strangers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["a\x1b[2Jb", "a\x07b", "a\x9bb", "a\u202eb", "a\u2028b", "a\u2066b", "a\rb", "a\x00b"]
)
def test_what_could_steer_a_terminal_goes(text: str) -> None:
    assert plain(text) in ("ab", "a[2Jb")


def test_words_cannot_pass_for_lines_of_ours() -> None:
    forged = Event(id="1-1", type="log", ts=0, step="", data={"line": "x\njobd: job 1 was canceled"})

    assert one_line("a\n\tb") == "a  b"
    assert indented("a\nb", 2) == "a\n  b"
    assert event_line(forged) == "log: x\n  jobd: job 1 was canceled"


@pytest.mark.parametrize(
    ("share", "encoding", "text"),
    [(0.0, "utf-8", "░░░░   0%"), (0.5, "UTF-8", "██░░  50%"), (1.0, "ascii", "#### 100%"), (0.26, None, "#---  26%")],
)
def test_bar_needs_no_colours(share: float, encoding: str | None, text: str) -> None:
    assert bar(share, 4, encoding) == text


# -- payload flags ------------------------------------------------------------------------------------------------


def values(*texts: str) -> dict[str, Raw]:
    return read_values(click.Context(click.Command("x")), click.Option(["--set"]), texts)


def test_values_go_on_top_of_the_payload(tmp_path: Path) -> None:
    (tmp_path / "text").write_text('"é"\n')
    found = values("a=1", "b:= [1.50]", "c=x=y", "d=", f"e=@{tmp_path}/text", "a=2", "f:g:=null")

    assert bytes(merged(Raw(b'{"z":10000000000000000000000,"a":0}'), found)).decode() == (
        '{"z":10000000000000000000000,"a":"2","b":[1.50],"c":"x=y","d":"","e":"\\"é\\"\\n","f:g":null}'
    )
    assert merged(Raw(b'{ "a" : 1 }'), {}) == Raw(b'{ "a" : 1 }')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "must be like text=hello"),
        ("=a", "must be like text=hello"),
        ("a:=x", "the value of 'a' cannot be read"),
        ("a:=", "the value of 'a' cannot be read"),
        ("a=@/none", "No such file or directory"),
        ("a=@/bin/sh", "the value of 'a' cannot be read"),
    ],
)
def test_values_that_cannot_be_are_named(text: str, words: str) -> None:
    with pytest.raises(click.BadParameter, match=words):
        values(text)


# -- commands that are loaded late --------------------------------------------------------------------------------


def test_help_loads_nothing_that_takes_long() -> None:
    asked = "from jobd.cli.main import main\ntry: main(['--help'])\nfinally: print(sorted(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{asked}"], env=environment({}), capture_output=True, text=True, timeout=18
    )

    help_text, _, modules = done.stdout.rpartition("\n[")
    assert "completion " in help_text
    assert "'jobd.cli.lazy'" in modules
    for slow in ("rich", "httpx", "asyncpg", "jobd.client", "jobd.cli.jobs", "jobd.cli.token", "jobd.cli.top.command"):
        assert f"'{slow}'" not in modules


@pytest.mark.parametrize("later", [*JOBS, TOKEN, COMPLETION], ids=lambda one: one.name)
def test_command_says_the_same_in_the_list_and_itself_and_shows_examples(later: Later) -> None:
    real = later.load()

    assert real.name == later.name
    assert later.short_help is not None and real.help is not None
    assert real.help.startswith(later.short_help.rstrip("."))
    for command in real.commands.values() if isinstance(real, click.Group) else [real]:
        text = CliRunner().invoke(command, ["--help"]).output
        assert "Examples:\n" in text
        assert f"jobd {real.name} " in text
