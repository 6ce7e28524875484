"""Reports of a worker by the batch: what shares a call, and what becomes of each report when the call goes wrong."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.client import BadAnswer, ClientError
from jobd.http.worker_batches import BATCH_BYTES
from jobd.job.model import Completed, Conflicting, Superseded
from jobd.lifecycle.complete import Completion
from jobd.lifecycle.fail import Failure
from jobd.lifecycle.report import Held
from jobd.tasks.runner import TaskFailed
from jobd.wire import worker as wire
from jobd.worker.engine import RemoteEngine
from jobd.worker.reports import ALONE_BYTES, CALL_BYTES, MAX_REPORTS
from jobd.worker.session import WorkerSession
from tests.client.test_client_faults import Puppet, ScriptedAnswer, problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from http.server import BaseHTTPRequestHandler

OK = {"ok": True, "ack": True}
NO_SUCH_CALL = problem(404, "not_found")


def completion(result: Any = 1) -> Completion:
    return Completion(job_id=uuid.uuid4(), attempt_id=uuid.uuid4(), lease_token=uuid.uuid4(), result=json.dumps(result))


def held() -> Held:
    return Held(job_id=uuid.uuid4(), attempt_id=uuid.uuid4(), lease_token=uuid.uuid4())


class PlayedJobd(Puppet):
    """Answers each call with what a function makes of its verb and its body, and may be held back."""

    def __init__(self, answer: Callable[[str, Any], ScriptedAnswer]) -> None:
        super().__init__()
        self._answer_to = answer
        self.goes_on = threading.Event()
        self.goes_on.set()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        heard = self.heard[-1]
        self.goes_on.wait(30)
        self._answers = iter([self._answer_to(_verb(heard.line), json.loads(heard.body))])
        super().answer(handler)

    def answer_once(self) -> None:
        """Answer the calls that wait now, and hold back the next."""
        self.goes_on.set()
        self.goes_on.clear()

    def calls(self) -> list[tuple[str, int]]:
        """The verb of each call, and how many reports it had."""
        return [(_verb(heard.line), len(json.loads(heard.body).get("jobs", [0]))) for heard in list(self.heard)]

    def reported(self) -> list[str]:
        """The job of each report, in the order of their arrival."""
        bodies = [json.loads(heard.body) for heard in list(self.heard)]
        return [job["job_id"] for body in bodies for job in body.get("jobs", [body])]

    async def until_called(self, number: int) -> None:
        with anyio.fail_after(30):
            while len(self.heard) < number:
                await anyio.sleep(0.005)


def _verb(line: str) -> str:
    return line.split()[1].removeprefix("/internal/worker/")


def good(verb: str, body: Any) -> ScriptedAnswer:
    answer = {**OK, **({} if verb.startswith("complete") else {"requeued": True, "dlq": False})}
    return ScriptedAnswer(200, {"jobs": [answer] * len(body["jobs"])} if "jobs" in body else answer)


class Remote:
    def __init__(self, jobd: PlayedJobd, session: WorkerSession) -> None:
        self.jobd = jobd
        self.session = session
        self.engine = RemoteEngine(session, "w-1")


@contextlib.asynccontextmanager
async def remote(answer: Callable[[str, Any], ScriptedAnswer] = good) -> AsyncIterator[Remote]:
    jobd = PlayedJobd(answer)
    with jobd.serving():
        try:
            async with WorkerSession(jobd.url, None) as session:
                yield Remote(jobd, session)
        finally:
            jobd.goes_on.set()


# -- what shares a call ----------------------------------------------------------------------------------------------


async def test_reports_handed_over_together_go_in_one_call_and_are_answered_in_order() -> None:
    reports = [completion({"n": n}) for n in range(4)]
    jobs = [OK, {"ok": False, "ack": True, "reason": "superseded"}, {**OK, "replay": True}]
    jobs.append({"ok": False, "ack": True, "reason": "conflicting_outcome"})
    async with remote(lambda *_: ScriptedAnswer(200, {"jobs": jobs})) as there:
        answers = await there.engine.complete_many(reports)

        assert [type(answer) for answer in answers] == [Completed, Superseded, Completed, Conflicting]
        (heard,) = there.jobd.heard
        sent = json.loads(heard.body)
        assert heard.line.startswith("POST /internal/worker/complete/batch ")
        assert sent == {
            "worker_id": "w-1",
            "jobs": [
                {
                    "job_id": str(report.job_id),
                    "attempt_id": str(report.attempt_id),
                    "lease_token": str(report.lease_token),
                    "result": {"n": n},
                }
                for n, report in enumerate(reports)
            ],
        }
        assert there.engine.completed == 2


async def test_lone_report_goes_by_the_call_for_one_job() -> None:
    async with remote() as there:
        assert await there.engine.complete_many([completion()]) == [Completed()]

        assert there.jobd.calls() == [("complete", 1)]


async def test_no_report_is_no_call() -> None:
    async with remote() as there:
        assert await there.engine.complete_many([]) == []

        assert there.jobd.heard == []


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
async def test_what_comes_while_a_call_is_under_way_goes_with_the_next(verb: str) -> None:
    async with remote() as there:
        report: Any = {
            "complete": lambda: there.engine.complete(completion()),
            "fail": lambda: there.engine.fail(
                Failure(job_id=uuid.uuid4(), attempt_id=uuid.uuid4(), lease_token=uuid.uuid4(), error='{"code":"x"}')
            ),
            "release": lambda: there.engine.release(held()),
        }[verb]
        there.jobd.goes_on.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(report)
            await there.jobd.until_called(1)
            for _ in range(5):
                tasks.start_soon(report)
            await anyio.wait_all_tasks_blocked()
            there.jobd.goes_on.set()

        assert there.jobd.calls() == [(verb, 1), (f"{verb}/batch", 5)]
        assert there.engine.completed + there.engine.failed + there.engine.released == 6


async def test_many_reports_go_in_calls_of_bounded_number() -> None:
    async with remote() as there:
        answers = await there.engine.complete_many([completion() for _ in range(MAX_REPORTS + 3)])

        assert answers == [Completed()] * (MAX_REPORTS + 3)
        assert there.jobd.calls() == [("complete/batch", MAX_REPORTS), ("complete/batch", 3)]


async def test_large_reports_go_in_calls_of_bounded_size() -> None:
    reports = [completion("x" * (ALONE_BYTES - 10)) for _ in range(40)]
    async with remote() as there:
        answers = await there.engine.complete_many(reports)

        assert answers == [Completed()] * 40
        assert max(len(heard.body) for heard in there.jobd.heard) <= CALL_BYTES
        assert there.jobd.reported() == [str(report.job_id) for report in reports]


async def test_result_that_is_large_itself_goes_alone_and_nobody_waits_for_it() -> None:
    large, *small = completion("x" * ALONE_BYTES), completion(1), completion(2)
    done = anyio.Event()
    async with remote() as there:
        there.jobd.goes_on.clear()

        async def report() -> None:
            assert await there.engine.complete_many([small[0], large, small[1]]) == [Completed()] * 3
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(report)
            await there.jobd.until_called(2)
            there.jobd.goes_on.set()

        assert done.is_set()
        assert sorted(there.jobd.calls()) == [("complete", 1), ("complete/batch", 2)]


# -- reports that are not taken --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "expected", "retryable"),
    [
        (422, "nul", "bad_result", False),
        (422, "result_too_deep", "bad_result", False),
        (413, "too_large", "result_too_large", False),
        (503, "result_not_kept", "result_not_kept", True),
    ],
)
async def test_result_that_is_not_taken_is_a_failure_in_its_place(
    status: int, code: str, expected: str, retryable: bool
) -> None:
    refused = {"ok": False, "ack": False, "problem": {"status": status, "code": code, "detail": "so it is"}}
    async with remote(lambda *_: ScriptedAnswer(200, {"jobs": [OK, refused, OK]})) as there:
        first, failed, last = await there.engine.complete_many([completion() for _ in range(3)])

        assert (first, last) == (Completed(), Completed())
        assert isinstance(failed, TaskFailed)
        assert (failed.code, failed.retryable) == (expected, retryable)
        assert there.engine.completed == 2


async def test_report_of_unknown_fate_in_a_batch_is_to_be_made_again() -> None:
    lost = {"ok": False, "ack": False, "problem": {"status": 503, "code": "unavailable", "detail": "so it is"}}
    async with remote(lambda *_: ScriptedAnswer(200, {"jobs": [OK, lost]})) as there:
        first, second = await there.engine.complete_many([completion(), completion()])

        assert first == Completed()
        assert isinstance(second, ClientError)


async def test_report_that_spoils_its_batch_is_found_and_the_others_count() -> None:
    """As a body does that a proxy refuses, or that is no JSON to jobd."""
    reports = [completion(n) for n in range(9)]
    poison = str(reports[5].job_id)

    def refuse(verb: str, body: Any) -> ScriptedAnswer:
        jobs = body.get("jobs", [body])
        return problem(422, "surrogate") if poison in {job["job_id"] for job in jobs} else good(verb, body)

    async with remote(refuse) as there:
        answers = await there.engine.complete_many(reports)

        assert [isinstance(answer, Completed) for answer in answers] == [n != 5 for n in range(9)]
        assert isinstance(answers[5], TaskFailed)
        assert there.session._pace.next_at == 0.0, "jobd is well, so others need not wait"


@pytest.mark.parametrize(
    "said",
    [
        ScriptedAnswer(0),
        problem(500, "internal"),
        problem(503, "unavailable", Retry_After="1"),
        problem(429, "too_many_requests", Retry_After="1"),
        problem(401, "unauthorized"),
        ScriptedAnswer(404, b"<html>nothing here</html>"),
        ScriptedAnswer(502, b""),
        ScriptedAnswer(200, b"<html>welcome</html>"),
    ],
    ids=lambda said: f"{said.status}",
)
async def test_batch_of_unknown_fate_is_to_be_made_again_after_a_pause(said: ScriptedAnswer) -> None:
    async with remote(lambda *_: said) as there:
        answers = await there.engine.complete_many([completion(), completion()])

        assert [isinstance(answer, ClientError) for answer in answers] == [True, True]
        assert len(there.jobd.heard) == 1
        assert there.session._pace.next_at > 0.0
        assert there.session.is_up is False
        assert there.session.takes_batches


async def test_batch_does_not_wait_for_as_long_as_jobd_wants_to_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots wait for their batch, even to stop; each report is then made again by itself."""
    monkeypatch.setattr("jobd.worker.engine.BATCH_S", 0.1)
    async with remote(lambda *_: problem(503, "unavailable", Retry_After="3600")) as there:
        await there.engine.complete_many([completion(), completion()])

        with anyio.fail_after(30):
            answers = await there.engine.complete_many([completion(), completion()])

        assert [isinstance(answer, ClientError) for answer in answers] == [True, True]
        assert len(there.jobd.heard) == 1


