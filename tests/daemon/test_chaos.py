"""The drill on a real board: short forms for every change, long ones on demand. What it proves is in docs/chaos.md."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from jobd.chaos.board import DrillBoard
from jobd.chaos.disk import LoopDisk
from jobd.chaos.drill import DrillOptions, run
from jobd.chaos.faults import FAULTS, PLAN
from tests.support.daemon import run_jobd

if TYPE_CHECKING:
    from pathlib import Path

    from jobd.chaos.report import DrillReport

KILLS = tuple(name for name, fault in FAULTS.items() if fault.is_kill)
needs_disk = pytest.mark.skipif(LoopDisk.why_not() is not None, reason=str(LoopDisk.why_not()))


def drill(rounds: int, *only: str) -> DrillReport:
    report = run(DrillOptions(rounds=rounds, only=only))
    assert report.findings == [], f"seed {report.seed}: {report.findings[:20]}"
    assert (report.lost, report.doubled) == (0, 0)
    assert sum(report.faults.values()) == rounds
    return report


@pytest.mark.timeout(240)
def test_kills_lose_nothing_double_nothing_and_cost_no_attempt() -> None:
    report = drill(9, *KILLS, "flush-redis")

    assert report.accepted
    assert report.starts == report.faults["kill-jobd"] + report.faults["kill-all"] + report.faults["kill-early"]


@needs_disk
@pytest.mark.timeout(240)
def test_disk_that_is_full_or_cut_off_costs_no_accepted_job() -> None:
    report = drill(2, "power-cut", "full-disk")

    assert report.refused
    assert report.skipped == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_kills() -> None:
    drill(50, *KILLS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_turns_of_all_faults() -> None:
    drill(3 * len(PLAN))


@needs_disk
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_power_cut_of_a_postgres_that_does_not_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """jobd refuses to start on such a Postgres, so it is changed while it runs and back again before each start."""
    start, until_ready = DrillBoard.start, DrillBoard.until_ready

    def settings_of(board: DrillBoard) -> Path:
        return board.data_dir / "postgres" / "postgresql.auto.conf"

    def start_with_sync(board: DrillBoard) -> None:
        if settings_of(board).exists():
            settings_of(board).write_text("")
        start(board)

    def until_ready_without_sync(board: DrillBoard, since: float | None = None) -> float:
        ready_s = until_ready(board, since)
        settings_of(board).write_text("fsync = off\n")
        board.signal(board.first_of("postgres"), signal.SIGHUP)
        return ready_s

    monkeypatch.setattr(DrillBoard, "start", start_with_sync)
    monkeypatch.setattr(DrillBoard, "until_ready", until_ready_without_sync)

    report = run(DrillOptions(rounds=4, only=("power-cut",)))

    assert report.lost


def test_given_data_directory_is_left_alone_unless_its_name_is_typed(folder: Path) -> None:
    given = folder / "data"
    given.mkdir()

    done = run_jobd("chaos", "--data-dir", str(given), "--rounds", "1")

    assert done.returncode != 0
    assert list(given.iterdir()) == []


def test_fault_that_there_is_not_is_refused() -> None:
    done = run_jobd("chaos", "--only", "earthquake")

    assert done.returncode == 2
    assert "kill-jobd" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_drill_on_a_given_data_directory_leaves_it_fit_for_use(folder: Path) -> None:
    given = folder / "data"
    given.mkdir()

    done = run_jobd("chaos", "--data-dir", str(given), "--yes", "--rounds", "2", "--only", "kill-all", "--json")

    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"], report["faults"]) == (0, [], {"kill-all": 2})
    assert run_jobd("migrate", "--check", "--data-dir", str(given)).returncode == 0
