"""What a benchmark found: the raw figures of every round for programs, and a table of medians for people."""

from __future__ import annotations

import os
import platform
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

import jobd

if TYPE_CHECKING:
    from collections.abc import Sequence


Figures = TypeVar("Figures", bound=msgspec.Struct)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the report of every benchmark says of the program and the machine."""

    jobd: str
    python: str
    cores: int
    #: The machine's load average when it began and when it was done: figures of a busy machine say little.
    load: tuple[float, float]

    def line(self) -> str:
        return f"Python {self.python}, {self.cores} cores, load {self.load[0]:.1f} before, {self.load[1]:.1f} after"


def load_average() -> float:
    """Over the last minute."""
    return os.getloadavg()[0]


def machine(load_before: float) -> dict[str, Any]:
    """The fields of `Machine` as they are now, at the end of a benchmark."""
    return {
        "jobd": jobd.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count() or 1,
        "load": (load_before, load_average()),
    }


class BatchRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rows or jobs per second, in calls of one size on one connection."""

    insert: float
    update: float
    enqueue: float
    claim: float
    complete: float
    claim_complete: float
    lifecycle: float


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    median: BatchRates
    rounds: list[BatchRates]


class SideFigure(msgspec.Struct, frozen=True):
    """Something measured beside the table, per second."""

    median: float
    rounds: list[float]


class EngineReport(Machine, frozen=True, kw_only=True):
    #: Name and version of the Postgres.
    server: str
    seconds: float
    batches: list[BatchRow]
    #: The lifecycle in batches of 500 on two connections with jobs of their own.
    two_connections: SideFigure
    #: Commits of a single row: what the disk takes for each.
    commits: SideFigure


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    #: Share of the time, from 0 to 1, in which this process works; the rest it waits for Postgres.
    python: float
    #: cProfile's table of the functions that take most themselves.
    busiest: list[str]


def medians(rounds: Sequence[Figures]) -> Figures:
    """Each figure's own median over the rounds."""
    kind = type(rounds[0])
    return kind(**{name: median(getattr(figures, name) for figures in rounds) for name in kind.__struct_fields__})


def percentiles_ms(times: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile of durations in seconds, in milliseconds."""
    return median(times) * 1000, sorted(times)[int(len(times) * 0.99)] * 1000


def row(batch: int, rounds: Sequence[BatchRates]) -> BatchRow:
    return BatchRow(batch=batch, median=medians(rounds), rounds=list(rounds))


def side_figure(rounds: Sequence[float]) -> SideFigure:
    return SideFigure(median(rounds), list(rounds))


def profile_text(profile: Profile) -> list[str]:
    return [
        f"lifecycle, batch {profile.batch}: Python works {profile.python:.0%} of the time, else it waits for Postgres",
        "",
        *profile.busiest,
    ]


HEADINGS = ("batch", "INSERT", "UPDATE", "enqueue", "claim", "complete", "claim+complete", "lifecycle", "of floor")


def table(report: EngineReport) -> list[str]:
    """Medians in columns. `of floor` compares a lifecycle with the least it could be: an INSERT and two UPDATEs."""
    lines = [_aligned(HEADINGS), *(_aligned(_cells(row)) for row in report.batches)]
    commits = report.commits.median
    rounds = len(report.commits.rounds)
    return [
        f"jobs per second on one connection, median of {rounds} round{'s' if rounds > 1 else ''};",
        "INSERT and UPDATE: the floor, rows per second of a plain table on the same server",
        "",
        *lines,
        "",
        f"lifecycle, batch 500, two connections: {_number(report.two_connections.median)} jobs/s",
        f"commits of one row: {_number(commits)}/s, {1000 / commits:.2f} ms each",
        f"{report.server}, {report.line()}",
    ]


def _cells(row: BatchRow) -> tuple[str, ...]:
    rates = row.median
    floor = 1 / (1 / rates.insert + 2 / rates.update)
    numbers = (getattr(rates, name) for name in BatchRates.__struct_fields__)
    return (str(row.batch), *map(_number, numbers), f"{rates.lifecycle / floor:.0%}")


def _aligned(cells: Sequence[str]) -> str:
    return "  ".join(cell.rjust(max(len(heading), 7)) for cell, heading in zip(cells, HEADINGS, strict=True))


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")
