"""The mock: what a first job shows, what its payload may say, and that it says what it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.config.load import load
from jobd.tasks.mock import MockRunner
from jobd.tasks.runner import TaskFailed
from jobd.testing import FakeContext

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobd.tasks.mock.DEMO_S", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_first_job_streams_text_and_progress_and_says_how_to_plug_in_a_model() -> None:
    context = FakeContext(task="chat")

    result = await MockRunner().run({"text": " hello\nthere " + "!" * 100}, context)

    lines = context.text.splitlines()
    assert (result["mock"], result["text"]) == (True, context.text)
    assert lines[0].startswith('You sent "hello there !!!')
    assert len(lines[0]) < 100
    assert context.shares == [0.25, 0.5, 0.75, 1.0]
    assert len(context.tokens) > 40
    assert set(result["stats"]) == {"mean", "std", "n"}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("task", "table"), [("plan", "plan"), ("a.b", '"a.b"')])
async def test_last_line_is_a_table_that_the_configuration_takes(task: str, table: str, tmp_path: Path) -> None:
    context = FakeContext(task=task)

    await MockRunner().run({}, context)

    last = context.text.splitlines()[-1]
    settings = re.findall(r'\w+ = "[^"]+"', last)
    assert f"[tasks.{table}] " in last
    (tmp_path / "jobd.toml").write_text("\n".join([f"[tasks.{table}]", *settings, ""]))
    assert load(tmp_path / "jobd.toml", {}, {}).config.tasks[task].run == "openai"


async def test_answer_is_what_the_tokens_say_and_is_marked() -> None:
    context = FakeContext(task="chat")

    result = await MockRunner().run({"text": "hi", "seconds": 0, "tokens": 12, "stats": 50}, context)

    assert (result["mock"], result["text"], len(context.events)) == (True, context.text, 12)
    assert set(result["stats"]) == {"mean", "std", "n"}
    assert result["stats"]["n"] == 50


async def test_embed_answers_a_vector() -> None:
    result = await MockRunner().run({"seconds": 0, "tokens": 0}, FakeContext(task="embed"))

    assert result["mock"] is True
    assert all(isinstance(number, float) for number in result["vector"])


async def test_failure_at_random_may_be_tried_again() -> None:
    with pytest.raises(TaskFailed) as caught:
        await MockRunner().run({"seconds": 0, "fail_rate": 1}, FakeContext())

    assert (caught.value.code, caught.value.retryable) == ("mock_failure", True)


@pytest.mark.parametrize("payload", [{"seconds": -1}, {"tokens": "many"}, {"fail_rate": 2}, {"stats": 1}])
async def test_payload_that_makes_no_sense_is_not_tried_again(payload: dict[str, Any]) -> None:
    with pytest.raises(TaskFailed) as caught:
        await MockRunner().run(payload, FakeContext())

    assert (caught.value.code, caught.value.retryable) == ("invalid_payload", False)


async def test_mock_stops_when_it_is_cancelled() -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(MockRunner().run, {"seconds": 60}, FakeContext())
            await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