async def test_batch_does_not_wait_for_a_jobd_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobd.worker.engine.BATCH_S", 0.1)
    async with remote() as there:
        there.jobd.goes_on.clear()

        with anyio.fail_after(30):
            answers = await there.engine.complete_many([completion(), completion()])
        there.jobd.goes_on.set()

        assert [isinstance(answer, ClientError) for answer in answers] == [True, True]
        assert await there.engine.complete_many([completion(), completion()]) == [Completed()] * 2


async def test_batch_with_too_few_answers_is_of_unknown_fate() -> None:
    async with remote(lambda *_: ScriptedAnswer(200, {"jobs": [OK]})) as there:
        answers = await there.engine.complete_many([completion(), completion()])

        assert [type(answer) for answer in answers] == [BadAnswer, BadAnswer]


async def test_batch_whose_answer_was_lost_is_sent_again_and_counts_once() -> None:
    reports, calls = [completion(), completion()], iter(range(2))

    def lose_the_first(verb: str, body: Any) -> ScriptedAnswer:
        if next(calls) == 0:
            return ScriptedAnswer(0)
        return ScriptedAnswer(200, {"jobs": [{**OK, "replay": True}] * 2})

    async with remote(lose_the_first) as there:
        first = await there.engine.complete_many(reports)
        again = await there.engine.complete_many(reports)

        assert [isinstance(answer, ClientError) for answer in first] == [True, True]
        assert again == [Completed(), Completed()]
        assert there.jobd.heard[0].body == there.jobd.heard[1].body
        assert there.engine.completed == 2


