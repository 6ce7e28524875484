"""The sampler on recorded boards: what each shows, and that nothing unreadable stops it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jobd.board.files import KeptFiles
from jobd.board.memory import MemoryFigures
from jobd.board.sampler import BoardSample, Sampler
from tests.board.trees import EMPTY_CONTAINER, LAPTOP, ORIN_NANO_JETPACK_6, RASPBERRY_PI_5, TREES, plant

if TYPE_CHECKING:
    from pathlib import Path

KB = 1024


class Shows(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be seen of a board."""

    kind: str = "other"
    release: str | None = None
    power_mode: str | None = None
    #: Zone -> degrees, slowed down at, off at.
    zones: dict[str, tuple[float, float | None, float | None]] = {}
    #: Rail -> watts, whether it is the total.
    rails: dict[str, tuple[float, bool]] = {}
    #: Load and megahertz of each.
    gpus: dict[str, tuple[float | None, int | None]] = {}
    memory: MemoryFigures | None = None
    #: Share of the time in which some, and all, waited for memory.
    pressure: tuple[float, float] | None = None
    #: Bytes written, share of its life.
    disks: dict[str, tuple[int, float | None]] = {}
    throttled_by: tuple[str, ...] = ()


SHOWN = {
    "Orin Nano, JetPack 6": Shows(
        kind="jetson",
        release="36.4.3",
        power_mode="MAXN_SUPER",
        zones={"cpu-thermal": (51.25, 99.0, 104.5), "tj-thermal": (52.125, 99.0, 104.5)},
        rails={"VDD_IN": (4.755, True), "VDD_CPU_GPU_CV": (0.689, False), "VDD_SOC": (1.42, False)},
        gpus={"gpu": (0.437, 612)},
        memory=MemoryFigures(7802880 * KB, 5242880 * KB, 3901440 * KB, 3901440 * KB),
        pressure=(0.015, 0.005),
        disks={"mmcblk0": (4096 * 512, 0.3), "nvme0n1": (1 << 30, None)},
    ),
    "Orin, JetPack 7": Shows(
        kind="jetson",
        release="38.4.0",
        power_mode="15W",
        zones={"cpu-thermal": (61.0, 99.0, 104.5), "gpu-thermal": (60.5, 99.0, 104.5)},
        rails={"VDD_GPU_SOC": (4.787, False), "VDD_CPU_CV": (1.596, False), "VIN_SYS_5V0": (4.563, True)},
        gpus={"gpu": (1.0, 1300)},
        memory=MemoryFigures(64349544 * KB, 58720256 * KB),
        disks={"nvme0n1": (51200, None)},
    ),
    "Thor": Shows(
        kind="jetson",
        release="38.2.0",
        power_mode="120W",
        zones={"tj-thermal": (45.5, 99.0, 104.5)},
        rails={"VIN": (31.25, True), "VDD_GPU": (9.573, False)},
        gpus={"gpu": (None, 315)},
        memory=MemoryFigures(128788736 * KB, 121634816 * KB),
        disks={"nvme0n1": (1024, None)},
    ),
    "Raspberry Pi 5": Shows(
        kind="raspberry_pi",
        power_mode="ondemand",
        zones={"cpu-thermal": (67.85, None, 110.0)},
        memory=MemoryFigures(8245024 * KB, 7340032 * KB, 524272 * KB, 524272 * KB),
        disks={"mmcblk0": (153600, None)},
        throttled_by=("under-voltage", "throttled"),
    ),
    "laptop": Shows(
        power_mode="balanced",
        zones={
            "acpitz": (48.0, None, 128.0),
            "acpitz-2": (27.8, None, None),
            "coretemp Package id 0": (71.0, 100.0, 100.0),
            "nvme Composite": (38.85, 84.85, None),
        },
        rails={"BAT0": (8.12, True)},
        gpus={"card1": (0.12, None)},
        memory=MemoryFigures(32620560 * KB, 20971520 * KB, 8388604 * KB, 8388604 * KB),
        pressure=(0.0, 0.0),
        disks={"nvme0n1": (25600, None)},
    ),
    "container with a limit": Shows(memory=MemoryFigures(2 << 30, 768 << 20)),
    "container with nothing": Shows(),
    "nonsense": Shows(),
}


