"""The calls that are about more than one job: queues, workers, dead letters. Written as those in `calls` are."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from jobd.client.answers import DeadLetters, Workers
from jobd.client.retrying import answered
from jobd.client.sansio import ApiRequest
from jobd.wire import gateway as wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.client.calls import JobId
    from jobd.client.sansio import CallSettings, Flow


def queues(settings: CallSettings) -> Flow[list[wire.QueueObject]]:
    """Every queue with its counters."""
    answer = yield from answered(settings, ApiRequest(what="queues", path="/v1/queues"), wire.Queues)
    return answer.queues


def stats(settings: CallSettings) -> Flow[wire.Stats]:
    """Totals over all queues, and how far Redis lags behind."""
    return answered(settings, ApiRequest(what="stats", path="/v1/stats"), wire.Stats)


def workers(settings: CallSettings, *, limit: int | None = None, held: int | None = None) -> Flow[Workers]:
    """Who holds jobs now, the longest silent first; with `held`, up to that number of its jobs."""
    given = {"limit": limit, "held": held}
    query = {name: str(value) for name, value in given.items() if value is not None}
    return answered(settings, ApiRequest(what="workers", path="/v1/workers", query=query), Workers)


def pause(settings: CallSettings, queue: str) -> Flow[wire.PauseAnswer]:
    """Start no more jobs of the queue; what runs goes on."""
    return answered(settings, _change_queue(queue, "pause"), wire.PauseAnswer)


def resume(settings: CallSettings, queue: str) -> Flow[wire.PauseAnswer]:
    """Start jobs of the queue again."""
    return answered(settings, _change_queue(queue, "resume"), wire.PauseAnswer)


def _change_queue(queue: str, verb: str) -> ApiRequest:
    return ApiRequest(what=f"{verb} of queue {queue}", method="POST", path=f"/v1/queues/{quote(queue, safe='')}/{verb}")


def dead_letters(
    settings: CallSettings,
    *,
    queue: str | None = None,
    task: str | None = None,
    limit: int | None = None,
    before: JobId | None = None,
) -> Flow[DeadLetters]:
    """One page of dead letters, newest first; its `next`, sent as `before`, leads to the following one."""
    filters = {"queue": queue, "task": task, "limit": limit, "before": before}
    query = {name: str(value) for name, value in filters.items() if value is not None}
    return answered(settings, ApiRequest(what="dead letters", path="/v1/dlq", query=query), DeadLetters)


def retry_dead_letters(
    settings: CallSettings,
    *,
    ids: Sequence[JobId] | None = None,
    queue: str | None = None,
    task: str | None = None,
    limit: int | None = None,
    before: JobId | None = None,
) -> Flow[wire.RedriveAnswer]:
    """Run dead letters again, each as a new job: those with the `ids`, else the newest `limit` of the queue and task.

    A letter runs again only once, so one that does so already is not in the answer; nor is one that an earlier try of
    this very call has taken along before the line was cut. The answer's `next`, sent as `before`, leads on.
    """
    given = {"ids": ids, "queue": queue, "task": task, "limit": limit, "before": before}
    body = msgspec.json.encode({name: value for name, value in given.items() if value is not None})
    request = ApiRequest(what="retry of dead letters", method="POST", path="/v1/dlq/retry", body=body)
    return answered(settings, request, wire.RedriveAnswer)
