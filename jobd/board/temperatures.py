"""Temperatures with their trip points: thermal zones, and sensors of hwmon that are not zones as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobd.board.files import unique
from jobd.wire.board import ZoneObject

if TYPE_CHECKING:
    from jobd.board.files import KeptFiles

#: Zones that measure nothing: that of a Jetson's power management chip says 100 degrees, always.
NO_ZONES = ("pmic",)
#: Lowest and highest temperature in degrees Celsius that is believed: a sensor that is off says -256, or 0 kelvin.
COLDEST_C, HOTTEST_C = -60.0, 200.0
#: Lowest trip point in degrees Celsius that is believed: unset ones are 0 or -274, those of fans are far lower.
LOWEST_TRIP_C = 40.0


class _Sensor(NamedTuple):
    zone: str
    path: str
    passive_c: float | None
    critical_c: float | None


class Temperatures:
    def __init__(self, files: KeptFiles) -> None:
        self._files = files
        self._sensors: list[_Sensor] = []

    def discover(self) -> None:
        zones = [zone for path in self._files.find("/sys/class/thermal/thermal_zone*") if (zone := self._zone(path))]
        names = {_plain(zone.zone) for zone in zones}
        sensors = [*zones, *self._hwmon(names)]
        self._sensors = [
            sensor._replace(zone=name)
            for sensor, name in zip(sensors, unique([sensor.zone for sensor in sensors]), strict=True)
        ]

    def read(self) -> list[ZoneObject]:
        return [
            ZoneObject(
                zone=sensor.zone,
                celsius=celsius,
                passive_celsius=sensor.passive_c,
                critical_celsius=sensor.critical_c,
            )
            for sensor in self._sensors
            if (celsius := self._celsius(sensor.path)) is not None and COLDEST_C < celsius < HOTTEST_C
        ]

    def _zone(self, path: str) -> _Sensor | None:
        name = self._files.once(f"{path}/type")
        if not name or name.lower().startswith(NO_ZONES):
            return None
        trips: dict[str, list[float]] = {}
        for kind_path in self._files.find(f"{path}/trip_point_*_type"):
            celsius = self._trip(f"{kind_path.removesuffix('_type')}_temp")
            if celsius is not None:
                trips.setdefault(self._files.once(kind_path) or "", []).append(celsius)
        critical = trips.get("critical", []) + trips.get("hot", [])
        return _Sensor(name, f"{path}/temp", min(trips.get("passive", []), default=None), min(critical, default=None))

    def _hwmon(self, zones: set[str]) -> list[_Sensor]:
        found = []
        for path in self._files.find("/sys/class/hwmon/hwmon*/temp*_input"):
            folder, stem = path.rpartition("/")[0], path.removesuffix("_input")
            name = self._files.once(f"{folder}/name") or "hwmon"
            if _plain(name) in zones:
                continue
            label = self._files.once(f"{stem}_label")
            found.append(
                _Sensor(
                    f"{name} {label}" if label else name, path, self._trip(f"{stem}_max"), self._trip(f"{stem}_crit")
                )
            )
        return found

    def _trip(self, path: str) -> float | None:
        celsius = self._celsius(path, keep=False)
        return celsius if celsius is not None and LOWEST_TRIP_C <= celsius < HOTTEST_C else None

    def _celsius(self, path: str, *, keep: bool = True) -> float | None:
        """Sysfs has thousandths of a degree."""
        text = self._files.read(path) if keep else self._files.once(path)
        try:
            return None if text is None else int(text) / 1000
        except ValueError:
            return None


def _plain(name: str) -> str:
    """A zone and its twin in hwmon differ in this: cpu-thermal and cpu_thermal."""
    return name.replace("-", "_").lower()
