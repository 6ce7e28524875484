"""What `/metrics` says: the names, types and meanings of all metrics, and how each is made of what jobd knows.

The encoders of prometheus_client write the answer, a few lines at a time, so that others get their turn. Names are in
base units; counters end in `_total` on the wire. Labels are bounded: names of queues, tasks, models and services in the
configuration (anything else is `other`), routes by their template, and words of jobd's own; never an id, and nothing of
a payload.

Counters and histograms are of this process and begin at zero with it. What is read from Postgres is the same on every
node, and left out while Postgres is away.
"""

from __future__ import annotations

import platform
from collections import Counter
from itertools import islice, product
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from jobd import __version__
from jobd.host.space import memory_space
from jobd.job.status import JobStatus
from jobd.lifecycle.tally import OTHER
from jobd.supervise.service import State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from jobd.dispatch.slots import SlotUsage
    from jobd.http.metrics import Figures, StoreFigures
    from jobd.lifecycle.histogram import Histogram
    from jobd.lifecycle.tally import Tally
    from jobd.tasks.openai.model_counts import ModelCounts

STATUSES: Final = tuple(status.value for status in JobStatus)
#: Tasks or routes that are written at once: as text at most 200 lines, in 1 ms.
PART: Final = 10

_T = TypeVar("_T")
#: The values of a metric's labels.
_Key = TypeVar("_Key", bound=tuple[str, ...])


def written(figures: Figures, accept: str) -> tuple[Iterator[bytes], str]:
    """The answer in small pieces, and its media type: OpenMetrics if the header Accept asks for it, else plain text."""
    encode, media_type = choose_encoder(accept)
    return _pieces(figures, encode), media_type


def _pieces(figures: Figures, encode: Callable[[Collector], bytes]) -> Iterator[bytes]:
    """What the encoder says of each part of a family, with one head for each family and one end for all."""
    name, end = "", encode(_NOTHING)
    for part in _families(figures):
        text = encode(_Part(part)).removesuffix(end) if end else encode(_Part(part))
        yield _without_head(text) if part.name == name else text
        name = part.name
    yield end


def _without_head(text: bytes) -> bytes:
    while text.startswith(b"# "):
        text = text.partition(b"\n")[2]
    return text


class _Part(Collector):
    """A registry for one encoding."""

    def __init__(self, *parts: Metric) -> None:
        self._parts = parts

    def collect(self) -> Iterable[Metric]:
        return self._parts


_NOTHING = _Part()


def _families(figures: Figures) -> Iterator[Metric]:
    """Each family whole, or in parts that follow each other."""
    versions = {"version": __version__, "python": platform.python_version()}
    yield InfoMetricFamily("jobd_build", "Versions.", value=versions)
    yield from _jobs(figures.tally)
    if figures.store is not None:
        yield from _store(figures.store, figures.queues)
    yield from _slots(figures.slots)
    yield _occurrences(figures.occurrences)
    yield from _services(figures)
    yield from _requests(figures)
    yield from _models(figures.models)
    yield from _machine(figures)


def _jobs(tally: Tally) -> Iterator[Metric]:
    tasks = list(tally.tasks.items())
    names = ["queue", "task"]
    for part in _parts(tasks):
        submitted = CounterMetricFamily("jobd_jobs_submitted", "Jobs that this node accepted.", labels=names)
        for key, counts in part:
            submitted.add_metric(key, counts.submitted)
        yield submitted
    for part in _parts(tasks):
        finished = CounterMetricFamily(
            "jobd_jobs_finished",
            "Jobs that ended by a commit of this node: done, error or canceled.",
            labels=[*names, "outcome"],
        )
        for key, counts in part:
            for outcome, number in counts.finished.items():
                finished.add_metric((*key, outcome), number)
        yield finished
    for part in _parts(tasks):
        attempts = CounterMetricFamily(
            "jobd_attempts",
            "Attempts that ended by a commit of this node: done, failed, expired, interrupted, canceled or released.",
            labels=[*names, "outcome"],
        )
        for key, counts in part:
            for outcome, number in counts.attempts.items():
                attempts.add_metric((*key, outcome), number)
        yield attempts
    yield from _histogram(
        "jobd_job_run_seconds",
        "From the claim to the end of attempts that were done, failed or canceled.",
        names,
        ((key, counts.run) for key, counts in tasks),
    )
    yield from _histogram(
        "jobd_job_wait_seconds",
        "From when a job was due to when this node claimed it.",
        ["queue"],
        (((queue,), waits) for queue, waits in list(tally.waits.items())),
    )
    yield CounterMetricFamily(
        "jobd_leases_expired",
        "Attempts that this node ended because their worker fell silent.",
        value=tally.leases_expired,
    )


def _store(store: StoreFigures, configured: Collection[str]) -> Iterator[Metric]:
    jobs = Counter(dict.fromkeys(product(configured, STATUSES), 0))
    oldest = dict.fromkeys(configured, 0.0)
    paused = dict.fromkeys(configured, False)
    for queue in store.queues:
        name = queue.queue if queue.queue in configured else OTHER
        jobs.update({(name, status): getattr(queue, status) for status in STATUSES})
        oldest[name] = max(oldest.get(name, 0.0), store.heads_s.get(queue.queue, 0.0))
        paused[name] = paused.get(name, False) or queue.paused
    yield from _gauge(
        "jobd_jobs", "Jobs in Postgres by status, until retention deletes them.", ["queue", "state"], jobs
    )
    yield from _gauge(
        "jobd_dead_letters",
        "Jobs in error, until retention deletes them.",
        ["queue"],
        {(name,): number for (name, state), number in jobs.items() if state == "error"},
    )
    yield from _gauge(
        "jobd_queue_oldest_seconds",
        "For how long the first job in line could have run already; 0: nobody waits.",
        ["queue"],
        {(name,): seconds for name, seconds in oldest.items()},
    )
    yield from _gauge(
        "jobd_queue_paused", "1 while the queue is paused.", ["queue"], {(name,): on for name, on in paused.items()}
    )
    yield GaugeMetricFamily("jobd_outbox_depth", "Commits that are not in Redis yet.", value=store.outbox.depth)
    yield GaugeMetricFamily(
        "jobd_outbox_age_seconds",
        "Age of the oldest commit that is not in Redis yet; 0: there is none.",
        value=max(0.0, store.outbox.age_s or 0.0),
    )


