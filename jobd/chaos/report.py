"""What a drill tried, and what came of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from jobd.chaos.check import BrokenPromise
from jobd.chaos.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobd.chaos.records import History

#: Findings that are printed; all are in the JSON.
SHOWN = 20


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    seconds: float
    #: Rounds of each fault.
    faults: dict[str, int]
    #: Faults that were wanted and cannot be had here, and why.
    skipped: dict[str, str]
    #: Rounds that were a kill -9.
    kills: int
    accepted: int
    #: Requests that were refused, by status, and those without an answer.
    refused: dict[int, int]
    unanswered: int
    #: Jobs by status, attempts by outcome.
    jobs: dict[str, int]
    attempts: dict[str, int]
    #: Jobs that were accepted and are gone; jobs that are done twice, or twice there.
    lost: int
    doubled: int
    #: Seconds from a start after a cut until jobd was ready: how many, the median and the longest.
    starts: int
    ready_p50_s: float
    ready_max_s: float
    findings: list[BrokenPromise]


def summary(
    history: History,
    findings: Sequence[BrokenPromise],
    *,
    seed: int,
    seconds: float,
    faults: Mapping[str, int],
    skipped: Mapping[str, str],
    unanswered: int,
    ready_s: Sequence[float],
) -> DrillReport:
    broken = Counter(finding.rule for finding in findings)
    ordered = sorted(ready_s) or [0.0]
    return DrillReport(
        seed=seed,
        seconds=round(seconds, 1),
        faults=dict(faults),
        skipped=dict(skipped),
        kills=sum(number for name, number in faults.items() if FAULTS[name].is_kill),
        accepted=len(history.accepted),
        refused=history.refusals,
        unanswered=unanswered,
        jobs=dict(Counter(job.status for job in history.jobs)),
        attempts=dict(Counter(attempt.outcome for attempt in history.attempts)),
        lost=broken["lost"],
        doubled=broken["doubled"],
        starts=len(ready_s),
        ready_p50_s=round(ordered[len(ordered) // 2], 3),
        ready_max_s=round(ordered[-1], 3),
        findings=list(findings),
    )


def lines(report: DrillReport) -> list[str]:
    rounds = [f"  {number:>5}  {FAULTS[name].text}" for name, number in report.faults.items()]
    skipped = [f"skipped: {FAULTS[name].text}: {why}" for name, why in report.skipped.items()]
    found = [f"  {finding.rule}: {finding.text}" for finding in report.findings[:SHOWN]]
    if len(report.findings) > SHOWN:
        found.append(f"  ... and {len(report.findings) - SHOWN} more; --json has all")
    return [
        f"{sum(report.faults.values())} rounds in {report.seconds:g} s, {report.kills} a kill -9 (seed {report.seed})",
        *rounds,
        *skipped,
        f"accepted      {report.accepted} jobs; {sum(report.refused.values())} refused, {report.unanswered} unanswered",
        f"jobs          {_numbers(report.jobs)}",
        f"attempts      {_numbers(report.attempts)}",
        f"ready again   p50 {report.ready_p50_s:.2f} s, max {report.ready_max_s:.2f} s after {report.starts} starts",
        f"lost          {report.lost}",
        f"done twice    {report.doubled}",
        "every promise was kept" if not report.findings else f"{len(report.findings)} promises were broken:",
        *found,
    ]


def _numbers(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counted.items())) or "none"
