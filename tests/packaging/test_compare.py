"""packaging/compare.py: what it prints. The measuring itself takes a network and a quiet machine."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import compare
import compare_probe
import pytest

from tests.support.daemon import TOP

if TYPE_CHECKING:
    from pathlib import Path

#: Medians of a run, rounded.
RECORDED = {
    "jobd": {
        "drain_default": 5000.0,
        "drain_100": 12000.0,
        "drain_no_mirror": 18000.0,
        "drain_worker": 900.0,
        "start_ms": 3.0,
        "result_ms": 5.5,
        "submit_in_turn": 1200.0,
        "submit_at_once": 2000.4,
        "submit_bulk": 30000.0,
    },
    "pgqueuer": {
        "drain": 20000.0,
        "start_ms": 2.5,
        "submit_in_turn": 1500.0,
        "submit_at_once": 2500.0,
        "submit_bulk": 40000.0,
    },
    "BullMQ": {
        "drain": 15000.0,
        "start_ms": 2.0,
        "submit_in_turn": 6000.0,
        "submit_at_once": 16000.0,
        "submit_bulk": 20000.0,
    },
}
VERSIONS = {"pgqueuer": "1.6.0", "BullMQ": "6.7.0"}


def cells_of(lines: list[str], what: str) -> list[str]:
    [line] = [line for line in lines if line.startswith(f"| {what} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_help_needs_nothing_but_python() -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(TOP / "packaging/compare.py"), "--help"], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "python3 packaging/compare.py --rounds 1 --jobs 500" in done.stdout


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--jobs", "-1"], ["--jobs", "many"]])
def test_numbers_below_one_are_refused(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(TOP / "packaging/compare.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2
    assert arguments[0] in done.stderr


@pytest.mark.parametrize(
    ("what", "cells"),
    [
        (
            "drain, default configuration (4 slots)",
            ["5 000/s", "20 000/s", "15 000/s", "0.25 of pgqueuer, 0.33 of BullMQ"],
        ),
        ("drain, 100 slots", ["12 000/s", "20 000/s", "15 000/s", "0.60 of pgqueuer, 0.80 of BullMQ"]),
        (
            "drain, `jobd worker` with 100 slots",
            ["900/s", "20 000/s", "15 000/s", "0.045 of pgqueuer, 0.060 of BullMQ"],
        ),
        ("submit to start, p50", ["3.0 ms", "2.5 ms", "2.0 ms", "1.20 of pgqueuer, 1.50 of BullMQ"]),
        ("submit to result in one call, p50", ["5.5 ms", "-", "-", ""]),
        ("submits in batches of 1 000", ["30 000/s", "40 000/s", "20 000/s", "0.75 of pgqueuer, 1.50 of BullMQ"]),
    ],
)
def test_ratio_is_the_figure_of_jobd_divided_by_that_of_the_peer(what: str, cells: list[str]) -> None:
    assert cells_of(compare.table(RECORDED, VERSIONS), what) == cells


def test_table_names_the_versions_and_has_as_many_cells_in_every_line() -> None:
    lines = compare.table(RECORDED, VERSIONS)

    assert lines[0] == "| what | jobd | pgqueuer 1.6.0 | BullMQ 6.7.0 | ratio |"
    assert len(lines) == 2 + len(compare.ROWS)
    assert {line.count("|") for line in lines} == {6}


def test_table_without_bullmq_leaves_its_column_empty() -> None:
    without = {system: figures for system, figures in RECORDED.items() if system != "BullMQ"}

    lines = compare.table(without, {"pgqueuer": "1.6.0"})

    assert lines[0] == "| what | jobd | pgqueuer 1.6.0 | BullMQ | ratio |"
    assert cells_of(lines, "drain, 100 slots") == ["12 000/s", "20 000/s", "-", "0.60 of pgqueuer"]


def test_median_is_taken_of_each_figure_by_itself() -> None:
    rounds: list[compare.Figures] = [
        {"jobd": {"drain_100": rate, "start_ms": ms}} for rate, ms in ((10.0, 3.0), (30.0, 1.0), (20.0, 2.0))
    ]

    assert compare.medians(rounds) == {"jobd": {"drain_100": 20.0, "start_ms": 2.0}}


def test_page_has_the_rows_that_the_command_prints() -> None:
    page = (TOP / "docs/figures.md").read_text()

    assert [row.what for row in compare.ROWS if f"| {row.what} |" not in page] == []
    assert "python3 packaging/compare.py" in page


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ([0, 2], "of 3 jobs 1 did not run, and there were 2 runs"),
        ([0, 1, 2, 1], "of 3 jobs 0 did not run, and there were 4 runs"),
        ([0, 1, 1], "of 3 jobs 1 did not run, and there were 3 runs"),
    ],
)
def test_lost_and_repeated_jobs_are_found(
    numbers: list[int], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"".join(struct.pack("<qq", number, 1000 + number) for number in numbers))
    monkeypatch.setenv(compare_probe.VARIABLE, str(probe))

    with pytest.raises(RuntimeError, match=problem):
        compare_probe.first_start(3)


def test_first_start_is_the_earliest_of_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"".join(struct.pack("<qq", number, at) for number, at in ((1, 70), (0, 50), (2, 60))))
    monkeypatch.setenv(compare_probe.VARIABLE, str(probe))

    assert compare_probe.first_start(3) == 50
