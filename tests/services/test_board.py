"""Slots on a board that is short of memory, hot or slowed down: what starts, what waits, and until when."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Literal

import anyio
import msgspec
import pytest

from jobd.config.model import Board, Queue, Task
from jobd.dispatch import slots as slots_module
from jobd.store.ids import new_id
from jobd.tasks.isolated.runner import IsolatedRunner
from jobd.tasks.runner import Runner
from tests.board.trees import MEMINFO, plant
from tests.support.running_slots import CONFIG, RunningSlots, running_slots
from tests.support.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path
    from uuid import UUID

    from jobd.tasks.runner import Context

#: MB that jobs of the task `large` need, and that nobody is promised.
NEED_MB, FLOOR_MB = 1000, 500


class Holding(Runner):
    """Runs each job until it is let go."""

    def __init__(self) -> None:
        self.running: dict[UUID, anyio.Event] = {}
        self.begun: list[UUID] = []
        self.most = 0

    async def run(self, payload: Mapping[str, Any], context: Context) -> Any:
        self.begun.append(context.job_id)
        over = self.running[context.job_id] = anyio.Event()
        self.most = max(self.most, len(self.running))
        if "s" in payload:
            await anyio.sleep(payload["s"])
        else:
            await over.wait()
        del self.running[context.job_id]
        return {}


class BoardUnderTest:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.large, self.small = Holding(), Holding()
        #: Set when the slots run.
        self.slots: RunningSlots

    def has(self, available_mb: int) -> None:
        """What the kernel says of memory."""
        plant(self.root, {"/proc/meminfo": MEMINFO.format(total=8000 << 10, available=available_mb << 10, swap=0)})

    def is_at(self, celsius: float) -> None:
        zone = "/sys/class/thermal/thermal_zone0/{type,temp}"
        plant(self.root, {zone: f"cpu-thermal|{int(celsius * 1000)}"})

    async def measure(self) -> None:
        await self.slots.node.board.run_once()

    async def submit(self, task: str, payload: Mapping[str, Any] | None = None, **values: Any) -> UUID:
        return await self.slots.submit(payload or {}, task=task, **values)

    async def until_begun(self, runner: Holding, number: int) -> None:
        await wait_until_async(lambda: _true(len(runner.begun) >= number), lambda: f"begun: {len(runner.begun)}")

    async def until_short(self) -> None:
        """A take has found a job for which there is too little memory."""
        queues = self.slots.node.dispatcher.direct._queues
        await wait_until_async(lambda: _true(any(queue.short_task for queue in queues.values())))

    def never_polls(self) -> None:
        """From now on a poll of Postgres does not help out."""
        self.slots.node.dispatcher.direct._poll_at = time.monotonic() + 3600

    async def end(self, runner: Holding, job_id: UUID) -> None:
        runner.running[job_id].set()
        await self.slots.wait_for_status(job_id, "done")


async def _true(value: bool) -> bool:
    return value


Opened = contextlib.AbstractAsyncContextManager[BoardUnderTest]


@pytest.fixture
def opened(shared_postgres: str, folder: Path) -> Callable[..., Opened]:
    @contextlib.asynccontextmanager
    async def open_board(
        available_mb: int | None = 2000, deliver: Literal["auto", "stream"] = "auto", **queue: Any
    ) -> AsyncIterator[BoardUnderTest]:
        board = BoardUnderTest(folder / "board")
        board.root.mkdir()
        if available_mb is not None:
            board.has(available_mb)
        config = msgspec.structs.replace(
            CONFIG,
            queues={"default": Queue(**{"slots": 4, **queue}), "other": Queue(slots=2)},
            tasks={"large": Task(run="mock", needs_memory_mb=NEED_MB), "small": Task(run="mock")},
            board=Board(prefix=str(board.root), memory_floor_mb=FLOOR_MB),
        )
        runners = {"large": board.large, "small": board.small}
        async with running_slots(shared_postgres, folder, runners, config, deliver=deliver) as board.slots:
            yield board

    return open_board


# -- memory ------------------------------------------------------------------------------------------------------------


async def test_second_job_waits_until_the_first_gives_its_memory_back(opened: Callable[..., Opened]) -> None:
    async with opened(available_mb=2499) as board:
        first, second = await board.submit("large"), await board.submit("large")
        await board.until_begun(board.large, 1)
        await board.until_short()

        waiting = (await board.slots.job(second)).status
        board.never_polls()
        await board.end(board.large, first)

        await board.until_begun(board.large, 2)
        assert (waiting, board.large.most) == ("queued", 1)
        assert await board.slots.outcomes(second) == [None]  # it was never taken and handed back


async def test_job_without_a_need_goes_past_those_that_wait_for_memory(opened: Callable[..., Opened]) -> None:
    async with opened(available_mb=1000) as board:
        large = await board.submit("large")
        await board.until_short()

        small = await board.submit("small")

        await board.until_begun(board.small, 1)
        await board.end(board.small, small)
        assert (await board.slots.job(large)).status == "queued"
        assert board.large.begun == []


async def test_job_starts_when_a_measurement_finds_memory(opened: Callable[..., Opened]) -> None:
    async with opened(available_mb=1000) as board:
        await board.submit("large")
        await board.until_short()

        board.never_polls()
        board.has(1500)
        await board.measure()

        await board.until_begun(board.large, 1)


async def test_without_a_probe_nothing_that_needs_memory_starts(opened: Callable[..., Opened]) -> None:
    async with opened(available_mb=None) as board:
        await board.submit("large")
        await board.submit("small")

        await board.until_begun(board.small, 1)
        await board.until_short()

        assert board.large.begun == []


async def test_http_worker_is_not_held_back_by_the_memory_of_this_board(opened: Callable[..., Opened]) -> None:
    async with opened(available_mb=1000) as board:
        large = await board.submit("large")
        await board.until_short()

        with anyio.fail_after(30):
            (taken,) = await board.slots.node.dispatcher.take(("default",), f"http-{new_id()}")

        assert taken.job_id == large
        assert board.slots.node.memory.reserved_bytes == 0


async def test_jobs_that_turn_up_where_none_was_expected_are_put_off(opened: Callable[..., Opened]) -> None:
    async with opened(available_mb=1000) as board:
        job_id = await board.submit("large", queue="other")
        await wait_until_async(lambda: _true("other" in board.slots.node.memory.queues))

        assert board.large.begun == []
        board.has(3000)

        await board.until_begun(board.large, 1)  # at the end of its delay
        assert (await board.slots.job(job_id)).attempt_count == 1


async def test_job_that_a_message_brings_comes_back_until_there_is_memory(opened: Callable[..., Opened]) -> None:
    async with opened(available_mb=1000, deliver="stream") as board:
        job_id = await board.submit("large")

        async def is_put_off() -> bool:
            return bool((await board.slots.row(job_id, "snoozes"))[0])

        await wait_until_async(is_put_off)
        assert board.large.begun == []
        board.has(3000)

        await board.until_begun(board.large, 1)


@pytest.mark.parametrize("deliver", ["auto", "stream"])
async def test_never_more_memory_is_promised_than_there_is(
    opened: Callable[..., Opened], deliver: Literal["auto", "stream"]
) -> None:
    """Three fit; eight slots, two queues and many ends at once try to start more."""
    number = 24 if deliver == "auto" else 8
    async with opened(available_mb=3900, slots=8, deliver=deliver) as board:
        jobs = [
            await board.submit("large", {"s": 0.01 * (n % 4)}, queue="other" if n % 3 == 2 else "default")
            for n in range(number)
        ]

        for job_id in jobs:
            await board.slots.wait_for_status(job_id, "done")

        assert len(board.large.begun) == number
        assert board.large.most <= 3
        if deliver == "auto":
            assert board.large.most > 1
        await wait_until_async(lambda: _true(board.slots.node.memory.reserved_bytes == 0))


# -- heat --------------------------------------------------------------------------------------------------------------


async def test_hot_queue_starts_fewer_jobs_the_hotter_the_board_is(opened: Callable[..., Opened]) -> None:
    async with opened(hot=True) as board:
        board.is_at(85)  # no trip point: soft is 80, hard 90
        await board.measure()
        jobs = [await board.submit("small") for _ in range(6)]
        await board.until_begun(board.small, 2)
        soft = len(board.small.running)

        board.is_at(95)
        await board.measure()
        for job_id in jobs[:2]:
            await board.end(board.small, job_id)
        other = await board.submit("small", queue="other")  # what is not hot goes on, and so shows that time has passed
        await board.until_begun(board.small, 3)
        hard = [job_id for job_id in board.small.running if job_id != other]
        board.is_at(60)
        await board.measure()

        await board.until_begun(board.small, 7)
        assert (soft, hard) == (2, [])
        assert len(board.small.running) == 5


async def test_queue_that_is_not_hot_does_not_mind_the_heat(opened: Callable[..., Opened]) -> None:
    async with opened() as board:
        board.is_at(99)
        await board.measure()
        for _ in range(4):
            await board.submit("small")

        await board.until_begun(board.small, 4)
        assert board.slots.node.board.heat.level == "hard"


async def test_jobs_that_were_taken_and_not_begun_go_back_when_it_gets_hot(opened: Callable[..., Opened]) -> None:
    async with opened(hot=True) as board:
        board.slots.service.pace("hard")
        pool = board.slots.service._pools[0].pool

        job_id = await board.submit("small")
        claims = await board.slots.node.dispatcher.take(("default",), "http-1")  # as a take that was under way
        board.slots.service._pools[0].take_over(claims)

        await wait_until_async(lambda: _true(not pool._waiting))
        await board.slots.wait_for_status(job_id, "queued")
        assert board.small.begun == []


async def test_attempt_that_ran_while_the_board_was_slowed_down_says_so(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "MARKED_S", 0.0)
    async with opened() as board:
        before = await board.submit("small")
        await board.until_begun(board.small, 1)
        await board.end(board.small, before)
        slowed = await board.submit("small")
        await board.until_begun(board.small, 2)

        alert = "/sys/class/thermal/cooling_device0/{type,cur_state}"
        plant(board.root, {alert: "cpu-throttle-alert|1"})
        board.slots.node.board._sampler.discover()
        await board.measure()
        await board.end(board.small, slowed)

        marks = {job: [e for e in await board.slots.events(job) if e.type == "throttled"] for job in (before, slowed)}
        assert marks[before] == []
        assert [msgspec.json.decode(mark.data) for mark in marks[slowed]] == [{"by": ["cpu-throttle-alert"]}]


# -- processes that have memory for real -------------------------------------------------------------------------------


async def test_memory_that_a_warm_process_has_is_neither_asked_for_nor_reserved_again(
    shared_postgres: str, folder: Path
) -> None:
    board = BoardUnderTest(folder / "board")
    board.root.mkdir()
    board.has(FLOOR_MB + 250)
    grow = Task(run="python", handler="tests.tasks.isolated_handlers:act", isolate=True, needs_memory_mb=200)
    config = msgspec.structs.replace(
        CONFIG, tasks={"grow": grow}, board=Board(prefix=str(board.root), memory_floor_mb=FLOOR_MB)
    )
    runner = IsolatedRunner("grow", grow, folder)
    async with running_slots(shared_postgres, folder, {"grow": runner}, config) as board.slots:
        memory = board.slots.node.memory
        first = await board.slots.submit({"do": "grow", "mb": 200}, task="grow")
        await board.slots.wait_for_status(first, "done")

        board.has(FLOOR_MB + 50)  # the process has kept the rest
        second = await board.slots.submit({"do": "obey"}, task="grow")
        await board.slots.until_emitted(second, "log")
        await board.measure()
        reserved, third = memory.reserved_bytes, await board.slots.submit({"do": "nothing"}, task="grow")
        await board.until_short()  # there is no other warm process for it

        assert reserved == 0
        assert (await board.slots.job(third)).status == "queued"
        assert memory.need_of("grow") == 200 << 20
