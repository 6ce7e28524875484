"""A handler that is run inline ends as it would in a slot, and all that it emitted is there."""

from __future__ import annotations

import sys
import time
from typing import Any

import anyio
import msgspec
import pytest

from jobd import Context, TaskFailed
from jobd.config.model import Limits
from jobd.errors import ConfigError
from jobd.job.inputs import Input
from jobd.testing import FakeContext, RecordedEvent, inline, run_handler, run_handler_async


class Box(msgspec.Struct):
    width: int
    height: int = 1


def area(box: Box, ctx: Context) -> dict[str, Any]:
    ctx.log("measuring")
    ctx.progress(0.5, "half way")
    ctx.token("4")
    ctx.token("2")
    return {"area": box.width * box.height, "sides": (box.width, box.height)}


async def waits(payload: dict[str, Any], ctx: Context) -> None:
    ctx.progress(0.1)
    await anyio.sleep(600)


def waits_in_thread(payload: dict[str, Any], ctx: Context) -> str:
    ctx.progress(0.1)
    while not ctx.cancelled:
        time.sleep(0.005)
    ctx.log("too late to be seen")
    return "thrown away"


def test_result_is_what_a_client_would_get() -> None:
    ran = run_handler(area, {"width": 6, "height": 7})

    assert (ran.outcome, ran.result, ran.error) == ("done", {"area": 42, "sides": [6, 7]}, None)


def test_what_it_emits_is_recorded_in_order() -> None:
    context = run_handler(area, {"width": 1}).context

    assert [event.type for event in context.events] == ["log", "progress", "token", "token"]
    assert context.events[1] == RecordedEvent("progress", "half way", {"progress": 0.5})
    assert (context.shares, context.notes) == ([0.5], ["half way"])
    assert (context.tokens, context.text, context.lines) == (["4", "2"], "42", ["measuring"])


def test_context_can_be_given_to_a_plain_call() -> None:
    context = FakeContext(attempt=2, inputs={"sum": 3, "lost": Input(id="x", status="error", error={"code": "e"})})

    area(Box(width=1), context)

    assert (context.attempt, context.text) == (2, "42")
    assert (context.inputs["sum"].result, context.inputs["sum"].status) == (3, "done")
    assert context.inputs["lost"].error == {"code": "e"}


async def test_async_handler_runs_in_the_loop_of_its_test() -> None:
    async def handler(payload: dict[str, Any], ctx: Context) -> str:
        return str(payload["text"])

    assert (await run_handler_async(handler, {"text": "hi"})).result == "hi"


async def test_in_an_event_loop_the_other_function_is_named() -> None:
    with pytest.raises(RuntimeError, match="await run_handler_async"):
        run_handler(area, {"width": 1})


def fails(payload: dict[str, Any], ctx: Context) -> None:
    raise {"value": ValueError("no"), "refused": TaskFailed("full", "no room", retryable=False), "exit": SystemExit(3)}[
        payload["how"]
    ]


@pytest.mark.parametrize(
    ("how", "code", "retryable"),
    [("value", "exception", True), ("refused", "full", False), ("exit", "exception", True)],
)
def test_failure_has_the_code_that_its_job_would_have(how: str, code: str, retryable: bool) -> None:
    ran = run_handler(fails, {"how": how})

    assert ran.error is not None
    assert (ran.outcome, ran.error.code, ran.error.retryable, ran.is_retried) == ("failed", code, retryable, retryable)


def test_last_attempt_is_not_retried() -> None:
    assert not run_handler(fails, {"how": "value"}, FakeContext(attempt=3, max_attempts=3)).is_retried


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (object(), "bad_result"),
        (b"\xff".decode("latin1") + "\0", "bad_result"),
        ("x" * 101, "result_too_large"),
        (["x" * 60, "y" * 60], "result_too_large"),
        ({1, object}, "bad_result"),
    ],
)
def test_result_that_no_slot_would_store_fails(result: object, code: str) -> None:
    ran = run_handler(lambda payload, ctx: result, limits=Limits(result_bytes=100, inline_result_bytes=50))

    assert ran.error is not None
    assert (ran.outcome, ran.result, ran.error.code, ran.error.retryable) == ("failed", None, code, False)


def test_payload_of_the_wrong_type_is_not_tried_again() -> None:
    ran = run_handler(area, {"width": "six"})

    assert ran.error is not None
    assert (ran.error.code, ran.error.retryable) == ("invalid_payload", False)


@pytest.mark.parametrize("payload", [[1], {"x": object()}, {"x": "\0"}, {"x": "y" * 204_800}])
def test_payload_that_no_job_can_have_is_the_fault_of_the_test(payload: Any) -> None:
    with pytest.raises(ValueError, match="jobd would refuse this payload"):
        run_handler(area, payload)


def test_function_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match="two arguments"):
        run_handler(lambda payload: None)


def test_wrong_event_raises_in_the_handler() -> None:
    ran = run_handler(lambda payload, ctx: ctx.event("done", {}))

    assert ran.error is not None
    assert "emitted by jobd itself" in ran.error.message


def test_snooze_releases_the_job() -> None:
    ran = run_handler(lambda payload, ctx: ctx.snooze(90))

    assert (ran.outcome, ran.snooze_s, ran.error) == ("released", 90.0, None)


@pytest.mark.parametrize("handler", [waits, waits_in_thread])
def test_canceled_job_stops_and_its_result_is_thrown_away(handler: Any) -> None:
    ran = run_handler(handler, context=FakeContext(cancel_after_events=1))

    assert (ran.outcome, ran.result, ran.error) == ("canceled", None, None)
    assert ran.context.lines == []


@pytest.mark.parametrize("handler", [waits, waits_in_thread])
def test_attempt_that_takes_too_long_fails(handler: Any) -> None:
    ran = run_handler(handler, context=FakeContext(timeout_s=0.05))

    assert ran.error is not None
    assert (ran.outcome, ran.error.code, ran.is_retried) == ("failed", "timeout", True)


def test_thread_that_does_not_stop_is_an_error_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "GONE_S", 0.05)

    def deaf(payload: dict[str, Any], ctx: Context) -> None:
        ctx.progress(0)
        time.sleep(0.5)

    with pytest.raises(AssertionError, match=r"deaf goes on in its thread .* ctx\.cancelled"):
        run_handler(deaf, context=FakeContext(cancel_after_events=1))


def test_names_are_there_and_imported_when_used() -> None:
    import jobd.testing

    assert all(getattr(jobd.testing, name) is not None for name in jobd.testing.__all__)
    with pytest.raises(AttributeError, match="no_such"):
        jobd.testing.no_such  # type: ignore[attr-defined]  # noqa: B018 - the access is the point
    assert "jobd.testing.inline" in sys.modules
