"""GPUs: how busy they are and how fast they run, where a file of sysfs says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jobd.board.files import unique
from jobd.wire.board import GpuObject

if TYPE_CHECKING:
    from jobd.board.files import KeptFiles

#: Names that the device tree has for the GPU of a Jetson or of a Raspberry Pi.
NODES = frozenset({"gv11b", "gp10b", "ga10b", "gb10b", "gpu", "v3d"})


class _Gpu(NamedTuple):
    name: str
    load: str
    #: What the file says of a GPU that is always busy.
    full: int
    frequency: str = ""
    max_frequency: str = ""


class Gpus:
    def __init__(self, files: KeptFiles) -> None:
        self._files = files
        self._gpus: list[_Gpu] = []

    def discover(self) -> None:
        gpus = [gpu for path in self._files.find("/sys/class/devfreq/*") if (gpu := self._devfreq(path))]
        busy = self._files.find("/sys/class/drm/card*/device/gpu_busy_percent")
        gpus += [_Gpu(path.split("/")[4], path, 100) for path in busy]
        self._gpus = [
            gpu._replace(name=name) for gpu, name in zip(gpus, unique([gpu.name for gpu in gpus]), strict=True)
        ]

    def _devfreq(self, path: str) -> _Gpu | None:
        name = path.rpartition("/")[2]
        node = self._files.once(f"{path}/device/of_node/name")
        if node not in NODES and not name.startswith("gpu-gpc"):
            return None
        shown = "gpu" if name.endswith(".gpu") or not node else node
        return _Gpu(shown, f"{path}/device/load", 1000, f"{path}/cur_freq", f"{path}/max_freq")

    def read(self) -> list[GpuObject]:
        found = []
        for gpu in self._gpus:
            busy = self._files.number(gpu.load)
            hertz = self._files.number(gpu.frequency) if gpu.frequency else None
            if busy is None and hertz is None:
                continue
            found.append(
                GpuObject(
                    gpu=gpu.name,
                    load=None if busy is None else min(1.0, max(0.0, busy / gpu.full)),
                    hertz=hertz,
                    max_hertz=self._files.number(gpu.max_frequency) if gpu.max_frequency else None,
                )
            )
        return found