def _slots(slots: Mapping[str, SlotUsage]) -> Iterator[Metric]:
    states = {(queue, "busy"): min(usage.busy, usage.slots) for queue, usage in slots.items()}
    states |= {(queue, "free"): max(0, usage.slots - usage.busy) for queue, usage in slots.items()}
    yield from _gauge("jobd_slots", "Slots of this node: busy with a job, or free.", ["queue", "state"], states)


def _occurrences(occurrences: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "jobd_schedule_occurrences",
        "Occurrences of schedules that this node decided about: started, skipped, missed or delayed.",
        labels=["outcome"],
    )
    for outcome, number in occurrences.items():
        family.add_metric((outcome,), number)
    return family


def _services(figures: Figures) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "jobd_degraded", "1 while jobd works without something it can do without.", figures.is_degraded
    )
    up = {(name,): state is State.READY for name, state in figures.services.items()}
    yield from _gauge("jobd_service_up", "1 while the service is ready.", ["service"], up)
    restarts = CounterMetricFamily(
        "jobd_service_restarts",
        "Starts after the first, after a failure of the service or of one that it needs.",
        labels=["service"],
    )
    for name, number in figures.restarts.items():
        restarts.add_metric((name,), number)
    yield restarts


def _requests(figures: Figures) -> Iterator[Metric]:
    answers = CounterMetricFamily("jobd_http_requests", "Requests that were answered.", labels=["route", "status"])
    for (route, status), number in figures.requests.answers.items():
        answers.add_metric((route, str(status)), number)
    yield answers
    yield from _histogram(
        "jobd_http_request_seconds",
        "From the head of a request to the head of its answer.",
        ["route"],
        (((route,), durations) for route, durations in list(figures.requests.durations.items())),
    )
    yield GaugeMetricFamily("jobd_event_streams", "Streams of events that are open.", value=figures.event_streams)


def _models(models: Mapping[str, ModelCounts]) -> Iterator[Metric]:
    names = ["task", "model"]
    tokens = CounterMetricFamily("jobd_tokens_generated", "Tokens that models generated for slots.", labels=names)
    for task, counts in models.items():
        for model, number in counts.tokens.items():
            tokens.add_metric((task, model), number)
    yield tokens
    yield from _histogram(
        "jobd_time_to_first_token_seconds",
        "From the request to a model server to its first token.",
        names,
        [
            ((task, model), histogram)
            for task, counts in models.items()
            for model, histogram in counts.first_token.items()
        ],
    )


def _machine(figures: Figures) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "jobd_disk_free_bytes", "Free where the data directory is.", value=figures.disk_free_bytes()
    )
    board, space = figures.board, memory_space()
    available = board.memory.available_bytes if board.memory is not None else space.free if space is not None else None
    if available is not None:
        yield GaugeMetricFamily("jobd_memory_available_bytes", "Memory that the machine has left.", value=available)
    yield GaugeMetricFamily(
        "jobd_memory_reserved_bytes",
        "Memory that running jobs were promised (needs_memory_mb) and do not have yet.",
        value=0 if board.memory is None else board.memory.reserved_bytes,
    )
    yield from _gauge(
        "jobd_temperature_celsius",
        "Temperature of each zone of the board.",
        ["zone"],
        {(zone.zone,): zone.celsius for zone in board.zones},
    )
    yield from _gauge(
        "jobd_power_watts", "Power of each rail.", ["rail"], {(rail.rail,): rail.watts for rail in board.rails}
    )
    yield GaugeMetricFamily("jobd_throttled", "1 while the board is slowed down.", value=bool(board.throttled_by))
    yield CounterMetricFamily(
        "jobd_disk_written_bytes",
        "Written to the disks of the board since its start.",
        value=sum(disk.written_bytes for disk in board.disks),
    )


def _gauge(name: str, meaning: str, labels: Sequence[str], values: Mapping[_Key, float]) -> Iterator[GaugeMetricFamily]:
    for part in _parts(values.items(), PART * 10):
        family = GaugeMetricFamily(name, meaning, labels=labels)
        for key, value in part:
            family.add_metric(key, value)
        yield family


def _histogram(
    name: str, meaning: str, labels: Sequence[str], histograms: Iterable[tuple[tuple[str, ...], Histogram]]
) -> Iterator[HistogramMetricFamily]:
    """One without a single duration is left out."""
    for part in _parts(histograms):
        family = HistogramMetricFamily(name, meaning, labels=labels)
        for key, histogram in part:
            numbers = histogram.cumulative()
            if numbers[-1]:
                bounds = [*map(str, histogram.bounds), "+Inf"]
                family.add_metric(key, list(zip(bounds, numbers, strict=True)), histogram.sum_s)
        yield family


def _parts(entries: Iterable[_T], most: int = PART) -> Iterator[list[_T]]:
    """Lists of at most `most` entries, the first even if it is empty: a family without values is said too."""
    left = iter(entries)
    yield list(islice(left, most))
    while part := list(islice(left, most)):
        yield part
