"""Model servers as real programs: when they start, who waits for them, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from jobd.config.model import Config, ModelConfig, OpenAIConfig
from jobd.model_servers import service as service_module
from jobd.model_servers.output import LINES_PER_S, ServerOutput
from jobd.model_servers.service import ModelServers
from jobd.openai.models import with_model_tasks
from jobd.store.ids import new_id
from jobd.supervise.service import Handle
from jobd.tasks.command.workdir import ATTEMPTS
from jobd.tasks.runner import Context, Snoozed, TaskFailed
from tests.support.daemon import is_alive
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobd.wire.board import ModelServerObject

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).with_name("program.py")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def served(settings: dict[str, Any] | None = None, **options: Any) -> ModelConfig:
    """A model whose server is the program with these options."""
    port = free_port()
    chosen = {"argv": (sys.executable, str(PROGRAM), json.dumps({"port": port, **options})), **(settings or {})}
    return ModelConfig(base_url=f"http://127.0.0.1:{port}/v1", **chosen)


class Running:
    """The service at work, and jobs that use it."""

    def __init__(self, servers: ModelServers) -> None:
        self.servers = servers
        self.handle = Handle(lambda: None)
        self.told: list[str] = []

    def __getitem__(self, model: str) -> ModelServerObject:
        return next(each for each in self.servers.read() if each.model == model)

    def context(self, attempt: int = 1, timeout_s: float = 60) -> Context:
        return Context(
            job_id=new_id(),
            task="",
            attempt=attempt,
            max_attempts=3,
            timeout_s=timeout_s,
            emit=lambda kind, step, data: self.told.append(str(data)),
        )

    @contextlib.asynccontextmanager
    async def job(self, model: str, **context: Any) -> AsyncIterator[None]:
        async with self.servers.using(f"model.{model}", self.context(**context)):
            yield

    async def ask(self, model: str, **context: Any) -> None:
        async with self.job(model, **context):
            assert self[model].state == "ready"

    async def until(self, model: str, state: str) -> None:
        await wait_until_async(lambda: self[model].state == state, lambda: str(self[model]))

    async def failure(self, model: str, **context: Any) -> TaskFailed:
        with pytest.raises(TaskFailed) as caught:
            await self.ask(model, **context)
        return caught.value


@contextlib.asynccontextmanager
async def running(folder: Path, *, max_wait_s: float = 30, **models: ModelConfig) -> AsyncIterator[Running]:
    config = with_model_tasks(Config(models=models, openai=OpenAIConfig(max_model_wait_s=max_wait_s)))
    found = Running(ModelServers(lambda: config, folder))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.servers.run, found.handle)
        yield found
        pids = [each.pid for each in found.servers.read() if each.pid]
        found.handle.stop.set()
    assert not any(is_alive(pid) for pid in pids)
    assert list((folder / ATTEMPTS).glob("*")) == []


async def test_it_starts_with_the_first_job_and_stays(folder: Path) -> None:
    async with running(folder, small=served()) as found:
        assert found["small"].state == "stopped"
        assert found["small"].starts == 0

        await found.ask("small")
        await found.ask("small")

        assert (found["small"].state, found["small"].starts) == ("ready", 1)
        assert found.handle.note == "ready: small ready"
        assert not found.handle.is_impaired


async def test_a_task_of_no_server_waits_for_nothing(folder: Path) -> None:
    async with running(folder, small=served()) as found:
        async with found.servers.using("chat", found.context()), found.servers.using("gone", found.context()):
            assert found["small"].state == "stopped"


async def test_always_starts_without_a_job_and_again_after_its_death(folder: Path) -> None:
    async with running(folder, small=served({"start": "always"})) as found:
        await found.until("small", "ready")
        pid = found["small"].pid
        assert pid is not None

        os.kill(pid, 9)
        await wait_until_async(lambda: found["small"].starts == 2)
        await found.until("small", "ready")

        assert found["small"].pid != pid


async def test_an_idle_server_is_stopped_but_not_while_it_has_a_job(folder: Path) -> None:
    async with running(folder, small=served({"idle_stop_s": 0.05})) as found:
        async with found.job("small"):
            await anyio.sleep(0.2)
            assert found["small"].state == "ready"
        await found.until("small", "stopped")

        await found.ask("small")

        assert found["small"].starts == 2


async def test_a_server_counts_as_ready_when_its_health_path_answers_200(folder: Path) -> None:
    loading = served({"health_path": "/health", "start_timeout_s": 0.5}, status=503)
    async with running(folder, small=loading) as found:
        failed = await found.failure("small")

        assert isinstance(failed, Snoozed)
        assert found["small"].state == "failed"
        assert found["small"].reason == "not ready after start_timeout_s = 0.5: it answers 503"
        assert found["small"].pid is None


async def test_a_server_that_ends_at_its_start_puts_jobs_off_with_growing_delays(folder: Path) -> None:
    broken = served(exit=5, print=["loading", "error: no such model"])
    async with running(folder, small=broken) as found:
        first = await found.failure("small")
        assert isinstance(first, Snoozed)
        assert found["small"].reason == "exit code 5: error: no such model"

        second = await found.failure("small")  # it is not started again before its time
        assert found["small"].starts == 1
        assert isinstance(second, Snoozed)
        last = await found.failure("small", attempt=service_module.MOST_PUT_OFFS + 1)

        assert (last.code, last.retryable) == ("model_server_failed", True)
        assert "exit code 5: error: no such model" in last.message
        found.servers._by_url[broken.base_url][1].retry_at = 0.0  # as if the time had passed
        third = await found.failure("small")
        assert isinstance(third, Snoozed)
        assert found["small"].starts == 2
        assert third.delay_s > 1  # the second delay is twice as long as the first
        assert any("put off for" in line for line in found.told)


async def test_a_program_that_cannot_be_run_fails_its_jobs_at_once(folder: Path) -> None:
    missing = served({"argv": ("/no/such/llama-server",)})
    async with running(folder, small=missing) as found:
        failed = await found.failure("small")

        assert (failed.code, failed.retryable) == ("model_server_failed", False)
        assert "cannot start /no/such/llama-server: No such file or directory" in failed.message


async def test_a_server_of_somebody_else_at_its_address_is_refused(folder: Path) -> None:
    own = served()
    other = ModelConfig(base_url=own.base_url, argv=own.argv)
    async with running(folder, small=own) as found:
        await found.ask("small")
        (folder / "second").mkdir()

        async with running(folder / "second", small=other) as second:
            failed = await second.failure("small")

    assert isinstance(failed, Snoozed)
    assert any("another server answers at its base_url already (status 200)" in line for line in second.told)


async def test_a_job_that_waits_until_its_deadline_is_put_off(folder: Path) -> None:
    async with running(folder, small=served(load_s=600)) as found:
        failed = await found.failure("small", timeout_s=1.2)

        assert isinstance(failed, Snoozed)
        assert found["small"].state == "starting"
        assert found["small"].waiting == 0


async def test_a_canceled_job_leaves_the_line(folder: Path) -> None:
    async with running(folder, small=served(load_s=600)) as found:
        with anyio.move_on_after(0.1):
            await found.ask("small")

        assert found["small"].waiting == 0


async def test_nothing_is_left_of_a_server_that_is_deaf_and_has_children(folder: Path) -> None:
    deaf = served({"kill_after_s": 0.1}, deaf=True, child=str(folder / "child"))
    async with running(folder, small=deaf) as found:
        await found.ask("small")
        child = int((folder / "child").read_text())
        assert is_alive(child)

    assert not is_alive(child)


async def test_models_of_a_group_never_run_at_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobd.model_servers")
    alone, runs = str(folder / "alone"), folder / "runs"
    models = {name: served({"swap_group": "gpu"}, alone=alone, runs=str(runs)) for name in ("a", "b", "c")}
    async with running(folder, max_wait_s=0, **models) as found:
        async with anyio.create_task_group() as tasks:
            for model in ("a", "b", "c") * 2:
                tasks.start_soon(found.ask, model)

        assert [found[model].reason for model in models] == [None, None, None]
        assert sum(found[model].state == "ready" for model in models) == 1
        swaps = [line for line in caplog.messages if line.startswith("swap in group gpu: ")]
        assert len(swaps) == len(runs.read_text().split()) - 1 >= 2
        assert " took " in swaps[0]


async def test_a_server_makes_room_only_when_its_jobs_have_ended(folder: Path) -> None:
    models = {name: served({"swap_group": "gpu"}) for name in ("a", "b")}
    async with running(folder, max_wait_s=0, **models) as found:
        async with anyio.create_task_group() as tasks:
            async with found.job("a"):
                tasks.start_soon(found.ask, "b")
                await wait_until_async(lambda: found["b"].waiting == 1)
                assert (found["a"].state, found["b"].state) == ("ready", "stopped")
                with anyio.move_on_after(0.05):  # b has waited long enough: no more jobs of a
                    await found.ask("a")
                    raise AssertionError("it was let in before the one that waits")
            await found.until("b", "ready")

        assert found["a"].state == "stopped"


async def test_jobs_of_the_loaded_model_go_first_for_a_while(folder: Path) -> None:
    models = {name: served({"swap_group": "gpu"}) for name in ("a", "b")}
    async with running(folder, max_wait_s=3600, **models) as found, anyio.create_task_group() as tasks:
        async with found.job("a"):
            tasks.start_soon(found.ask, "b")
            await wait_until_async(lambda: found["b"].waiting == 1)

            await found.ask("a")

            assert found["b"].state == "stopped"


def test_output_is_masked_and_bounded() -> None:
    now, lines = [0.0], list[str]()
    output = ServerOutput(lines.append, ["abcdefgh-secret"], clock=lambda: now[0])
    output.feed(b"key abcdefgh-secret and sk-12345678 of http://me:pass@host/\n\n\x1b[31mred\rafter\n")
    output.feed(b"".join(b"line %d\n" % number for number in range(100)) + b"x" * 100_000)
    now[0] = 1.0
    output.feed(b"\nlast")
    output.close()

    assert lines[0] == "key *** and sk-*** of http://me:***@host/"
    assert lines[1] == "after"
    assert lines[LINES_PER_S] == f"{102 - LINES_PER_S} more lines are not shown: too many a second"
    assert [len(line) for line in lines[LINES_PER_S + 1 :]] == [500, 4]
    assert output.why() == "last"
