"""What comes of a job, whichever way it is run: done, failed, retried, timed out, canceled, handed back, lost."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec
import pytest

from jobd.config.model import Config, Leases, Task
from jobd.store.ids import new_id
from jobd.tasks.command.runner import CommandRunner
from jobd.tasks.isolated.runner import IsolatedRunner
from jobd.tasks.mock import MockRunner
from jobd.tasks.openai.runner import OpenAIRunner
from jobd.tasks.python import python_runner
from jobd.tasks.runner import Context
from tests.support.running_slots import CONFIG, RunningSlots, running_slots
from tests.support.wait import wait_until_async
from tests.tasks.commands import command
from tests.tasks.openai_server import OpenAIServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

    from jobd.tasks.runner import Runner


class Way(NamedTuple):
    """A way of running, and payloads that make it do what a test needs."""

    make: Callable[[Path], Runner]
    good: dict[str, Any]
    bad: dict[str, Any]
    slow: dict[str, Any]
    #: What runs it breaks down; empty: nothing that could.
    crash: dict[str, Any]
    #: Types of the events that a job emits before it succeeds.
    emitted: list[str]
    #: Type of the last event that a slow job emits before it waits; empty: none.
    slow_emits: str


@functools.cache
def model() -> OpenAIServer:
    """One for all tests, started by the first that asks for it."""
    return OpenAIServer()


@pytest.fixture(scope="module", autouse=True)
def _model_ends() -> Iterator[None]:
    yield
    if model.cache_info().currsize:
        model().stop()
        model.cache_clear()


def asking(**step: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": json.dumps(step)}]}


def isolated(function: str, folder: Path) -> Runner:
    return IsolatedRunner("chat", Task(run="python", handler=f"tests.tasks.handlers:{function}", isolate=True), folder)


PYTHON_TOLD = ["log", "token", "token", "token", "progress"]
PYTHON = ({"do": "return"}, {"do": "fail"}, {"do": "wait"}, {"do": "exit"}, PYTHON_TOLD, "progress")
ISOLATED = (*PYTHON[:3], {"do": "die"}, *PYTHON[4:])
WAYS = {
    "async": Way(lambda _: python_runner("chat", "tests.tasks.handlers:act"), *PYTHON),
    "thread": Way(lambda _: python_runner("chat", "tests.tasks.handlers:act_in_thread"), *PYTHON),
    "isolated": Way(functools.partial(isolated, "act_in_thread"), *ISOLATED),
    "command": Way(
        lambda folder: CommandRunner(command("way.py"), folder),
        {"do": "return"},
        {"do": "fail"},
        {"do": "wait"},
        {"do": "crash"},
        ["log"],
        "log",
    ),
    "openai": Way(
        lambda _: OpenAIRunner(Task(run="openai", base_url=model().base_url)),
        asking(),
        asking(status=500),
        asking(hang_after=3),
        asking(cut_after=3),
        ["token"] * 4,
        "token",
    ),
    "mock": Way(
        lambda _: MockRunner(),
        {"seconds": 0, "tokens": 4},
        {"seconds": 0, "tokens": 0, "fail_rate": 1},
        {"seconds": 60, "tokens": 0},
        {},
        ["token"] * 4,
        "",
    ),
}


@contextlib.asynccontextmanager
async def closing_runners(
    shared_postgres: str, folder: Path, runners: Mapping[str, Runner], config: Config = CONFIG
) -> AsyncIterator[RunningSlots]:
    """The slots close them only when they stop in order."""
    try:
        async with running_slots(shared_postgres, folder, runners, config) as slots:
            yield slots
    finally:
        for runner in runners.values():
            await runner.close()


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture(scope="module")
async def slots(
    way: Way, shared_postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningSlots]:
    """For all tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("s")
    async with closing_runners(shared_postgres, folder, {"chat": way.make(folder)}) as slots:
        yield slots


@pytest.fixture
async def own_slots(way: Way, shared_postgres: str, folder: Path) -> AsyncIterator[RunningSlots]:
    async with closing_runners(shared_postgres, folder, {"chat": way.make(folder)}) as slots:
        yield slots