def shown(sample: BoardSample) -> Shows:
    return Shows(
        kind=sample.identity.kind,
        release=sample.identity.release,
        power_mode=sample.power_mode,
        zones={zone.zone: (zone.celsius, zone.passive_celsius, zone.critical_celsius) for zone in sample.zones},
        rails={rail.rail: (rail.watts, rail.is_total) for rail in sample.rails},
        gpus={gpu.gpu: (gpu.load, None if gpu.hertz is None else gpu.hertz // 10**6) for gpu in sample.gpus},
        memory=sample.memory,
        pressure=None if sample.pressure is None else (sample.pressure.some, sample.pressure.full),
        disks={disk.disk: (disk.written_bytes, disk.life_used) for disk in sample.disks},
        throttled_by=tuple(sample.throttled_by),
    )


@pytest.mark.parametrize("name", TREES)
def test_board_shows_what_it_has_and_nothing_else(tmp_path: Path, name: str) -> None:
    sampler = Sampler(plant(tmp_path, TREES[name]))

    assert shown(sampler.sample()) == SHOWN[name]
    sampler.close()


def test_model_is_named_without_the_end_of_the_device_tree(tmp_path: Path) -> None:
    sampler = Sampler(plant(tmp_path, ORIN_NANO_JETPACK_6))

    assert sampler.sample().identity.model == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"


def test_every_file_of_a_board_may_vanish_or_turn_into_a_folder_between_two_samples(tmp_path: Path) -> None:
    sampler = Sampler(plant(tmp_path, ORIN_NANO_JETPACK_6))
    sampler.sample()

    for number, file in enumerate(sorted(path for path in tmp_path.rglob("*") if path.is_file())):
        file.unlink()
        if number % 2:
            file.mkdir()
        sampler.sample()
        sampler.discover()

    sampler.close()  # a plain file that is open can be read after its end, unlike one of sysfs
    assert shown(sampler.sample()) == Shows()


#: What changes on a board -> what it is slowed down by then.
CHANGES: list[tuple[dict[str, str], dict[str, str], list[str]]] = [
    (ORIN_NANO_JETPACK_6, {"/sys/class/hwmon/hwmon3/oc3_event_cnt": "39"}, ["over-current oc3"]),
    (ORIN_NANO_JETPACK_6, {"/sys/class/hwmon/hwmon3/oc3_event_cnt": "2"}, []),
    (ORIN_NANO_JETPACK_6, {"/sys/class/hwmon/hwmon1/curr1_crit_alarm": "1"}, ["over-current alarm curr1"]),
    (ORIN_NANO_JETPACK_6, {"/sys/class/thermal/cooling_device1/cur_state": "1"}, ["cpu-throttle-alert"]),
    (ORIN_NANO_JETPACK_6, {"/sys/class/thermal/cooling_device0/cur_state": "9"}, []),
    (RASPBERRY_PI_5, {"/sys/devices/platform/soc/soc:firmware/get_throttled": "50000"}, []),
    (RASPBERRY_PI_5, {"/sys/devices/platform/soc/soc:firmware/get_throttled": "8"}, ["soft temperature limit"]),
    (LAPTOP, {"/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "5"}, ["core throttle"]),
    (LAPTOP, {"/sys/class/thermal/cooling_device0/cur_state": "2"}, ["Processor"]),
]


@pytest.mark.parametrize(("tree", "change", "words"), CHANGES)
def test_throttling_is_seen_while_it_lasts(
    tmp_path: Path, tree: dict[str, str], change: dict[str, str], words: list[str]
) -> None:
    sampler = Sampler(plant(tmp_path, tree))
    sampler.sample()

    plant(tmp_path, change)

    assert sampler.sample().throttled_by == words


def test_counter_that_stands_still_again_is_no_throttling_any_more(tmp_path: Path) -> None:
    sampler = Sampler(plant(tmp_path, ORIN_NANO_JETPACK_6))
    sampler.sample()
    plant(tmp_path, {"/sys/class/hwmon/hwmon3/oc3_event_cnt": "38"})
    sampler.sample()

    assert sampler.sample().throttled_by == []


def test_device_that_comes_later_is_found_by_the_next_search(tmp_path: Path) -> None:
    sampler = Sampler(plant(tmp_path, EMPTY_CONTAINER))
    sampler.sample()
    plant(tmp_path, RASPBERRY_PI_5)
    sampler.discover()

    assert sampler.sample().identity.kind == "raspberry_pi"


def test_files_stay_open_between_samples_and_are_closed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    real_open = os.open

    def noting(*arguments: Any) -> int:
        opened.append(arguments)
        return real_open(*arguments)

    sampler = Sampler(plant(tmp_path, ORIN_NANO_JETPACK_6))
    sampler.sample()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", noting)
        sampler.sample()
    kept = [fd for fd in os.listdir("/proc/self/fd") if _target(fd).startswith(str(tmp_path))]
    sampler.close()

    assert opened == []
    assert len(kept) > 20
    assert not [fd for fd in os.listdir("/proc/self/fd") if _target(fd).startswith(str(tmp_path))]


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_kept_file_is_read_from_its_beginning_each_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    files = KeptFiles(str(tmp_path))

    first = files.number("/a")
    (tmp_path / "a").write_text("22\n")

    assert (first, files.number("/a")) == (1, 22)
    files.close()
