"""Shows what jobd does before there is a real task: streams a text, progress and a result, and says how to go on.

The payload may say how long it takes (`seconds`), how many made-up words it emits instead (`tokens`), how often it
fails (`fail_rate`, from 0 to 1) and over how many random numbers the statistics are (`stats`). Every result says
`"mock": true`.
"""

from __future__ import annotations

import itertools
import random
import re
import statistics
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from msgspec import UNSET, Meta, UnsetType

from jobd.tasks.runner import Runner, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobd.tasks.runner import Context

WORDS = ("this ", "answer ", "is ", "made ", "up ", "by ", "a ", "mock ", "model ")
#: Words of an answer whose payload says only how long it takes.
FEW_WORDS = 5
#: Seconds that such an answer takes, and seconds of the whole demonstration: slow enough to be seen, short for a wait.
SHORT_S, DEMO_S = 0.5, 1.5
#: Fields of a payload that may hold what its sender wrote, as in the payloads of models.
TEXTS = ("text", "prompt", "question", "input")
#: Characters of it that are quoted.
QUOTED_CHARS = 60
#: Length of a made-up vector.
DIMENSIONS = 8


class MockPayload(msgspec.Struct, frozen=True, kw_only=True):
    #: Default: `DEMO_S` for the demonstration, else `SHORT_S`.
    seconds: Annotated[float, Meta(ge=0, le=86_400)] | UnsetType = UNSET
    #: Default: the demonstration, or `FEW_WORDS` if `seconds` are given.
    tokens: Annotated[int, Meta(ge=0, le=10_000)] | UnsetType = UNSET
    fail_rate: Annotated[float, Meta(ge=0, le=1)] = 0.0
    stats: Annotated[int, Meta(ge=2, le=100_000)] = 100


class MockRunner(Runner):
    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        try:
            asked = msgspec.convert(payload, MockPayload)
        except msgspec.ValidationError as error:
            raise TaskFailed("invalid_payload", f"the mock cannot do this: {error}", retryable=False) from None
        text = await _speak(asked, payload, context)
        if random.random() < asked.fail_rate:
            raise TaskFailed("mock_failure", f"failed at random, by fail_rate = {asked.fail_rate:g}")
        if context.task == "embed":
            return {"mock": True, "vector": [round(random.gauss(0, 1), 6) for _ in range(DIMENSIONS)]}
        return {"mock": True, "text": text, "stats": _statistics(asked.stats)}


async def _speak(asked: MockPayload, payload: Mapping[str, Any], context: Context) -> str:
    """Emit the words evenly over the duration, and progress at the end of each line."""
    is_demo = asked.seconds is UNSET and asked.tokens is UNSET
    lines = _demonstration(payload, context) if is_demo else [_made_up(asked)]
    seconds = asked.seconds if asked.seconds is not UNSET else DEMO_S if is_demo else SHORT_S
    number = sum(map(len, lines))
    for done, line in enumerate(lines, start=1):
        for word in line:
            await anyio.sleep(seconds / number)
            context.token(word)
        if is_demo:
            context.progress(done / len(lines), f"line {done} of {len(lines)}")
    if not number:
        await anyio.sleep(seconds)
    return "".join(itertools.chain.from_iterable(lines))


def _made_up(asked: MockPayload) -> list[str]:
    number = FEW_WORDS if asked.tokens is UNSET else asked.tokens
    return list(itertools.islice(itertools.cycle(WORDS), number))


def _demonstration(payload: Mapping[str, Any], context: Context) -> list[list[str]]:
    """Lines of words. The last says how to plug in a model."""
    quoted = next((payload[name] for name in TEXTS if isinstance(payload.get(name), str)), "")
    quoted = " ".join(quoted.split())[:QUOTED_CHARS]
    name = context.task if "." not in context.task else f'"{context.task}"'
    lines = (
        f'You sent "{quoted}" to the task {context.task}.' if quoted else f"You sent a job to the task {context.task}.",
        "The job was in Postgres before your call was answered; kill jobd now, and it runs again when jobd is back.",
        f"This is attempt {context.attempt} of {context.max_attempts}. Each word here is an event of the job, live on"
        " the web page too.",
        f'No model answers yet. For a real one: [tasks.{name}] run = "openai" and base_url = "http://127.0.0.1:8080/v1",'
        " a line each, in jobd.toml; then restart jobd.",
    )
    return [re.findall(r"\S+\s*", f"{line}\n") for line in lines]


def _statistics(number: int) -> dict[str, float | int]:
    drawn = [random.gauss(0, 1) for _ in range(number)]
    return {"mean": round(statistics.fmean(drawn), 6), "std": round(statistics.stdev(drawn), 6), "n": number}
