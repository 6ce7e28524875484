"""Which board this is, and the power mode that it is set to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from jobd.board.files import KeptFiles

MODELS = (
    "/proc/device-tree/model",
    "/sys/firmware/devicetree/base/model",
    "/sys/devices/virtual/dmi/id/product_name",
)
COMPATIBLE = "/proc/device-tree/compatible"
RELEASE = "/etc/nv_tegra_release"
#: Where nvpmodel keeps the mode that was last set, and all modes with their names and the first one.
MODE, MODES = "/var/lib/nvpmodel/status", "/etc/nvpmodel.conf"
PROFILE = "/sys/firmware/acpi/platform_profile"
GOVERNOR = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


class BoardIdentity(NamedTuple):
    model: str | None
    kind: Literal["jetson", "raspberry_pi", "other"]
    release: str | None


def read_identity(files: KeptFiles) -> BoardIdentity:
    model = next(filter(None, map(files.once, MODELS)), None)
    compatible = files.once(COMPATIBLE) or ""
    release = _release(files.once(RELEASE) or "")
    if release or "nvidia,tegra" in compatible:
        return BoardIdentity(model, "jetson", release)
    is_pi = "raspberrypi," in compatible or (model or "").startswith("Raspberry Pi")
    return BoardIdentity(model, "raspberry_pi" if is_pi else "other", None)


def _release(text: str) -> str | None:
    """`# R36 (release), REVISION: 4.3, ...` is 36.4.3."""
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text)
    return f"{found[1]}.{found[2]}" if found else None


def read_power_mode(files: KeptFiles) -> str | None:
    """The name of the mode of nvpmodel, else the profile of the firmware, else the governor of the first core."""
    modes = files.once(MODES) or ""
    chosen = re.search(r"pmode:0*(\d+)", files.once(MODE) or "") or re.search(r"PM_CONFIG DEFAULT=(\d+)", modes)
    if chosen is None:
        return files.once(PROFILE) or files.once(GOVERNOR) or None
    name = re.search(rf"POWER_MODEL ID={chosen[1]} NAME=(\S+)", modes)
    return name[1] if name else f"mode {chosen[1]}"
