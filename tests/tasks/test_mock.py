"""The mock: what its payload may say, and that it says what it is."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from jobd.store.ids import new_id
from jobd.tasks.mock import MockRunner
from jobd.tasks.runner import Context, TaskFailed


def context(told: list[str], task: str = "chat") -> Context:
    def emit(kind: str, step: str, data: Any) -> None:
        told.append(data["text"])

    return Context(job_id=new_id(), task=task, attempt=1, max_attempts=3, timeout_s=60, emit=emit)


async def test_answer_is_what_the_tokens_say_and_is_marked() -> None:
    told: list[str] = []

    result = await MockRunner().run({"text": "hi", "seconds": 0, "tokens": 12, "stats": 50}, context(told))

    assert (result["mock"], result["text"], len(told)) == (True, "".join(told), 12)
    assert set(result["stats"]) == {"mean", "std", "n"}
    assert result["stats"]["n"] == 50


async def test_embed_answers_a_vector() -> None:
    result = await MockRunner().run({"seconds": 0, "tokens": 0}, context([], "embed"))

    assert result["mock"] is True
    assert all(isinstance(number, float) for number in result["vector"])


async def test_failure_at_random_may_be_tried_again() -> None:
    with pytest.raises(TaskFailed) as caught:
        await MockRunner().run({"seconds": 0, "fail_rate": 1}, context([]))

    assert (caught.value.code, caught.value.retryable) == ("mock_failure", True)


@pytest.mark.parametrize("payload", [{"seconds": -1}, {"tokens": "many"}, {"fail_rate": 2}, {"stats": 1}])
async def test_payload_that_makes_no_sense_is_not_tried_again(payload: dict[str, Any]) -> None:
    with pytest.raises(TaskFailed) as caught:
        await MockRunner().run(payload, context([]))

    assert (caught.value.code, caught.value.retryable) == ("invalid_payload", False)


async def test_mock_stops_when_it_is_cancelled() -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(MockRunner().run, {"seconds": 60}, context([]))
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
