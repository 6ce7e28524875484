"""Calls about more than one job: queues, workers, dead letters, configuration, audit log. Written as in `calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec
from typing_extensions import TypedDict, Unpack

from jobd.client.answers import DeadLetters, Workers
from jobd.client.retrying import answered
from jobd.client.sansio import ApiRequest
from jobd.wire import administration
from jobd.wire import gateway as wire
from jobd.wire.board import BoardObject
from jobd.wire.milliseconds import ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from jobd.client.calls import JobId
    from jobd.client.sansio import CallSettings, Flow


Action: TypeAlias = Literal["cancel", "retry", "delete"]


class Filters(TypedDict, total=False):
    """Which jobs are meant: all terms must fit; None is as good as left out."""

    status: str | None
    task: str | None
    queue: str | None
    #: Code of the error in which the job ended, and a part of its message.
    error: str | None
    text: str | None
    #: When the job was made: at this time or later, and before that one.
    since: datetime | None
    until: datetime | None
    labels: Mapping[str, str] | None
    #: Name of the token that sent the job.
    owner: str | None


class ChangeMany(Filters, total=False):
    #: Must be true if there is no filter: every job is meant.
    all: bool
    limit: int | None
    before: JobId | None


def queues(settings: CallSettings) -> Flow[list[wire.QueueObject]]:
    """Every queue with its counters."""
    answer = yield from answered(settings, ApiRequest(what="queues", path="/v1/queues"), wire.Queues)
    return answer.queues


def stats(settings: CallSettings) -> Flow[wire.Stats]:
    """Totals over all queues, and how far Redis lags behind."""
    return answered(settings, ApiRequest(what="stats", path="/v1/stats"), wire.Stats)


def board(settings: CallSettings) -> Flow[BoardObject]:
    """What the board under this jobd measures of itself: temperatures, power, memory, disks."""
    return answered(settings, ApiRequest(what="board", path="/v1/board"), BoardObject)


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


def pause_task(settings: CallSettings, task: str) -> Flow[wire.PauseAnswer]:
    """Start no more jobs of the task; what runs goes on."""
    return answered(settings, _change_task(task, "pause"), wire.PauseAnswer)


def resume_task(settings: CallSettings, task: str) -> Flow[wire.PauseAnswer]:
    """Start jobs of the task again."""
    return answered(settings, _change_task(task, "resume"), wire.PauseAnswer)


def pause_all(settings: CallSettings) -> Flow[wire.PauseAllAnswer]:
    """Start no more jobs at all, on no node; what runs goes on."""
    return answered(settings, ApiRequest(what="pause", method="POST", path="/v1/pause"), wire.PauseAllAnswer)


def resume_all(settings: CallSettings) -> Flow[wire.PauseAllAnswer]:
    """Start jobs again; queues and tasks that are paused stay so."""
    return answered(settings, ApiRequest(what="resume", method="POST", path="/v1/resume"), wire.PauseAllAnswer)


def limits(
    settings: CallSettings, queue: str, *, limit: int | None = None, after: str | None = None
) -> Flow[wire.LimitPage]:
    """One page of the limits that keys of the queue have; its `next`, sent as `after`, leads to the following one."""
    given = {"limit": limit, "after": after}
    query = {name: str(value) for name, value in given.items() if value is not None}
    return answered(settings, ApiRequest(what=f"limits of {queue}", path=_limits(queue), query=query), wire.LimitPage)


def set_limit(
    settings: CallSettings,
    queue: str,
    key: str,
    *,
    running: int | None = None,
    rate: int | None = None,
    rate_s: float | None = None,
    weight: float | None = None,
) -> Flow[wire.LimitObject]:
    """Set the limits of a key (`*`: of all keys without their own), in place of those that were set before.

    At most `running` jobs at once and `rate` starts within `rate_s` seconds (0: any number); `weight`: turns for each
    turn of others. What is None is as for all keys, or as configured.
    """
    given = {"running": running, "rate": rate, "rate_s": rate_s, "weight": weight}
    body = msgspec.json.encode({"key": key, **{name: value for name, value in given.items() if value is not None}})
    request = ApiRequest(what=f"limit of {queue}", method="POST", path=_limits(queue), body=body)
    return answered(settings, request, wire.LimitObject)


def drop_limit(settings: CallSettings, queue: str, key: str) -> Flow[wire.LimitDropAnswer]:
    """Forget the limits of a key: those of all keys, or the configuration, count again."""
    body = msgspec.json.encode({"key": key})
    request = ApiRequest(what=f"limit of {queue}", method="POST", path=f"{_limits(queue)}/drop", body=body)
    return answered(settings, request, wire.LimitDropAnswer)


def _limits(queue: str) -> str:
    return f"/v1/queues/{quote(queue, safe='')}/limits"


def _change_task(task: str, verb: str) -> ApiRequest:
    return ApiRequest(what=f"{verb} of task {task}", method="POST", path=f"/v1/tasks/{quote(task, safe='')}/{verb}")


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


def dead_letter_groups(settings: CallSettings) -> Flow[wire.DeadLetterGroups]:
    """Dead letters by error and task, each with an example: what failed in the same way."""
    return answered(settings, ApiRequest(what="groups of dead letters", path="/v1/dlq/groups"), wire.DeadLetterGroups)


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


def count(
    settings: CallSettings, *, action: Action | None = None, **filters: Unpack[Filters]
) -> Flow[wire.CountAnswer]:
    """How many jobs fit; with `action`, only those with a status that it can change."""
    body = msgspec.json.encode({**_terms(filters), **({} if action is None else {"action": action})})
    return answered(
        settings, ApiRequest(what="count of jobs", method="POST", path="/v1/jobs/count", body=body), wire.CountAnswer
    )


def cancel_jobs(settings: CallSettings, **changed: Unpack[ChangeMany]) -> Flow[wire.BulkAnswer]:
    """Cancel jobs that fit, at most `limit`, newest first; the answer's `next`, sent as `before`, leads on."""
    return _change_many(settings, "cancel", changed)


