"""Batches of reports of which the engine answers some, and of which a disk does not take some."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.engine.results import ResultNotKept
from jobd.errors import ServerDown
from jobd.http import worker_batches
from jobd.job.model import Completed
from jobd.lifecycle.complete import Completion
from jobd.wire.json_check import HasNul

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobd.wire import worker as wire

DOWN = ServerDown("so it is")


def completion() -> Completion:
    return Completion(job_id=uuid.uuid4(), attempt_id=uuid.uuid4(), lease_token=uuid.uuid4(), result="1")


def answered(reports: Sequence[Completion | Exception], *answers: object) -> list[wire.CompleteJobAnswer]:
    """What a worker is told when the engine answers so."""
    call: Any = SimpleNamespace(services=SimpleNamespace(database=None))

    async def send(good: Sequence[Completion]) -> Sequence[object]:
        assert len(good) == len(answers)
        return answers

    async def run() -> list[wire.CompleteJobAnswer]:
        return await worker_batches._answers(
            call, reports, send, worker_batches._completed, worker_batches._not_completed
        )

    return anyio.run(run)


def problem(answer: wire.CompleteJobAnswer) -> tuple[bool, bool, object, object]:
    return answer.ok, answer.ack, getattr(answer.problem, "status", None), getattr(answer.problem, "code", None)


DONE = (True, True, None, None)
UNKNOWN = (False, False, 503, "unavailable")


def test_report_whose_fate_is_unknown_is_told_apart_from_those_that_count() -> None:
    told = answered([completion() for _ in range(3)], Completed(), DOWN, Completed())

    assert [problem(answer) for answer in told] == [DONE, UNKNOWN, DONE]


def test_batch_of_which_nothing_is_known_is_an_error() -> None:
    with pytest.raises(ServerDown):
        answered([completion(), completion()], DOWN, DOWN)


def test_bad_report_is_told_though_nothing_is_known_of_the_others() -> None:
    told = answered([completion(), HasNul("no"), completion()], DOWN, DOWN)

    assert [problem(answer) for answer in told] == [UNKNOWN, (False, False, 422, "nul"), UNKNOWN]


def test_error_of_jobd_itself_says_nothing_of_what_is_inside() -> None:
    (_, failed) = answered([completion(), completion()], Completed(), RuntimeError("secret"))

    assert problem(failed) == (False, False, 500, "internal")
    assert "secret" not in str(failed)


def test_result_that_the_disk_does_not_take_is_refused_alone() -> None:
    async def keep(*_: object) -> str:
        raise ResultNotKept("the disk is full")

    call: Any = SimpleNamespace(services=SimpleNamespace(results=SimpleNamespace(keep=keep)))
    large = worker_batches._LargeResult(completion(), b'"much"')

    refused = anyio.run(worker_batches._with_file, call, large)

    told = answered([completion(), refused], Completed())
    assert [problem(answer) for answer in told] == [DONE, (False, False, 503, "result_not_kept")]
