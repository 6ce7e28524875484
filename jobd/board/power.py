"""Power rails: the monitors of a Jetson (ina3221, ina238), or the battery of a laptop."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobd.board.files import unique
from jobd.wire.board import RailObject

if TYPE_CHECKING:
    from jobd.board.files import KeptFiles

#: Labels of rails that carry what the whole board takes.
TOTALS = frozenset({"VDD_IN", "POM_5V_IN", "VIN", "VIN_SYS_5V0"})
#: Labels of inputs that are not connected, and of those that only add up others.
NO_RAILS = frozenset({"NC", "sum of shunt voltages"})


class _Rail(NamedTuple):
    name: str
    #: In mV and mA, or in uV and uA of a battery; empty: only the power is measured.
    voltage: str = ""
    current: str = ""
    #: In uW; empty: it is the product of the two.
    power: str = ""
    #: Parts of a volt and of an ampere that the files count.
    parts: float = 1e3
    #: File that says whether this is measured at the moment, and the word for it; empty: always.
    state: str = ""


class PowerRails:
    def __init__(self, files: KeptFiles) -> None:
        self._files = files
        self._rails: list[_Rail] = []

    def discover(self) -> None:
        rails: list[_Rail] = []
        for path in self._files.find("/sys/class/hwmon/hwmon*"):
            name = self._files.once(f"{path}/name")
            if name == "ina3221":
                rails += self._ina3221(path)
            elif name == "ina238":
                rails.append(_Rail(self._files.once(f"{path}/in1_label") or "VIN", power=f"{path}/power1_input"))
        rails += [self._battery(path) for path in self._files.find("/sys/class/power_supply/BAT*")]
        self._rails = [
            rail._replace(name=name) for rail, name in zip(rails, unique([rail.name for rail in rails]), strict=True)
        ]

    def _ina3221(self, path: str) -> list[_Rail]:
        found = []
        for label in self._files.find(f"{path}/in[1-3]_label"):
            number = label.removesuffix("_label")[-1]
            name = self._files.once(label)
            if name and name not in NO_RAILS:
                found.append(_Rail(name, f"{path}/in{number}_input", f"{path}/curr{number}_input"))
        return found

    def _battery(self, path: str) -> _Rail:
        name, state = path.rpartition("/")[2], f"{path}/status"
        if self._files.find(f"{path}/power_now"):
            return _Rail(name, power=f"{path}/power_now", state=state)
        return _Rail(name, f"{path}/voltage_now", f"{path}/current_now", parts=1e6, state=state)

    def read(self) -> list[RailObject]:
        return [rail for known in self._rails if (rail := self._read(known)) is not None]

    def _read(self, rail: _Rail) -> RailObject | None:
        if rail.state and self._files.read(rail.state) != "Discharging":
            return None  # what flows into a battery says nothing of what the machine takes
        is_total = rail.name in TOTALS or bool(rail.state)
        if rail.power:
            microwatts = self._files.number(rail.power)
            if microwatts is None:
                return None
            return RailObject(rail=rail.name, watts=round(microwatts / 1e6, 3), is_total=is_total)
        voltage, current = self._files.number(rail.voltage), self._files.number(rail.current)
        if voltage is None or current is None:
            return None
        volts, amperes = voltage / rail.parts, current / rail.parts
        return RailObject(
            rail=rail.name, watts=round(volts * amperes, 3), volts=volts, amperes=amperes, is_total=is_total
        )