@pytest.fixture
async def patient_slots(way: Way, shared_postgres: str, folder: Path) -> AsyncIterator[RunningSlots]:
    """Which lets jobs finish when it stops."""
    config = msgspec.structs.replace(CONFIG, drain_s=30)
    async with closing_runners(shared_postgres, folder, {"chat": way.make(folder)}, config) as slots:
        yield slots


async def until_it_runs(slots: RunningSlots, way: Way, job_id: Any) -> None:
    await slots.wait_for_status(job_id, "running")
    if way.slow_emits:
        await slots.until_emitted(job_id, way.slow_emits)


async def is_idle(slots: RunningSlots) -> bool:
    return len(slots.node.leases) == 0


async def test_job_that_runs_for_longer_than_a_report_may_take_is_reported(
    slots: RunningSlots, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobd.dispatch.reports.REPORT_S", 0.0)
    job_id = await slots.submit(way.good)

    job = await slots.wait_for_status(job_id, "done", "error")

    assert job.status == "done"


async def test_job_is_done_with_its_result(slots: RunningSlots, way: Way) -> None:
    job_id = await slots.submit(way.good)

    job = await slots.wait_for_status(job_id, "done", "error")

    assert (job.status, job.attempt_count) == ("done", 1)
    assert await slots.outcomes(job_id) == ["done"]


async def test_events_are_told_in_order_before_the_end(slots: RunningSlots, way: Way) -> None:
    job_id = await slots.submit(way.good)

    await slots.wait_for_status(job_id, "done", "error")

    assert [event.type for event in await slots.events(job_id)] == ["queued", "running", *way.emitted, "done"]


async def test_failed_attempt_is_tried_again_until_attempts_run_out(slots: RunningSlots, way: Way) -> None:
    job_id = await slots.submit(way.bad, max_attempts=3)

    job = await slots.wait_for_status(job_id, "done", "error")

    assert (job.status, job.attempt_count) == ("error", 3)
    assert await slots.outcomes(job_id) == ["failed"] * 3
    ends = [event.type for event in await slots.events(job_id) if event.type in ("queued", "running", "error")]
    assert ends == ["queued", "running"] * 3 + ["error"]
    assert (await slots.error(job_id))["retryable"] is True


async def test_crash_of_what_runs_the_job_costs_an_attempt_and_never_the_slot(slots: RunningSlots, way: Way) -> None:
    if not way.crash:
        pytest.skip("there is nothing that could crash")
    crashing = [await slots.submit(way.crash, max_attempts=2) for _ in range(4)]

    jobs = [await slots.wait_for_status(job_id, "done", "error") for job_id in crashing]
    after = await slots.wait_for_status(await slots.submit(way.good), "done", "error")

    assert [(job.status, job.attempt_count) for job in jobs] == [("error", 2)] * 4
    assert [await slots.outcomes(job_id) for job_id in crashing] == [["failed"] * 2] * 4
    assert after.status == "done"


async def test_attempt_that_takes_too_long_is_stopped_and_fails(slots: RunningSlots, way: Way) -> None:
    job_id = await slots.submit(way.slow, max_attempts=1, timeout_s=0.3)

    job = await slots.wait_for_status(job_id, "done", "error")

    assert job.status == "error"
    assert (await slots.error(job_id))["code"] == "timeout"
    await wait_until_async(lambda: is_idle(slots))


async def test_running_job_is_canceled_at_once(slots: RunningSlots, way: Way) -> None:
    job_id = await slots.submit(way.slow)
    await until_it_runs(slots, way, job_id)

    await slots.node.engine.cancel([job_id])

    await slots.wait_for_status(job_id, "canceled")
    assert await slots.outcomes(job_id) == ["canceled"]


async def test_cancel_that_another_node_asked_for_is_heard_with_the_next_renewal(
    slots: RunningSlots, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await slots.submit(way.slow)
    await until_it_runs(slots, way, job_id)
    monkeypatch.setattr(slots.node.leases, "cancel", lambda _: None)

    await slots.node.engine.cancel([job_id])

    await slots.wait_for_status(job_id, "canceled")


async def test_drain_hands_back_what_does_not_finish_and_charges_nothing(own_slots: RunningSlots, way: Way) -> None:
    job_id = await own_slots.submit(way.slow, max_attempts=1)
    await until_it_runs(own_slots, way, job_id)

    await own_slots.stop()

    job = await own_slots.job(job_id)
    assert (job.status, job.attempt_count) == ("queued", 0)
    assert await own_slots.outcomes(job_id) == ["released"]


async def test_drain_lets_short_jobs_finish_and_takes_no_more(patient_slots: RunningSlots, way: Way) -> None:
    job_id = await patient_slots.submit(way.good)
    await patient_slots.wait_for_status(job_id, "running", "done")

    await patient_slots.stop()
    late = await patient_slots.submit(way.good)

    assert await patient_slots.outcomes(job_id) == ["done"]
    assert not patient_slots.node.dispatcher.wanted_queues()
    assert (await patient_slots.job(late)).status == "queued"


async def test_job_whose_lease_is_lost_is_stopped_and_not_written_to(own_slots: RunningSlots, way: Way) -> None:
    slots = own_slots
    job_id = await slots.submit(way.slow)
    await until_it_runs(slots, way, job_id)

    await slots.steal_lease(job_id)
    await wait_until_async(lambda: is_idle(slots))

    assert (await slots.job(job_id)).status == "running"
    assert await slots.outcomes(job_id) == [None]


async def test_lease_is_kept_for_as_long_as_the_job_runs(own_slots: RunningSlots, way: Way) -> None:
    slots = own_slots
    job_id = await slots.submit(way.slow)
    await until_it_runs(slots, way, job_id)

    async def was_renewed_often() -> bool:
        query = "SELECT claim_version > 8 FROM leases WHERE resource_id = $1"
        return bool(await slots.node.database.pool.fetchval(query, job_id))

    await wait_until_async(was_renewed_often, timeout_s=20)

    assert await slots.outcomes(job_id) == [None]
    assert not await is_idle(slots)


async def test_more_jobs_than_slots_are_all_done(slots: RunningSlots, way: Way) -> None:
    ids = [await slots.submit(way.good) for _ in range(20)]

    for job_id in ids:
        await slots.wait_for_status(job_id, "done")


# -- what does not depend on the way -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("p")


@pytest.fixture(scope="module")
async def plain(shared_postgres: str, plain_folder: Path) -> AsyncIterator[RunningSlots]:
    runners = {
        "chat": WAYS["async"].make(plain_folder),
        "tool": WAYS["thread"].make(plain_folder),
        "rag": WAYS["isolated"].make(plain_folder),
        "plan": isolated("act", plain_folder),
    }
    async with closing_runners(shared_postgres, plain_folder, runners) as slots:
        yield slots


@pytest.mark.parametrize("task", ["chat", "tool", "rag", "plan"])
@pytest.mark.parametrize(
    ("payload", "code", "message", "attempts"),
    [
        ({"do": "fail", "retryable": False}, "too_bad", "nothing to be done", 1),
        ({"do": "raise"}, "exception", "ValueError: postgresql://me:***@db/x � is odd", 2),
        ({"do": "exit"}, "exception", "SystemExit: 3", 2),
        ({"do": "return something odd"}, "bad_result", "the result is not JSON: ", 1),
        ({"do": "return nul"}, "bad_result", "the result cannot be stored: ", 1),
        ({"do": "return much", "bytes": 70_000_000}, "result_too_large", "the result has 70000011 bytes, more than", 1),
    ],
)
async def test_failure_says_what_happened(
    plain: RunningSlots, task: str, payload: dict[str, Any], code: str, message: str, attempts: int
) -> None:
    job_id = await plain.submit(payload, task=task, max_attempts=2)

    await plain.wait_for_status(job_id, "error")

    error = await plain.error(job_id)
    assert (error["code"], len(await plain.outcomes(job_id))) == (code, attempts)
    assert error["message"].startswith(message)


@pytest.mark.parametrize("task", ["chat", "plan"])
@pytest.mark.parametrize(
    ("payload", "code", "message"),
    [
        ({"do": "cancel itself"}, "exception", "RuntimeError: the handler was cancelled from within"),
        ({"do": "raise in a group"}, "refused", "by a child"),
    ],
)
async def test_async_handler_cannot_take_its_slot_down(
    plain: RunningSlots, task: str, payload: dict[str, Any], code: str, message: str
) -> None:
    job_id = await plain.submit(payload, task=task, max_attempts=1)
    await plain.wait_for_status(job_id, "error")

    after = await plain.submit({"do": "return"}, task=task)

    await plain.wait_for_status(after, "done")
    error = await plain.error(job_id)
    assert (error["code"], error["message"]) == (code, message)


@pytest.mark.parametrize("task", ["chat", "tool", "rag", "plan"])
async def test_stack_of_an_exception_ends_where_it_was_raised(plain: RunningSlots, task: str) -> None:
    job_id = await plain.submit({"do": "raise"}, task=task, max_attempts=1)

    await plain.wait_for_status(job_id, "error")

    stack = (await plain.error(job_id))["stack"]
    assert "in finish" in stack
    assert "secret" not in stack


async def test_large_result_goes_to_a_file(plain: RunningSlots, plain_folder: Path) -> None:
    job_id = await plain.submit({"do": "return much", "bytes": 100_000})

    await plain.wait_for_status(job_id, "done")

    (ref,) = await plain.row(job_id, "result_ref")
    assert msgspec.json.decode((plain_folder / ref).read_bytes()) == {"text": "x" * 100_000}


async def test_task_that_nothing_here_runs_ends_as_a_dead_letter_that_says_so(plain: RunningSlots) -> None:
    job_id = await plain.submit({}, task="unheard-of", max_attempts=2)

    await plain.wait_for_status(job_id, "error")

    error = await plain.error(job_id)
    assert (error["code"], await plain.outcomes(job_id)) == ("no_runner", ["failed", "failed"])
    assert "a queue with slots = 0" in error["message"]


@pytest.mark.parametrize("task", ["chat", "tool", "rag", "plan"])
async def test_handler_knows_its_attempt_and_has_a_key_that_stays(plain: RunningSlots, task: str) -> None:
    job_id = await plain.submit({"do": "return"}, task=task, max_attempts=7)

    await plain.wait_for_status(job_id, "done")

    (result,) = await plain.row(job_id, "result")
    assert msgspec.json.decode(result) == {"attempt": 1, "of": 7, "key": str(job_id)}


@pytest.mark.parametrize("task", ["chat", "tool", "rag"])
async def test_handler_that_snoozes_runs_again_later_and_is_not_charged(plain: RunningSlots, task: str) -> None:
    job_id = await plain.submit({"do": "snooze", "seconds": 0}, task=task, max_attempts=1)

    job = await plain.wait_for_status(job_id, "done", "error")

    assert (job.status, job.attempt_count, job.snoozes) == ("done", 1, 1)
    assert await plain.outcomes(job_id) == ["released", "done"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), 1e12])
