"""How `/metrics` is written: whole, though in small pieces, so that the event loop is never kept for long."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from jobd.http.metric_families import written
from jobd.http.metrics import Figures, StoreFigures
from jobd.http.request_counts import RequestCounts
from jobd.lifecycle.read import QueueStats
from jobd.lifecycle.tally import Tally
from jobd.lifecycle.waiting import OutboxDepth
from jobd.supervise.service import State
from jobd.wire.board import BoardObject

if TYPE_CHECKING:
    from collections.abc import Callable

#: Most lines of a piece: 1 ms of work.
MOST_LINES = 250
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
READERS: list[tuple[str, Callable[[str], Any]]] = [("", parse_text), (OPENMETRICS, parse_openmetrics)]


def figures(queues: int, tasks: int) -> Figures:
    tally, names = Tally(), [f"queue-{n}" for n in range(queues)]
    for queue in names:
        for task in range(tasks):
            tally.submitted([(queue, f"task-{task}")])
            tally.done(queue, f"task-{task}", [0.5])
    counters = dict.fromkeys(("queued", "running", "done", "error", "canceled"), 1)
    stats = [QueueStats(queue=name, paused=False, **counters) for name in names]
    return Figures(
        store=StoreFigures(stats, {}, OutboxDepth(depth=0, age_s=None)),
        queues=names,
        tally=tally,
        requests=RequestCounts(),
        event_streams=0,
        slots={},
        models={},
        services={"store": State.READY},
        restarts={"store": 0},
        is_degraded=False,
        disk_free_bytes=lambda: 1,
        occurrences={"started": 1, "missed": 0},
        board=BoardObject(),
    )


@pytest.mark.parametrize(("accept", "parse"), READERS, ids=["text", "openmetrics"])
def test_pieces_are_small_and_make_one_answer(accept: str, parse: Callable[[str], Any]) -> None:
    pieces = list(written(figures(40, 10), accept)[0])

    assert max(piece.count(b"\n") for piece in pieces) <= MOST_LINES
    text = b"".join(pieces).decode()
    heads = Counter(line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
    assert set(heads.values()) == {1}
    samples = Counter(sample.name for family in parse(text) for sample in family.samples)
    assert samples["jobd_jobs_submitted_total"] == 400
    assert samples["jobd_job_run_seconds_count"] == 400
    assert samples["jobd_jobs"] == 200


@pytest.mark.parametrize(("accept", "parse"), READERS, ids=["text", "openmetrics"])
def test_jobd_that_has_done_nothing_yet_says_every_name(accept: str, parse: Callable[[str], Any]) -> None:
    used, unused = ({family.name for family in parse(text_of(figures(n, n), accept))} for n in (3, 0))

    assert used == unused


def test_label_values_are_escaped() -> None:
    seen = figures(0, 0)
    seen.tally.submitted([('a"b\\c\nd', "chat")])

    (family,) = [family for family in parse_text(text_of(seen, "")) if family.name == "jobd_jobs_submitted"]

    assert [sample.labels["queue"] for sample in family.samples] == ['a"b\\c\nd']


def text_of(seen: Figures, accept: str) -> str:
    return b"".join(written(seen, accept)[0]).decode()