def retry_jobs(settings: CallSettings, **changed: Unpack[ChangeMany]) -> Flow[wire.BulkAnswer]:
    """Run jobs in error that fit again, each only once, at most `limit`; `next`, sent as `before`, leads on."""
    return _change_many(settings, "retry", changed)


def delete_jobs(settings: CallSettings, **changed: Unpack[ChangeMany]) -> Flow[wire.BulkAnswer]:
    """Delete finished jobs that fit, with their results, at most `limit`; `next`, sent as `before`, leads on."""
    return _change_many(settings, "delete", changed)


def _change_many(settings: CallSettings, action: Action, changed: ChangeMany) -> Flow[wire.BulkAnswer]:
    """The same call again changes what is left, so a cut line is tried again."""
    body = msgspec.json.encode(_terms(changed))
    request = ApiRequest(what=f"{action} of jobs", method="POST", path=f"/v1/jobs/{action}", body=body)
    return answered(settings, request, wire.BulkAnswer)


def _terms(filters: Mapping[str, Any]) -> dict[str, Any]:
    times = {f"{name}_ts": ms(at) for name in ("since", "until") if (at := filters.get(name)) is not None}
    given = {name: value for name, value in filters.items() if name not in ("since", "until") and value is not None}
    return {**given, **times}


def config(settings: CallSettings) -> Flow[dict[str, Any]]:
    """The configuration in force, by section; secrets are masked. Needs a token with the scope admin."""
    answer = yield from answered(
        settings, ApiRequest(what="configuration", path="/v1/config"), administration.ConfigInForce
    )
    return answer.config


def audit(
    settings: CallSettings, *, limit: int | None = None, before: int | None = None
) -> Flow[administration.AuditPage]:
    """One page of the audit log, newest first; its `next`, sent as `before`, leads to the following one.

    Needs a token with the scope admin.
    """
    given = {"limit": limit, "before": before}
    query = {name: str(value) for name, value in given.items() if value is not None}
    return answered(settings, ApiRequest(what="audit log", path="/v1/audit", query=query), administration.AuditPage)