# -- a jobd that is older than the worker ----------------------------------------------------------------------------


def old(verb: str, body: Any) -> ScriptedAnswer:
    return NO_SUCH_CALL if verb.endswith("/batch") else good(verb, body)


@pytest.mark.parametrize("verb", ["complete", "fail", "release"])
async def test_jobd_without_batches_gets_each_report_alone(verb: str) -> None:
    async with remote(old) as there:
        many: Any = {
            "complete": lambda: there.engine.complete_many([completion() for _ in range(40)]),
            "fail": lambda: there.engine.fail_many([Failure(**proof(), error='{"code":"x"}') for _ in range(40)]),
            "release": lambda: there.engine.release_many([held() for _ in range(40)]),
        }[verb]

        answers = [*await many(), *await many()]

        assert [isinstance(answer, Exception) for answer in answers] == [False] * 80
        assert there.jobd.calls() == [(f"{verb}/batch", 40), *[(verb, 1)] * 80]
        assert there.session._pace.next_at == 0.0, "jobd is well, so others need not wait"


def proof() -> dict[str, Any]:
    return {name: uuid.uuid4() for name in ("job_id", "attempt_id", "lease_token")}


async def test_jobd_that_comes_back_newer_gets_batches() -> None:
    said = iter([NO_SUCH_CALL, *[ScriptedAnswer(200, OK)] * 2, ScriptedAnswer(0), ScriptedAnswer(200, OK)])
    async with remote(lambda verb, body: next(said, good(verb, body))) as there:
        await there.engine.complete_many([completion(), completion()])
        with pytest.raises(ClientError):
            await there.engine.complete(completion())
        await there.engine.complete(completion())

        assert await there.engine.complete_many([completion(), completion()]) == [Completed()] * 2

        assert there.jobd.calls()[-1] == ("complete/batch", 2)


