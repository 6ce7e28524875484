"""The service that measures: what it keeps, what it says, and that a sensor that hangs stops nothing."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest

from jobd.board import service as service_module
from jobd.board.ledger import MemoryLedger
from jobd.board.service import BoardService, MemoryProbe, resident_bytes
from jobd.config.model import Board, Config
from jobd.supervise.service import Handle
from jobd.wire.board import BoardObject
from tests.board.trees import EMPTY_CONTAINER, ORIN_NANO_JETPACK_6, RASPBERRY_PI_5, TREES, plant

if TYPE_CHECKING:
    from pathlib import Path

ZONE = "/sys/class/thermal/thermal_zone0/temp"


class Measured:
    """A service on a planted board."""

    def __init__(self, root: Path, tree: dict[str, str], **settings: Any) -> None:
        self.root = root
        self.config = Config(board=Board(prefix=plant(root, tree), **settings))
        self.levels: list[str] = []
        ledger = MemoryLedger(lambda: self.config, MemoryProbe(self.config))
        self.service = BoardService(lambda: self.config, ledger, on_heat=self.levels.append)

    async def at(self, celsius: float) -> str:
        plant(self.root, {ZONE: str(int(celsius * 1000))})
        await self.service.run_once()
        return self.service.heat.level

    def set(self, **settings: Any) -> None:
        """As a reload does."""
        board = msgspec.structs.replace(self.config.board, **settings)
        self.config = msgspec.structs.replace(self.config, board=board)


@pytest.mark.parametrize("name", TREES)
async def test_answer_of_every_board_reads_back_as_it_was(tmp_path: Path, name: str) -> None:
    measured = Measured(tmp_path, TREES[name])
    await measured.service.run_once()

    board = measured.service.read()

    assert msgspec.json.decode(msgspec.json.encode(board), type=BoardObject) == board
    assert board.taken_ts is not None


async def test_change_of_the_level_is_said_once_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobd.board.service")
    measured = Measured(tmp_path, RASPBERRY_PI_5)

    seen = [await measured.at(celsius) for celsius in (70, 81, 82, 91, 86, 84, 74)]

    assert seen == ["none", "soft", "soft", "hard", "hard", "soft", "none"]
    assert measured.levels == ["soft", "hard", "soft", "none"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "WARNING", "INFO"]
    assert caplog.messages[1] == "cpu-thermal has 91.0 degrees: no slot of a hot queue starts a job"


async def test_limits_follow_a_reload(tmp_path: Path) -> None:
    measured = Measured(tmp_path, RASPBERRY_PI_5)
    before = await measured.at(60)

    measured.set(soft_c=50, hard_c=55, hysteresis_c=1)

    assert (before, await measured.at(60)) == ("none", "hard")


async def test_sensor_that_hangs_stops_nothing_and_the_last_figures_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured(tmp_path, ORIN_NANO_JETPACK_6)
    await measured.service.run_once()
    before, lets_go = measured.service.read(), threading.Event()
    monkeypatch.setattr(service_module, "PATIENCE_S", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(measured.service._sampler, "sample", lambda: lets_go.wait(60))
        try:
            with anyio.fail_after(30):
                for _ in range(3):
                    await measured.service.run_once()
        finally:
            lets_go.set()

    assert measured.service.read() == before
    with anyio.fail_after(30):
        while measured.service._is_measuring:
            await anyio.sleep(0.001)


async def test_board_that_is_not_to_be_measured_shows_nothing(tmp_path: Path) -> None:
    measured = Measured(tmp_path, ORIN_NANO_JETPACK_6, enabled=False)
    ready, handle = anyio.Event(), Handle(lambda: ready.set())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(measured.service.run, handle)
        await ready.wait()
        handle.stop.set()

    assert measured.service.read() == BoardObject()
    assert MemoryProbe(measured.config)() is None


async def test_service_has_measured_when_it_is_ready(tmp_path: Path) -> None:
    measured = Measured(tmp_path, ORIN_NANO_JETPACK_6)
    seen: list[BoardObject] = []
    handle = Handle(lambda: seen.append(measured.service.read()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(measured.service.run, handle)
        while not seen:
            await anyio.sleep(0.001)
        handle.stop.set()

    assert seen[0].kind == "jetson"


async def test_throttling_is_remembered_with_its_time(tmp_path: Path) -> None:
    calm, slowed = Measured(tmp_path / "a", EMPTY_CONTAINER), Measured(tmp_path / "b", RASPBERRY_PI_5)
    started_at = time.monotonic()

    await calm.service.run_once()
    await slowed.service.run_once()

    assert calm.service.throttled.seen_at < started_at <= slowed.service.throttled.seen_at
    assert slowed.service.throttled.by == ["under-voltage", "throttled"]


def test_process_that_is_gone_has_no_memory() -> None:
    assert resident_bytes(2**22 + 1) == 0
    assert resident_bytes(1) > 0
