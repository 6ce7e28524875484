"""Room on the disk and in memory: measured seldom, in a thread, and never waited for when a disk hangs."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from jobd.host.space import FreeSpace, disk_space, memory_space
from jobd.http import host_space
from jobd.http.host_space import FRESH_S, HostSpace, SpaceGauge

if TYPE_CHECKING:
    from pathlib import Path


def test_disk_is_that_of_the_path_even_if_it_is_not_made_yet(tmp_path: Path) -> None:
    whole = shutil.disk_usage(tmp_path)

    found = disk_space(tmp_path / "later" / "still")

    assert found.total == whole.total
    assert 0 < found.free <= found.total


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n", FreeSpace(1024 << 10, 2048 << 10)),
        ("MemTotal:  2048 kB\n", None),
        ("nonsense", None),
        ("MemTotal: much\nMemAvailable: little\n", None),
        (None, None),
    ],
)
def test_memory_is_what_can_be_had_without_swapping(
    tmp_path: Path, text: str | None, expected: FreeSpace | None
) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)

    assert memory_space(tmp_path / "meminfo") == expected


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_figures_are_kept_for_seconds(tmp_path: Path) -> None:
    clock, measured = Clock(), []

    def measure(path: Path) -> FreeSpace:
        measured.append(path)
        return FreeSpace(len(measured), 100)

    gauge = SpaceGauge(tmp_path, measure, clock)

    first, again = await gauge.read(), await gauge.read()
    clock.now += FRESH_S
    later = await gauge.read()

    assert [first.disk, again.disk, later.disk] == [FreeSpace(1, 100), FreeSpace(1, 100), FreeSpace(2, 100)]
    assert measured == [tmp_path, tmp_path]


async def test_disk_that_cannot_be_asked_is_not_known(tmp_path: Path) -> None:
    def measure(path: Path) -> FreeSpace:
        raise OSError("gone")

    assert (await SpaceGauge(tmp_path, measure).read()).disk is None


async def test_disk_that_hangs_is_not_waited_for_and_asked_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_space, "PATIENCE_S", 0.01)
    answers, asked = threading.Event(), []

    def measure(path: Path) -> FreeSpace:
        asked.append(path)
        answers.wait(60)
        return FreeSpace(1, 2)

    gauge = SpaceGauge(tmp_path, measure)

    try:
        found = [await gauge.read() for _ in range(3)]
    finally:
        answers.set()

    assert found == [HostSpace()] * 3
    assert asked == [tmp_path]