async def test_result_that_an_old_jobd_does_not_take_is_a_failure_in_its_place() -> None:
    reports = [completion(n) for n in range(3)]

    def refuse(verb: str, body: Any) -> ScriptedAnswer:
        if not verb.endswith("/batch") and body["result"] == 1:
            return problem(422, "nul")
        return old(verb, body)

    async with remote(refuse) as there:
        first, failed, last = await there.engine.complete_many(reports)

        assert (first, last) == (Completed(), Completed())
        assert isinstance(failed, TaskFailed)


# -- callers that go away --------------------------------------------------------------------------------------------


async def test_report_whose_caller_is_cancelled_before_it_is_sent_is_never_sent() -> None:
    first, withdrawn, kept = completion(), completion(), completion()
    async with remote() as there:
        there.jobd.goes_on.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(there.engine.complete, first)
            await there.jobd.until_called(1)
            with anyio.move_on_after(0.05):
                await there.engine.complete(withdrawn)
            tasks.start_soon(there.engine.complete, kept)
            await anyio.wait_all_tasks_blocked()
            there.jobd.goes_on.set()

        assert there.jobd.reported() == [str(first.job_id), str(kept.job_id)]


async def test_reports_gathered_behind_a_caller_that_is_cancelled_while_it_sends_are_sent_by_another() -> None:
    first, leader, *others = (completion() for _ in range(5))
    answered: list[object] = []
    scope = anyio.CancelScope()
    async with remote() as there:

        async def lead() -> None:
            with scope:
                await there.engine.complete(leader)

        async def report(one: Completion) -> None:
            answered.append(await there.engine.complete(one))

        there.jobd.goes_on.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(there.engine.complete, first)
            await there.jobd.until_called(1)
            tasks.start_soon(lead)
            await anyio.wait_all_tasks_blocked()
            for one in others:
                tasks.start_soon(report, one)
            await anyio.wait_all_tasks_blocked()
            there.jobd.answer_once()
            await there.jobd.until_called(2)
            scope.cancel()
            there.jobd.goes_on.set()

        assert answered == [Completed()] * 3
        assert there.jobd.calls()[:2] == [("complete", 1), ("complete/batch", 4)]
        assert there.jobd.reported()[-3:] == [str(one.job_id) for one in others]


async def test_line_goes_on_after_its_only_caller_was_cancelled() -> None:
    async with remote() as there:
        there.jobd.goes_on.clear()
        with anyio.move_on_after(0.05):
            await there.engine.complete(completion())
        there.jobd.goes_on.set()

        assert await there.engine.complete(completion()) == Completed()


def test_batch_of_reports_is_no_larger_than_jobd_takes() -> None:
    assert MAX_REPORTS <= wire.MAX_JOBS
    assert CALL_BYTES <= BATCH_BYTES
