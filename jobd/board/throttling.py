"""Why the board is slowed down at the moment: alarms, states of cooling devices, counters that have grown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobd.board.files import KeptFiles

PI = "/sys/devices/platform/soc/soc:firmware/get_throttled"
#: What the lowest bits of the firmware of a Raspberry Pi mean.
PI_BITS = ("under-voltage", "frequency capped", "throttled", "soft temperature limit")
#: Parts of the names of cooling devices that slow something down; others turn a fan.
SLOWING = ("throttle", "cpufreq", "devfreq", "Processor", "hot-surface")
#: Counters that grow each time that something was slowed down.
COUNTERS = (
    "/sys/class/hwmon/hwmon*/oc*_event_cnt",
    "/sys/devices/system/cpu/cpu0/thermal_throttle/*_throttle_count",
)
ALARMS = "/sys/class/hwmon/hwmon*/curr*_alarm"


class Throttling:
    def __init__(self, files: KeptFiles) -> None:
        self._files = files
        self._cooling: dict[str, str] = {}
        self._alarms: list[str] = []
        #: Counter -> what it was when it was last read; None: not read yet.
        self._counters: dict[str, int | None] = {}
        self._has_pi = False

    def discover(self) -> None:
        files = self._files
        types = {path: files.once(path) or "" for path in files.find("/sys/class/thermal/cooling_device*/type")}
        self._cooling = {
            f"{path.removesuffix('/type')}/cur_state": name
            for path, name in types.items()
            if any(word in name for word in SLOWING)
        }
        self._alarms = files.find(ALARMS)
        counters = [path for pattern in COUNTERS for path in files.find(pattern)]
        self._counters = {path: self._counters.get(path) for path in counters}
        self._has_pi = bool(files.find(PI))

    def read(self) -> list[str]:
        words = [name for path, name in self._cooling.items() if (self._files.number(path) or 0) > 0]
        words += [f"over-current alarm {_stem(path)}" for path in self._alarms if self._files.number(path) == 1]
        words += [word for path in self._counters if (word := self._grown(path))]
        return list(dict.fromkeys([*words, *self._pi()]))

    def _grown(self, path: str) -> str:
        before, now = self._counters[path], self._files.number(path)
        self._counters[path] = now
        if before is None or now is None or now <= before:
            return ""
        name = path.rpartition("/")[2]
        return f"over-current {_stem(path)}" if name.startswith("oc") else name.removesuffix("_count").replace("_", " ")

    def _pi(self) -> list[str]:
        try:
            bits = int(self._files.read(PI) or "0", 16) if self._has_pi else 0
        except ValueError:
            return []
        return [word for number, word in enumerate(PI_BITS) if bits >> number & 1]


def _stem(path: str) -> str:
    """`.../curr1_crit_alarm` is curr1, `.../oc3_event_cnt` is oc3."""
    return path.rpartition("/")[2].partition("_")[0]
