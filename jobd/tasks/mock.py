"""Runs nothing: sleeps, emits made-up tokens and returns made-up numbers, to try out jobd without a real task.

The payload may say how long it takes (`seconds`), how many tokens it emits (`tokens`), how often it fails (`fail_rate`,
from 0 to 1) and over how many random numbers the statistics are (`stats`). Every result says `"mock": true`.
"""

from __future__ import annotations

import itertools
import random
import statistics
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from msgspec import Meta

from jobd.tasks.runner import Runner, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.tasks.runner import Context

WORDS = ("this ", "answer ", "is ", "made ", "up ", "by ", "a ", "mock ", "model ")
#: Length of a made-up vector.
DIMENSIONS = 8


class MockPayload(msgspec.Struct, frozen=True, kw_only=True):
    seconds: Annotated[float, Meta(ge=0, le=86_400)] = 0.5
    tokens: Annotated[int, Meta(ge=0, le=10_000)] = 5
    fail_rate: Annotated[float, Meta(ge=0, le=1)] = 0.0
    stats: Annotated[int, Meta(ge=2, le=100_000)] = 100


class MockRunner(Runner):
    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        try:
            asked = msgspec.convert(payload, MockPayload)
        except msgspec.ValidationError as error:
            raise TaskFailed("invalid_payload", f"the mock cannot do this: {error}", retryable=False) from None
        text = await _speak(asked, context)
        if random.random() < asked.fail_rate:
            raise TaskFailed("mock_failure", f"failed at random, by fail_rate = {asked.fail_rate:g}")
        if context.task == "embed":
            return {"mock": True, "vector": [round(random.gauss(0, 1), 6) for _ in range(DIMENSIONS)]}
        return {"mock": True, "text": text, "stats": _statistics(asked.stats)}


async def _speak(asked: MockPayload, context: Context) -> str:
    """Emit the tokens evenly over the duration."""
    words = list(itertools.islice(itertools.cycle(WORDS), asked.tokens))
    for word in words:
        await anyio.sleep(asked.seconds / len(words))
        context.token(word)
    if not words:
        await anyio.sleep(asked.seconds)
    return "".join(words)


def _statistics(number: int) -> dict[str, float | int]:
    drawn = [random.gauss(0, 1) for _ in range(number)]
    return {"mean": round(statistics.fmean(drawn), 6), "std": round(statistics.stdev(drawn), 6), "n": number}
