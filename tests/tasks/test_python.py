"""Functions of users: how they are found, checked, declared and called, and what a thread does that will not stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.config.model import Config, Queue, Task
from jobd.errors import ConfigError
from jobd.tasks.declared import task
from jobd.tasks.python import python_runner
from jobd.tasks.registry import make_runners, with_declared_tasks
from tests.support.running_slots import CONFIG, running_slots
from tests.support.wait import wait_until_async
from tests.tasks import handlers

if TYPE_CHECKING:
    from pathlib import Path

ONE_SLOT = msgspec.structs.replace(CONFIG, queues={"default": Queue(slots=1)})


def config(**tasks: Task) -> Config:
    return Config(data_dir="/nowhere", tasks=tasks)


# -- found at the start ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("no_such_module:f", "cannot import no_such_module (ModuleNotFoundError: No module named 'no_such_module')"),
        ("tests.tasks.handlers:absent", "has no absent"),
        ("tests.tasks.handlers:NOT_A_FUNCTION", "NOT_A_FUNCTION is of type int, not a function"),
        ("tests.tasks.handlers:takes_one", "called with two arguments, payload and ctx (too many positional"),
        ("broken_module:f", "cannot import broken_module (ZeroDivisionError: division by zero)"),
        ("leaving_module:f", "cannot import leaving_module (SystemExit: 1)"),
    ],
)
def test_handler_that_cannot_be_had_is_told_in_one_line(
    handler: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "leaving_module.py").write_text("raise SystemExit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError) as caught:
        make_runners(config(resize=Task(run="python", handler=handler)))

    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("tasks.resize.handler")
    assert message in str(caught.value)


def test_handler_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_tasks.py").write_text("def f(payload, ctx): return 1\n")
    monkeypatch.chdir(tmp_path)

    runners = make_runners(config(mine=Task(run="python", handler="my_own_tasks:f")))

    assert list(runners) == ["mine"]


def test_external_task_has_no_runner() -> None:
    assert make_runners(config(theirs=Task(run="external"), ours=Task(run="mock"))).keys() == {"ours"}


def test_node_without_slots_needs_no_handlers() -> None:
    absent = Task(run="python", handler="no_such_module:f")

    assert make_runners(msgspec.structs.replace(config(far=absent), queues={"default": Queue(slots=0)})) == {}


# -- declared ----------------------------------------------------------------------------------------------------------


def test_functions_that_say_task_are_tasks() -> None:
    found = with_declared_tasks(Config(tasks_from=("tests.tasks.handlers",))).tasks

    assert found["shout"] == Task(run="python", handler="tests.tasks.handlers:shout")
    assert found["whisper"] == Task(run="python", handler="tests.tasks.handlers:quietly", timeout_s=5, max_attempts=1)
    assert found["chat"] == Task(run="mock")


def test_table_of_the_configuration_wins_over_a_declaration() -> None:
    configured = Config(tasks_from=("tests.tasks.handlers",), tasks={"shout": Task(run="mock")})

    assert with_declared_tasks(configured).tasks["shout"] == Task(run="mock")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@task(queue='gpu')\ndef f(payload, ctx): ...", "tasks.f.queue must be one of default"),
        ("@task(timeout_s=-1)\ndef f(payload, ctx): ...", "a task declares what cannot be"),
        ("@task\ndef F(payload, ctx): ...", "ValueError: @task: a task's name is 1 to 64 of a-z 0-9 _ . -"),
        ("@task(name='a')\ndef f(p, c): ...\n@task(name='a')\ndef g(p, c): ...", "both declare task a; rename one"),
        ("class A:\n    @task\n    def f(payload, ctx): ...", "A.f must stand in its module"),
    ],
)
def test_wrong_declaration_refuses_the_start(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"declares_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(f"from jobd import task\n{text}\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError) as caught:
        with_declared_tasks(Config(tasks_from=(name,)))

    assert message in str(caught.value)


def test_declared_function_stays_what_it_was() -> None:
    assert handlers.shout({"text": "x"}, None) == "X"  # type: ignore[arg-type]
    assert callable(task(name="other"))


# -- typed payloads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["area", "area_in_thread"])
def test_struct_of_the_payload_is_the_schema_of_the_task(name: str) -> None:
    runner: Any = python_runner("area", f"tests.tasks.handlers:{name}")

    schema = runner.schema()

    assert schema["$defs"]["Size"]["required"] == ["width"]


def test_task_without_a_struct_has_no_schema() -> None:
    runner: Any = python_runner("chat", "tests.tasks.handlers:act")

    assert runner.schema() is None


async def test_typed_payload_is_checked_before_the_handler_sees_it(shared_postgres: str, folder: Path) -> None:
    runners = {name: python_runner(name, f"tests.tasks.handlers:{name}") for name in ("area", "area_in_thread")}
    async with running_slots(shared_postgres, folder, runners) as slots:
        for name in runners:
            good = await slots.submit({"width": 3, "height": 4}, task=name)
            bad = await slots.submit({"width": "three"}, task=name)

            await slots.wait_for_status(good, "done")
            await slots.wait_for_status(bad, "error")

            assert await slots.row(good, "result") == ("12",)
            error = await slots.error(bad)
            assert (error["code"], await slots.outcomes(bad)) == ("invalid_payload", ["failed"])
            assert error["message"] == "Expected `int`, got `str` - at `$.width`"


# -- threads that do not stop ------------------------------------------------------------------------------------------


async def test_slot_stays_taken_until_a_thread_that_does_not_stop_returns(shared_postgres: str, folder: Path) -> None:
    handlers.released.clear()
    runners = {"chat": python_runner("chat", "tests.tasks.handlers:act_in_thread")}
    async with running_slots(shared_postgres, folder, runners, ONE_SLOT) as slots:
        stuck = await slots.submit({"do": "linger"}, max_attempts=1, timeout_s=0.3)
        await slots.wait_for_status(stuck, "error")
        next_one = await slots.submit({"do": "return"})

        await wait_until_async(lambda: not slots.service._running and not slots.node.dispatcher.wanted_queues())
        assert (await slots.job(next_one)).status == "queued"
        handlers.released.set()
        await slots.wait_for_status(next_one, "done")

        lines = [event.data for event in await slots.events(stuck) if event.type == "log"]
        assert len(lines) == 1  # what it logged when its attempt was over is nobody's
        assert (await slots.error(stuck))["code"] == "timeout"


async def test_threads_are_used_again(shared_postgres: str, folder: Path) -> None:
    runner: Any = python_runner("chat", "tests.tasks.handlers:act_in_thread")
    async with running_slots(shared_postgres, folder, {"chat": runner}, ONE_SLOT) as slots:
        for _ in range(10):
            await slots.wait_for_status(await slots.submit({"do": "return"}), "done")

        assert len(runner._threads._idle) == 1


async def test_drain_does_not_hand_back_a_job_whose_thread_goes_on(shared_postgres: str, folder: Path) -> None:
    handlers.released.clear()
    runners = {"chat": python_runner("chat", "tests.tasks.handlers:act_in_thread")}
    async with running_slots(shared_postgres, folder, runners, ONE_SLOT) as slots:
        job_id = await slots.submit({"do": "linger"})
        await slots.until_emitted(job_id, "log")

        await slots.stop()

        assert (await slots.job(job_id)).status == "running"
        assert await slots.outcomes(job_id) == [None]
        handlers.released.set()


async def test_drain_hands_a_job_back_when_its_thread_has_ended(shared_postgres: str, folder: Path) -> None:
    handlers.released.clear()
    runners = {"chat": python_runner("chat", "tests.tasks.handlers:act_in_thread")}
    async with running_slots(shared_postgres, folder, runners, ONE_SLOT) as slots:
        job_id = await slots.submit({"do": "linger"})
        await slots.until_emitted(job_id, "log")
        slots.handle.stop.set()

        await wait_until_async(lambda: all(run.stopped for run in slots.service._running))
        handlers.released.set()
        await slots.stop()

        assert (await slots.job(job_id)).status == "queued"
        assert await slots.outcomes(job_id) == ["released"]
