"""`GET /v1/rollups`: how many jobs ended in each minute or hour, and how long they waited and ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobd.http.endpoint import Call, Parameter, get, json_answer
from jobd.http.query import read_query
from jobd.lifecycle.rollups import BOUNDS_S, Rollup, read_rollups
from jobd.wire import rollups as wire
from jobd.wire.gateway import Moment, Name
from jobd.wire.milliseconds import moment, ms
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

#: Milliseconds of a minute, the width of a rollup.
MINUTE_MS = 60_000
STEP_MS = {"minute": MINUTE_MS, "hour": 60 * MINUTE_MS}
#: Steps in an answer when the query does not say since when.
STEPS = {"minute": 60, "hour": 24}
#: Steps that one answer may span: a day, a month.
MOST_STEPS = {"minute": 24 * 60, "hour": 31 * 24}
#: Rows, one for each minute, queue and task, that one answer may read: some 10 ms of work.
MOST_ROWS = {"minute": 2_000, "hour": 20_000}

PARAMETERS = (
    Parameter("queue", Name, "Only this queue."),
    Parameter("task", Name, "Only this task."),
    Parameter("since_ts", Moment, "From the step of this time on, in milliseconds since 1970; the last hour or day."),
    Parameter("until_ts", Moment, "Only steps that begin before this time, in milliseconds since 1970; now."),
    Parameter("step", wire.RollupStep, "`minute` or `hour`; minute without it."),
)


async def get_rollups(call: Call) -> Response:
    query = read_query(call.request, PARAMETERS)
    step: wire.RollupStep = query.get("step", "minute")
    step_ms = STEP_MS[step]
    until_ms = query.get("until_ts", call.services.database.clock.now_ms() + 1)
    since_ms = query.get("since_ts", until_ms - 1 - (STEPS[step] - 1) * step_ms) // step_ms * step_ms
    if until_ms - since_ms > MOST_STEPS[step] * step_ms:
        raise ApiError(
            "invalid",
            f"since_ts and until_ts are more than {MOST_STEPS[step]} steps of a {step} apart;"
            " ask for less, or for step=hour, which may span 31 days",
        )
    found = await read_rollups(
        call.services.database,
        since=moment(max(0, since_ms)),
        until=moment(-(-until_ms // step_ms) * step_ms),
        queue=query.get("queue"),
        task=query.get("task"),
        step=step,
        most=MOST_ROWS[step],
    )
    return json_answer(
        wire.RollupAnswer(
            step=step,
            bounds_s=list(BOUNDS_S),
            points=[_point(rollup) for rollup in found.rollups],
            next_ts=None if found.next_at is None else ms(found.next_at),
        )
    )


def _point(rollup: Rollup) -> wire.RollupPoint:
    return wire.RollupPoint(
        ts=ms(rollup.at),
        queue=rollup.queue,
        task=rollup.task,
        done=rollup.done,
        error=rollup.error,
        canceled=rollup.canceled,
        failed=rollup.failed,
        expired=rollup.expired,
        wait_s=round(rollup.wait_s, 3),
        run_s=round(rollup.run_s, 3),
        waits=rollup.waits,
        runs=rollup.runs,
    )


ENDPOINTS = (
    get(
        "/v1/rollups",
        "client",
        get_rollups,
        "What ended in each minute or hour, by queue and task",
        answers={200: wire.RollupAnswer},
        problems=("invalid",),
        parameters=PARAMETERS,
        own_jobs=True,
    ),
)