def test_snooze_of_no_real_time_is_refused(seconds: float) -> None:
    context = Context(job_id=new_id(), task="chat", attempt=1, max_attempts=1, timeout_s=1, emit=lambda *_: None)

    with pytest.raises(ValueError, match="expected seconds"):
        context.snooze(seconds)


async def test_slots_that_are_cut_off_hand_their_jobs_back(shared_postgres: str, folder: Path) -> None:
    async with running_slots(shared_postgres, folder, {"chat": WAYS["async"].make(folder)}) as slots:
        job_id = await slots.submit({"do": "wait"}, max_attempts=1)
        await slots.until_emitted(job_id, "progress")

        slots.scope.cancel()
        await slots.wait_for_status(job_id, "queued")

        assert (await slots.job(job_id)).attempt_count == 0


async def test_report_waits_for_postgres_as_long_as_the_lease_is_held(shared_postgres: str, folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, leases=Leases(ttl_s=60, heartbeat_s=20))
    async with running_slots(shared_postgres, folder, {"chat": MockRunner()}, config) as slots:
        job_id = await slots.submit({"seconds": 0.3, "tokens": 0})
        await slots.wait_for_status(job_id, "running")
        await slots.node.database.pool.execute("ALTER TABLE attempts RENAME TO gone")

        await anyio.sleep(1.0)  # meanwhile the report is refused more than once
        await slots.node.database.pool.execute("ALTER TABLE gone RENAME TO attempts")

        await slots.wait_for_status(job_id, "done")
