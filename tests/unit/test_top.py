"""The frame of `jobd top` and what it is drawn from: it fits, it tells the truth, and nobody else's words steer it."""

from __future__ import annotations

import io
import time
import uuid
from typing import Any

import pytest
from rich.console import Console

from jobd.cli.top.frame import frame, shared_out
from jobd.cli.top.rates import Rates, Snapshot, SnapshotHistory
from jobd.client import DeadLetter, DeadLetters, HeldJob, QueueObject, Stats, Totals, Unreachable, Worker, Workers

AWAY = Unreachable("stats", status=0, code="unreachable", detail="no answer")


def queue(name: str = "default", **numbers: Any) -> QueueObject:
    fields = {"paused": False, "slots": 4, "queued": 0, "running": 0, "done": 0, "error": 0, "canceled": 0}
    return QueueObject(**{"name": name, "head_waits_s": None, "drain_per_s": None, **fields, **numbers})


def held(**fields: Any) -> HeldJob:
    given = {"job_id": uuid.uuid4(), "task": "chat", "queue": "default", "worker_id": "w", "attempt": 1}
    return HeldJob(**{**given, "started_ts": 0, "cancel_requested": False, "progress": None, "step": "", **fields})


def worker(name: str) -> Worker:
    return Worker(worker_id=name, kind="http", jobs=1, oldest_lease_ts=0, last_heartbeat_ts=0, lease_expires_ts=0)


def letter(**fields: Any) -> DeadLetter:
    given = {"job_id": uuid.uuid4(), "queue": "default", "task": "chat", "reason": "not_retryable", "at_ts": 0}
    return DeadLetter(**{**given, "redriven_to": None, **fields})


def snapshot(
    at: float = 0.0,
    *queues: QueueObject,
    jobs: list[HeldJob] | None = None,
    workers: list[Worker] | None = None,
    letters: list[DeadLetter] | None = None,
    degraded: bool = False,
) -> Snapshot:
    names = ("queued", "running", "done", "error", "canceled")
    totals = Totals(**{name: sum(getattr(counters, name) for counters in queues) for name in names})
    stats = Stats(degraded=degraded, totals=totals, queues=list(queues), outbox_depth=0, outbox_age_s=None)
    who = Workers(workers=workers or [], total=len(workers or []), held=jobs or [])
    return Snapshot(at, stats, who, DeadLetters(letters or [], None))


def history(*snapshots: Snapshot) -> SnapshotHistory:
    made = SnapshotHistory("http://127.0.0.1:7433")
    for reading in snapshots:
        made.add(reading)
    return made


def drawn(what: SnapshotHistory, width: int = 80, height: int = 24) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(frame(what, width, height, 2.0))
    return out.getvalue()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (80, 60), (200, 24)])
def test_frame_fits_however_much_there_is(width: int, height: int) -> None:
    many = range(50)
    jobs = [held(progress=0.5, step="a long step " * 20) for _ in many]
    queues = [queue(f"queue-{n}" * 4, queued=10**7, running=10**6, error=10**6, head_waits_s=1e6) for n in many]
    full = snapshot(0, *queues, jobs=jobs, workers=[worker("w" * 128)] * 50, letters=[letter() for _ in many])

    lines = drawn(history(full), width, height).splitlines()

    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_frame_shows_whole_ids_at_80_columns() -> None:
    job, dead = held(progress=0.25), letter()

    text = drawn(history(snapshot(0, queue(queued=3), jobs=[job], letters=[dead])))

    assert all(word in text for word in (str(job.job_id), str(dead.job_id), "25%", "default", "queued 3"))


def test_what_there_is_none_of_is_said() -> None:
    text = drawn(history(snapshot(0, queue())))

    assert all(word in text for word in ("nothing runs", "nobody holds a job now", "no dead letters"))


def test_markup_and_control_characters_of_strangers_stay_text() -> None:
    job = held(step="[bold]x[/bold]\x1b[2J\n")

    text = drawn(history(snapshot(0, queue(), jobs=[job], workers=[worker("[red]w")])), 120)

    assert "[bold]x[/bold][2J" in text
    assert "[red]w" in text
    assert "\x1b" not in text


def test_job_that_is_to_stop_is_said_to_be_stopping() -> None:
    assert "stopping" in drawn(history(snapshot(0, queue(), jobs=[held(cancel_requested=True, progress=0.5)])))


def test_state_is_told_in_the_second_line() -> None:
    now = time.monotonic()
    fresh, degraded, away = (
        SnapshotHistory("u"),
        history(snapshot(now, queue(), degraded=True)),
        history(snapshot(now, queue())),
    )
    never = SnapshotHistory("u")
    away.fail(AWAY)
    never.fail(AWAY)
    back = history(snapshot(now, queue()))
    back.fail(AWAY)
    back.add(snapshot(time.monotonic(), queue()))

    second = [
        drawn(shown).splitlines()[1].strip()
        for shown in (fresh, degraded, away, never, back, history(snapshot(now, queue())))
    ]

    assert [line.partition(":")[0].partition(" for")[0] for line in second] == [
        "asking jobd",
        "up, but Redis is away",
        "jobd is AWAY",
        "jobd is AWAY",
        "jobd is back; it was away",
        "up",
    ]
    assert "below is how it was" in second[2]
    assert "no answer" in second[3]


@pytest.mark.parametrize(
    ("room", "wants", "shares"),
    [(10, [1, 1, 1], [1, 1, 1]), (6, [9, 1, 9], [3, 1, 2]), (0, [5, 5], [1, 1]), (100, [3, 0], [3, 1])],
)
def test_lines_are_shared_out(room: int, wants: list[int], shares: list[int]) -> None:
    assert shared_out(room, [max(1, want) for want in wants]) == shares


# -- rates --------------------------------------------------------------------------------------------------------


def test_rates_are_over_the_last_looks() -> None:
    snapshots = [snapshot(float(at), queue(queued=10, done=4 * at, error=at)) for at in range(5)]

    assert history(*snapshots[:1]).rates() is None
    assert history(*snapshots).rates() == Rates(came=5.0, ended=5.0, failed=1.0)
    assert history(*snapshots).queue_rates("default") == Rates(came=5.0, ended=5.0, failed=1.0)
    assert history(*snapshots).queue_rates("none") is None


def test_rates_forget_what_was_long_ago_and_never_fall_below_nothing() -> None:
    snapshots = [snapshot(0.0, queue(done=1000)), *(snapshot(20.0 + at, queue(done=500)) for at in range(3))]

    assert history(*snapshots).rates() == Rates(came=0.0, ended=0.0, failed=0.0)
    assert history(*snapshots[:2]).rates() == Rates(came=0.0, ended=0.0, failed=0.0)


def test_rates_begin_anew_after_an_absence() -> None:
    what = history(snapshot(0.0, queue()), snapshot(1.0, queue(done=5)))
    what.fail(AWAY)
    what.add(snapshot(time.monotonic(), queue(done=500)))

    assert what.rates() is None
