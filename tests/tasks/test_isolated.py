"""Handlers in processes of their own: kept warm, with their output as log lines, and ended without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from jobd.config.model import Config, Task
from jobd.errors import ConfigError
from jobd.tasks.isolated import job as isolated_job
from jobd.tasks.isolated import runner as isolated
from jobd.tasks.isolated.runner import IsolatedRunner
from jobd.tasks.registry import make_runners
from jobd.tasks.runner import TaskFailed
from tests.support.wait import wait_until_async
from tests.tasks.commands import JOB_ID, PROGRAMS, Before, Notes, children

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio

HANDLERS = "tests.tasks.isolated_handlers"


def task(function: str = "act", **settings: Any) -> Task:
    return Task(run="python", handler=f"{HANDLERS}:{function}", isolate=True, **settings)


@pytest.fixture(autouse=True)
async def _nothing_stays(folder: Path) -> AsyncIterator[None]:
    before = Before()
    yield
    await wait_until_async(before.has_nothing_new, timeout_s=20)
    assert attempts_in(folder) == []


def attempts_in(folder: Path) -> list[Path]:
    return list(folder.glob("attempts/*"))


@pytest.fixture
def pids() -> Callable[[], set[int]]:
    """The child processes that a test has now and had not at its start, zombies included."""
    before = set(children())
    return lambda: set(children()) - before


@pytest.fixture
async def made(folder: Path) -> AsyncIterator[Callable[..., IsolatedRunner]]:
    """Makes runners and closes them."""
    runners: list[IsolatedRunner] = []

    def make(function: str = "act", **settings: Any) -> IsolatedRunner:
        runners.append(IsolatedRunner("t", task(function, **settings), folder))
        return runners[-1]

    yield make
    for runner in runners:
        await runner.close()


async def run(runner: IsolatedRunner, what: str, notes: Notes | None = None, **payload: Any) -> Any:
    """What the handler returned."""
    context = (Notes() if notes is None else notes).context
    return msgspec.json.decode(msgspec.json.encode(await runner.run({"do": what, **payload}, context)))


async def failure(runner: IsolatedRunner, what: str, notes: Notes | None = None, **payload: Any) -> TaskFailed:
    with pytest.raises(TaskFailed) as caught:
        await run(runner, what, notes, **payload)
    return caught.value


async def run_and_cancel(runner: IsolatedRunner, what: str, word: str = "ready", **payload: Any) -> Notes:
    """Cancel as soon as it has logged that word."""
    notes = Notes()
    async with anyio.create_task_group() as running:
        running.start_soon(runner.run, {"do": what, **payload}, notes.context)
        await wait_until_async(lambda: any(word in line for line in notes.lines))
        running.cancel_scope.cancel()
    return notes


# -- found at the start ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("no_such_module:f", "cannot import no_such_module (ModuleNotFoundError: No module named 'no_such_module')"),
        (f"{HANDLERS}:absent", "has no absent"),
        ("tests.tasks.handlers:takes_one", "called with two arguments, payload and ctx (too many positional"),
        ("broken_module:f", "cannot import broken_module (ZeroDivisionError: division by zero)"),
        ("crashing_module:f", "its process ended before it was imported (the handler's process was killed by SIGABRT)"),
    ],
)
async def test_handler_that_cannot_be_had_is_told_in_one_line(
    handler: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken_module.py").write_text("1 / 0\n")
    (folder / "crashing_module.py").write_text("import os, resource\nos.abort()\n")
    monkeypatch.syspath_prepend(folder)
    wrong = Task(run="python", handler=handler, isolate=True)

    with pytest.raises(ConfigError) as caught:
        make_runners(Config(data_dir=str(folder), tasks={"resize": wrong}))

    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("tasks.resize.handler")
    assert message in str(caught.value)


async def test_jobd_itself_never_imports_the_handler(
    made: Callable[..., IsolatedRunner], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "heavy_module.py").write_text("def f(payload, ctx): return __name__\n")
    monkeypatch.syspath_prepend(folder)
    heavy = Task(run="python", handler="heavy_module:f", isolate=True)
    runner: Any = make_runners(Config(data_dir=str(folder), tasks={"heavy": heavy}))["heavy"]

    assert await run(runner, "") == "heavy_module"
    assert "heavy_module" not in sys.modules
    await runner.close()


async def test_handler_that_is_slow_to_import_does_not_hold_up_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pids: Callable[[], set[int]]
) -> None:
    gate = folder / "gate"
    (folder / "slow_module.py").write_text(
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        "def f(payload, ctx): return os.getpid()\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(isolated, "IMPORT_S", 0.05)
    runner = IsolatedRunner("t", Task(run="python", handler="slow_module:f", isolate=True), folder)
    (first,) = pids()
    with anyio.move_on_after(0.1):  # a job whose time is up before the handler is there
        await run(runner, "")

    gate.touch()

    assert await run(runner, "") == first
    assert pids() == {first}
    await runner.close()


# -- warm --------------------------------------------------------------------------------------------------------------


async def test_process_and_what_it_loaded_are_kept(made: Callable[..., IsolatedRunner]) -> None:
    runner = made()

    answers = [await run(runner, "nothing") for _ in range(3)]

    assert [answer["calls"] for answer in answers] == [1, 2, 3]
    assert len({answer["pid"] for answer in answers} | {os.getpid()}) == 2


async def test_jobs_that_run_at_once_have_a_process_each(
    made: Callable[..., IsolatedRunner], pids: Callable[[], set[int]]
) -> None:
    runner = made("wait")
    results: set[int] = set()

    async def run_job() -> None:
        notes = Notes()
        results.add(await run(runner, "", notes, seconds=0.5))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(run_job)

    assert len(results) == 3
    assert pids() == results


async def test_process_is_replaced_after_recycle_jobs(
    made: Callable[..., IsolatedRunner], pids: Callable[[], set[int]]
) -> None:
    runner = made(recycle_jobs=2)

    answers = [await run(runner, "nothing") for _ in range(5)]

    assert [answer["calls"] for answer in answers] == [1, 2, 1, 2, 1]
    await wait_until_async(lambda: pids() == {answers[-1]["pid"]}, timeout_s=20)


async def test_process_that_has_grown_too_large_is_replaced(made: Callable[..., IsolatedRunner]) -> None:
    runner = made(memory_mb=250)

    answers = [await run(runner, "grow", mb=mb) for mb in (1, 1, 300, 1)]

    assert [answer["calls"] for answer in answers] == [1, 2, 3, 1]


# -- what it tells -----------------------------------------------------------------------------------------------------


async def test_context_says_and_tells_the_same_as_in_jobd_itself(made: Callable[..., IsolatedRunner]) -> None:
    notes = Notes()

    answer = await run(made(), "about", notes, odd=["\u2028", 1e300, 2**63, None])

    assert answer == {
        "job_id": str(JOB_ID),
        "task": "t",
        "attempt": 2,
        "max_attempts": 3,
        "key": str(JOB_ID),
        "cancelled": False,
        "has_time": True,
        "odd": ["\u2028", 1e300, 2**63, None],
    }
    assert notes.events == [
        ("progress", "begun", {"progress": 0.25}),
        ("token", "", {"text": "Hel"}),
        ("found", "search", {"page": 3}),
    ]


async def test_what_is_printed_is_the_log_and_never_the_answer(made: Callable[..., IsolatedRunner]) -> None:
    notes = Notes()

    answer = await run(made(), "print", notes)

    assert answer["calls"] == 1
    assert set(notes.lines) == {
        "plain",
        "complaint",
        '\\x00\\x00\\x00\\x05{"type":"done"}',
        "from a program",
        "no end of line",
    }


async def test_flood_of_output_is_bounded(made: Callable[..., IsolatedRunner]) -> None:
    notes = Notes()

    await run(made(), "flood", notes)

    assert len(notes.lines) < 10_000
    assert any("lines not shown: too many a second" in line for line in notes.lines)


async def test_thread_that_prints_between_jobs_is_not_blocked(made: Callable[..., IsolatedRunner]) -> None:
    runner = made()

    await run(runner, "chatter")

    assert await run(runner, "chattered") is True


async def test_event_of_a_job_that_is_over_is_not_told(made: Callable[..., IsolatedRunner]) -> None:
    runner, first, second = made(), Notes(), Notes()
    await run(runner, "speak late", first)
    before = len(first.events)

    await run(runner, "nothing", second)

    assert (len(first.events), second.events) == (before, [])


async def test_event_that_cannot_be_told_is_the_fault_of_the_handler(made: Callable[..., IsolatedRunner]) -> None:
    failed = await failure(made(), "refuse")

    assert failed.code == "exception"
    assert failed.message == "ValueError: events of type done are emitted by jobd itself; choose another type"


async def test_large_payload_comes_back_whole(made: Callable[..., IsolatedRunner]) -> None:
    text = "é" * 3_000_000

    assert await run(made(), "echo", text=text) == text


async def test_typed_payload_is_checked_and_its_schema_known(made: Callable[..., IsolatedRunner]) -> None:
    runner = made("area")

    result = await runner.run({"width": 3, "height": 4}, Notes().context)
    with pytest.raises(TaskFailed) as caught:
        await runner.run({"width": "three"}, Notes().context)

    assert msgspec.json.encode(result) == b"12"
    assert (caught.value.code, caught.value.retryable) == ("invalid_payload", False)
    assert caught.value.message == "Expected `int`, got `str` - at `$.width`"
    schema = runner.schema()
    assert schema is not None
    assert schema["$defs"]["Area"]["required"] == ["width"]


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "code", "message"),
    [
        ({"do": "segfault"}, "killed", "the handler's process was killed by SIGSEGV"),
        ({"do": "kill", "signal": 9}, "killed", "the handler's process was killed by SIGKILL"),
        ({"do": "abort"}, "killed", "the handler's process was killed by SIGABRT"),
        ({"do": "exit", "code": 3}, "exited", "the handler's process ended with exit code 3: out of luck"),
        ({"do": "exit", "code": 0}, "exited", "the handler's process ended with exit code 0: out of luck"),
        ({"do": "babble"}, "killed", "the handler's process wrote into jobd's own pipe and was ended: a frame of 4294"),
    ],
)
async def test_crash_is_a_failure_worth_another_attempt(
    made: Callable[..., IsolatedRunner], payload: dict[str, Any], code: str, message: str
) -> None:
    runner = made()

    with pytest.raises(TaskFailed) as caught:
        await runner.run(payload, Notes().context)
    after = await run(runner, "nothing")

    assert (caught.value.code, caught.value.retryable) == (code, True)
    assert caught.value.message.startswith(message)
    assert after["calls"] == 1


async def test_stack_of_a_segmentation_fault_says_where_it_was(made: Callable[..., IsolatedRunner]) -> None:
    failed = await failure(made(), "segfault")

    assert "isolated_handlers.py" in failed.stack
    assert "in act" in failed.stack


async def test_process_that_dies_with_nothing_to_do_costs_no_job(made: Callable[..., IsolatedRunner]) -> None:
    runner = made()
    first = await run(runner, "nothing")

    os.kill(first["pid"], signal.SIGKILL)
    await wait_until_async(lambda: first["pid"] not in children())
    second = await run(runner, "nothing")

    assert second["calls"] == 1


async def test_handler_may_close_its_outputs(made: Callable[..., IsolatedRunner]) -> None:
    runner = made()

    await run(runner, "close streams")

    assert (await run(runner, "nothing"))["calls"] == 2


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["act", "wait"])
async def test_job_that_heeds_its_end_keeps_its_process(
    made: Callable[..., IsolatedRunner],
    function: str,
    monkeypatch: pytest.MonkeyPatch,
    pids: Callable[[], set[int]],
) -> None:
    monkeypatch.setattr(isolated_job, "GRACE_S", 20.0)
    runner = made(function)
    (warm,) = pids()

    await run_and_cancel(runner, "obey", seconds=60)

    assert pids() == {warm}
    await run(runner, "nothing", seconds=0)
    assert pids() == {warm}  # a process that was given up would have been replaced for this job


@pytest.mark.parametrize("what", ["be deaf", "hold gil"])
async def test_job_that_does_not_is_killed_with_all_that_it_started(
    made: Callable[..., IsolatedRunner], what: str, pids: Callable[[], set[int]]
) -> None:
    runner = made()

    notes = await run_and_cancel(runner, what, seconds=60)

    assert pids() == set()
    for pid in (int(word) for line in notes.lines for word in line.split() if word.isdecimal()):
        assert not is_running(pid)


async def test_close_ends_a_process_that_heeds_no_signal(made: Callable[..., IsolatedRunner]) -> None:
    runner = made()
    pid = (await run(runner, "nothing"))["pid"]
    await run(runner, "ignore")
    os.kill(pid, signal.SIGSTOP)

    await runner.close()

    assert pid not in children()


@pytest.mark.parametrize("what", ["obey", "hold gil"])
async def test_process_does_not_outlive_a_jobd_that_is_killed(folder: Path, what: str) -> None:
    before = Before()
    jobd = start_jobd(folder, what)
    assert jobd.stdout is not None
    pid = int(jobd.stdout.readline().split()[0])

    jobd.kill()
    jobd.communicate()

    await wait_until_async(lambda: not is_running(pid), timeout_s=20)
    await IsolatedRunner("t", task(), folder).close()  # which clears away what is left of it
    await bury_orphans(before)


async def test_what_a_handler_started_is_ended_by_the_next_jobd(folder: Path) -> None:
    before = Before()
    jobd = start_jobd(folder, "be deaf")
    assert jobd.stdout is not None
    program = int(jobd.stdout.readline().split("ready ")[1].split("'")[0])
    jobd.kill()
    jobd.communicate()

    runner = IsolatedRunner("t", task(), folder)
    await runner.close()

    await wait_until_async(lambda: not is_running(program), timeout_s=20)
    await bury_orphans(before)


async def bury_orphans(before: Before) -> None:
    """They became children of this process when the jobd that was killed left them."""

    def are_buried() -> bool:
        for pid, state in before.added[0].items():
            if state == "Z":
                os.waitpid(pid, 0)
        return not before.added[0]

    await wait_until_async(are_buried, timeout_s=20)


def start_jobd(folder: Path, what: str) -> subprocess.Popen[str]:
    argv = [sys.executable, str(PROGRAMS / "isolating.py"), str(folder), what]
    here = str(Path(__file__).parents[2])
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=here, env={**os.environ, "PYTHONPATH": here})


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_handler_knows_the_trace_of_its_job(made: Callable[..., IsolatedRunner]) -> None:
    notes = Notes()
    notes.context.traceparent, notes.context.tracestate = "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "a=1"
    runner = made("trace")

    assert await run(runner, "", notes) == [notes.context.traceparent, "a=1"]
    assert await run(runner, "") == [None, None]
