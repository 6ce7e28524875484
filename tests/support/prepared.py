"""A data directory as `jobd migrate` leaves it, made once and copied: a cluster with the schema, no daemon's traces.

It is the template of `jobd.testing`, kept for the next test run.
"""

from __future__ import annotations

from pathlib import Path

from jobd.testing.template import Template

TOP = Path(__file__).resolve().parents[2]
#: Ignored by git, and emptied by `pytest --cache-clear`.
KEPT = TOP / ".pytest_cache" / "data-dirs"


def prepare(data_dir: Path) -> None:
    """Make `data_dir` a copy; jobd's next start on it is a warm one."""
    Template(KEPT).copy_to(data_dir)
