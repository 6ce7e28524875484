"""`/v1/queues/{queue}/limits`: limits and weights of the keys of a queue, read and set while jobd runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import UNSET, UnsetType

from jobd.auth.table import audit
from jobd.http.body import read_json
from jobd.http.endpoint import Call, Parameter, get, json_answer, post
from jobd.http.query import read_query
from jobd.http.queues import QUEUE, queue_in
from jobd.lifecycle.admit import LimitRule, drop_limit, read_limits, set_limit
from jobd.wire import gateway as wire
from jobd.wire.problems import ApiError

if TYPE_CHECKING:
    from starlette.responses import Response

#: Largest body in bytes: a key of 200 characters, escaped, takes 1200.
BODY_BYTES = 4096
#: Limits in an answer when the query names no number.
PAGE = 100
PARAMETERS = (
    Parameter("limit", wire.Limit, "Largest number of limits in the answer; 100 without it."),
    Parameter("after", wire.RuleKey, "Only keys behind this one: `next` of the page before."),
)

T = TypeVar("T")


async def get_limits(call: Call) -> Response:
    name, query = queue_in(call), read_query(call.request, PARAMETERS)
    most, configured = query.get("limit", PAGE), call.services.config().queues[name]
    rules = await read_limits(call.services.database, after=(name, query.get("after", "")), most=most)
    found = [rule for rule in rules if rule.queue == name]
    limits = [
        wire.LimitObject(key=rule.key, running=rule.running, rate=rule.rate, rate_s=rule.rate_s, weight=rule.weight)
        for rule in found
    ]
    usual = wire.ConfiguredLimits(
        running=configured.key_running,
        rate=configured.key_rate,
        rate_s=configured.key_rate_s,
        fair=configured.fair,
    )
    following = found[-1].key if len(found) == most else None
    return json_answer(wire.LimitPage(queue=name, configured=usual, limits=limits, next=following))


async def put_limit(call: Call) -> Response:
    name, asked = queue_in(call), await read_json(call.request, wire.LimitRequest, BODY_BYTES)
    if (asked.rate is UNSET) != (asked.rate_s is UNSET):
        raise ApiError("invalid", "rate and rate_s go together; send both or none - at `$.rate`")
    rule = LimitRule(
        queue=name,
        key=asked.key,
        running=_or_none(asked.running),
        rate=_or_none(asked.rate),
        rate_s=_or_none(asked.rate_s),
        weight=_or_none(asked.weight),
    )
    async with call.services.database.transaction() as session:
        await set_limit(session, rule)
        await audit(session, call.principal.name, "limit.set", f"queue {name}, key {asked.key}")
    call.services.engine.limits_changed()
    return json_answer(
        wire.LimitObject(key=rule.key, running=rule.running, rate=rule.rate, rate_s=rule.rate_s, weight=rule.weight)
    )


async def remove_limit(call: Call) -> Response:
    name, asked = queue_in(call), await read_json(call.request, wire.LimitDrop, BODY_BYTES)
    async with call.services.database.transaction() as session:
        dropped = await drop_limit(session, name, asked.key)
        await audit(session, call.principal.name, "limit.drop", f"queue {name}, key {asked.key}")
    call.services.engine.limits_changed()
    return json_answer(wire.LimitDropAnswer(asked.key, dropped))


def _or_none(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value


ENDPOINTS = (
    get(
        "/v1/queues/{queue}/limits",
        "client",
        get_limits,
        "Limits and weights of the keys of a queue",
        answers={200: wire.LimitPage},
        problems=("no_such_queue", "invalid"),
        parameters=(QUEUE, *PARAMETERS),
    ),
    post(
        "/v1/queues/{queue}/limits",
        "admin",
        put_limit,
        "Set the limits of a key, or of all keys; raised ones count at once, lowered ones end nothing",
        answers={200: wire.LimitObject},
        problems=("no_such_queue", "invalid"),
        body=wire.LimitRequest,
        parameters=(QUEUE,),
    ),
    post(
        "/v1/queues/{queue}/limits/drop",
        "admin",
        remove_limit,
        "Forget the limits of a key: those of all keys, or the configuration, count again",
        answers={200: wire.LimitDropAnswer},
        problems=("no_such_queue", "invalid"),
        body=wire.LimitDrop,
        parameters=(QUEUE,),
    ),
)
