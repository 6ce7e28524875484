"""Calls about groups, and the usual shapes of work: a chain, fan-out, fan-in. Written as in `calls`."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast
from uuid import uuid4

import msgspec

from jobd.client.calls import HOLD_S, SHORT_S, submission_json, submit_batch
from jobd.client.errors import WaitTimeout
from jobd.client.retrying import answered
from jobd.client.sansio import ApiRequest, Pause
from jobd.wire import gateway as wire
from jobd.wire.groups import GroupObject, GroupPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jobd.client.calls import JobId, Submission
    from jobd.client.sansio import CallSettings, Flow

#: Jobs of one batch.
BATCH = wire.MAX_BATCH


def create_group(
    settings: CallSettings,
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    callback: Submission | None = None,
    callback_on: Literal["any", "success"] = "any",
    group_id: JobId | None = None,
) -> Flow[GroupObject]:
    """Make a group, to be named as `group=` of its jobs, and to be sealed when all are in it.

    The `callback` runs once, when the group is sealed and all members are final, canceled ones included; with
    `callback_on="success"` it is canceled unless all are done. With a `group_id` of your own a second call with it
    leads to the same group.
    """
    given = {"name": name, "labels": labels, "callback": callback and submission_json(callback)}
    body = {"id": group_id or uuid4(), "callback_on": callback_on, **{k: v for k, v in given.items() if v is not None}}
    request = ApiRequest(what="group", method="POST", path="/v1/groups", body=msgspec.json.encode(body))
    return answered(settings, request, GroupObject)


def group(settings: CallSettings, group_id: JobId) -> Flow[GroupObject]:
    """The group with its counters."""
    return answered(settings, ApiRequest(what=f"group {group_id}", path=f"/v1/groups/{group_id}"), GroupObject)


def groups(settings: CallSettings, *, limit: int | None = None, before: JobId | None = None) -> Flow[GroupPage]:
    """One page of groups, newest first; its `next`, sent as `before`, leads to the following one."""
    query = {name: str(value) for name, value in {"limit": limit, "before": before}.items() if value is not None}
    return answered(settings, ApiRequest(what="groups", path="/v1/groups", query=query), GroupPage)


def wait_group(settings: CallSettings, group_id: JobId, wait_s: float | None = None) -> Flow[GroupObject]:
    """The group once it is finished; raises WaitTimeout if that takes longer than `wait_s`."""
    until = math.inf if wait_s is None else time.monotonic() + wait_s
    while True:
        asked_at = time.monotonic()
        hold_s = max(0.0, min(HOLD_S, until - asked_at))
        request = ApiRequest(
            what=f"group {group_id}", path=f"/v1/groups/{group_id}", query={"wait_s": f"{hold_s:.3f}"}, hold_s=hold_s
        )
        found = yield from answered(settings, request, GroupObject)
        if found.status != "running":
            return found
        if time.monotonic() >= until:
            raise WaitTimeout(f"group {group_id} is not finished after {wait_s} s: {found.pending} members go on")
        if time.monotonic() - asked_at < hold_s / 2:
            yield Pause(SHORT_S)


def seal_group(settings: CallSettings, group_id: JobId) -> Flow[GroupObject]:
    """Let no more jobs enter the group: it is finished when those in it have ended."""
    request = ApiRequest(what=f"seal of group {group_id}", method="POST", path=f"/v1/groups/{group_id}/seal")
    return answered(settings, request, GroupObject)


def cancel_group(settings: CallSettings, group_id: JobId) -> Flow[int]:
    """Seal the group and cancel its members, in batches; how many. The callback runs when they have ended."""
    return _change(settings, group_id, "cancel")


def retry_group(settings: CallSettings, group_id: JobId) -> Flow[int]:
    """Run the members that ended in error again, each once, as new members; how many."""
    return _change(settings, group_id, "retry")


def _change(settings: CallSettings, group_id: JobId, verb: str) -> Flow[int]:
    changed, before = 0, None
    while True:
        body: dict[str, Any] = {"limit": wire.MAX_BULK} | ({} if before is None else {"before": before})
        request = ApiRequest(
            what=f"{verb} of group {group_id}",
            method="POST",
            path=f"/v1/groups/{group_id}/{verb}",
            body=msgspec.json.encode(body),
        )
        answer = yield from answered(settings, request, wire.BulkAnswer)
        changed, before = changed + answer.changed, answer.next
        if before is None:
            return changed


# -- shapes ------------------------------------------------------------------------------------------------------------


def chain(settings: CallSettings, jobs: Iterable[Submission]) -> Flow[list[wire.BatchEntry]]:
    """Submit jobs that run one after the other: each when the one before is done, whose result is its input.

    The input has the name of its job's `ref`, which is "1", "2" and so on if it has none: `{{inputs.1}}`.
    """
    made = _with_refs(jobs)
    for before, job in pairwise(made):
        job["depends_on"] = [*job.get("depends_on", ()), {"ref": before["ref"]}]
    return submit_batch(settings, made)


def fan_in(settings: CallSettings, jobs: Iterable[Submission], last: Submission) -> Flow[list[wire.BatchEntry]]:
    """Submit up to 1000 jobs, and a last one that runs when all of them are done, with their results as inputs."""
    made = _with_refs(jobs)
    end = cast("Submission", dict(last))
    end["depends_on"] = [*end.get("depends_on", ()), *({"ref": job["ref"]} for job in made)]
    return submit_batch(settings, [*made, end])


def fan_out(
    settings: CallSettings,
    jobs: Iterable[Submission],
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    callback: Submission | None = None,
    callback_on: Literal["any", "success"] = "any",
) -> Flow[GroupObject]:
    """Submit any number of jobs as a group that is sealed, with a job that runs once when all of them are final."""
    made = yield from create_group(settings, name=name, labels=labels, callback=callback, callback_on=callback_on)
    batch: list[Submission] = []
    for job in jobs:
        batch.append(cast("Submission", {**job, "group": made.group_id}))
        if len(batch) == BATCH:
            yield from submit_batch(settings, batch)
            batch = []
    if batch:
        yield from submit_batch(settings, batch)
    return (yield from seal_group(settings, made.group_id))


def _with_refs(jobs: Iterable[Submission]) -> list[Submission]:
    return [cast("Submission", {"ref": str(n), **job}) for n, job in enumerate(jobs, 1)]
