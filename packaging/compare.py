#!/usr/bin/env python3
"""Measure jobd beside other job systems (pgqueuer on Postgres, BullMQ on Valkey), on this machine, in one run.

Each jobd is a `jobd serve` of this checkout on a throw-away data directory. The peers are installed from PyPI and npm
into a temporary folder, and run on the Postgres and the Valkey of such a jobd. Rounds take turns and medians count.
It fails if a job is lost or runs twice. Run it on a quiet machine: figures of a busy one mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from check import TOP, python_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EXAMPLES = """examples:
  python3 packaging/compare.py                          the table of docs/figures.md
  python3 packaging/compare.py --rounds 1 --jobs 500    does it work here?
  python3 packaging/compare.py --json > figures.json    the figures of every round, for programs
"""


class Row(NamedTuple):
    """A line of the table."""

    what: str
    #: The figure of jobd, and the figure of the peers that it is compared with.
    figure: str
    beside: str
    #: Jobs per second, where more is better, or milliseconds, where less is better.
    unit: str


ROWS = (
    Row("drain, default configuration (4 slots)", "drain_default", "drain", "/s"),
    Row("drain, 100 slots", "drain_100", "drain", "/s"),
    Row("drain, 100 slots, `mirror = false`", "drain_no_mirror", "drain", "/s"),
    Row("drain, `jobd worker` with 100 slots", "drain_worker", "drain", "/s"),
    Row("submit to start, p50", "start_ms", "start_ms", "ms"),
    Row("submit to result in one call, p50", "result_ms", "result_ms", "ms"),
    Row("submits one after the other", "submit_in_turn", "submit_in_turn", "/s"),
    Row("submits, 50 at once", "submit_at_once", "submit_at_once", "/s"),
    Row("submits in batches of 1 000", "submit_bulk", "submit_bulk", "/s"),
)
#: The columns between `what` and `ratio`.
SYSTEMS = ("jobd", "pgqueuer", "BullMQ")
#: The figures of each system.
Figures = dict[str, dict[str, float]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument("--jobs", type=positive, default=20_000, metavar="N", help="of each drain; default: 20000")
    parser.add_argument("--singles", type=positive, default=100, metavar="N", help="single jobs timed; default: 100")
    parser.add_argument("--python", metavar="3.X", help="for jobd and pgqueuer; default: 3.10")
    parser.add_argument("--json", action="store_true", help="print the figures of every round as JSON, not the table")
    options = parser.parse_args()
    enter_environment(options.python)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of every `finally`
    with tempfile.TemporaryDirectory(prefix="jobd-compare-") as folder:
        try:
            report = compare(Path(folder), options.rounds, options.jobs, options.singles)
        except (RuntimeError, TimeoutError) as error:
            sys.exit(f"failed: {error}")
    print(json.dumps(report, indent=1) if options.json else "\n".join(text(report)))
    return 0


def positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more (got {value})")
    return number


def enter_environment(wanted: str | None) -> None:
    """Run this program in the environment of the tests, which has what jobd needs; makes it if it is missing."""
    python = python_for(wanted)
    if Path(sys.prefix).resolve() != Path(python).parent.parent.resolve():
        os.execv(python, [python, *sys.argv])


def compare(folder: Path, rounds: int, jobs: int, singles: int) -> dict[str, Any]:
    probe = folder / "probe"
    probe.touch()
    # A jobd that is configured for this shell is none of ours: its variables would lead to its servers.
    for name in [name for name in os.environ if name.startswith("JOBD_")]:
        del os.environ[name]
    os.environ |= {"COMPARE_PROBE": str(probe), "PYTHONPATH": f"{TOP}:{TOP / 'packaging'}"}
    sys.path.insert(0, str(TOP))
    import anyio
    import compare_jobd
    import compare_peers

    say("installing the peers")
    peers = compare_peers.install(folder)
    loads, figures = [], []

    async def measure_round(begin: str) -> Figures:
        of_jobd: dict[str, float] = {}
        for variant in compare_jobd.VARIANTS:
            of_jobd |= await compare_jobd.measure(variant, jobs, singles, lambda step: say(f"{begin}: {step}"))
        of_peers = await compare_peers.measure(peers, jobs, singles, lambda step: say(f"{begin}: {step}"))
        return {"jobd": of_jobd, **of_peers}

    for number in range(1, rounds + 1):
        loads.append(os.getloadavg()[0])
        begin = f"round {number} of {rounds}"
        figures.append(anyio.run(measure_round, begin, backend_options={"use_uvloop": True}))
    say("")
    return {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "loads": loads,
        "jobs": jobs,
        "singles": singles,
        "versions": {peer.name: peer.version for peer in peers},
        "medians": medians(figures),
        "rounds": figures,
    }


def say(what: str) -> None:
    """The step that is under way, on a line of the terminal that is written again."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def medians(rounds: Sequence[Figures]) -> Figures:
    """Each figure's own median over the rounds."""
    return {
        system: {name: median(figures[system][name] for figures in rounds) for name in rounds[0][system]}
        for system in rounds[0]
    }


def text(report: Mapping[str, Any]) -> list[str]:
    rounds, loads = len(report["loads"]), ", ".join(f"{load:.1f}" for load in report["loads"])
    return [
        *table(report["medians"], report["versions"]),
        "",
        f"{report['at']}, {report['machine']}, {report['cores']} cores, Python {report['python']}; load average before"
        f" each round: {loads}; {rounds} round{'s' if rounds > 1 else ''} of {report['jobs']} jobs,"
        f" {report['singles']} single ones. Ratio: jobd / peer; above 1 jobd does more per second, or takes longer.",
    ]


def table(medians: Mapping[str, Mapping[str, float]], versions: Mapping[str, str]) -> list[str]:
    """Markdown; the last column has jobd's figure divided by that of each peer."""
    heads = [f"{system} {versions.get(system, '')}".strip() for system in SYSTEMS]
    lines = [f"| what | {' | '.join(heads)} | ratio |", "|---|---:|---:|---:|---|"]
    for row in ROWS:
        ours = medians["jobd"][row.figure]
        theirs = {system: medians.get(system, {}).get(row.beside) for system in SYSTEMS[1:]}
        ratios = [f"{ratio(ours / figure)} of {system}" for system, figure in theirs.items() if figure is not None]
        cells = [row.what, *(written(figure, row.unit) for figure in (ours, *theirs.values())), ", ".join(ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def written(figure: float | None, unit: str) -> str:
    if figure is None:
        return "-"
    return f"{figure:.1f} ms" if unit == "ms" else f"{figure:,.0f}/s".replace(",", " ")


def ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
