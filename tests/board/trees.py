"""What boards show of themselves under /sys, /proc, /etc and /var: path -> content, in a few lines each.

{a,b}    in a path: both
|        in a content: one value for each of those paths, in their order
^        in a content: the character 0, with which the device tree ends its texts
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MEMINFO = (
    "MemTotal: {total} kB\nMemFree: 200000 kB\nMemAvailable: {available} kB\nSwapTotal: {swap} kB\nSwapFree: {swap} kB"
)
PRESSURE = "some avg10=1.50 avg60=0.40 avg300=0.00 total=81\nfull avg10=0.50 avg60=0.10 avg300=0.00 total=40"
NVPMODEL = (
    "< POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=MAXN_SUPER >\n< PM_CONFIG DEFAULT=0 >"
)
#: Reads, merges, sectors and milliseconds, then the same of writes, and so on.
STAT = "9000 10 700000 300 5000 20 {sectors} 900 0 500 1200 0 0 0 0"


def _tegra_zone(number: int, name: str, temp: int) -> dict[str, str]:
    return {
        f"/sys/class/thermal/thermal_zone{number}/{{type,temp}}": f"{name}|{temp}",
        f"/sys/class/thermal/thermal_zone{number}/trip_point_{{0,1,2}}_type": "active|passive|critical",
        f"/sys/class/thermal/thermal_zone{number}/trip_point_{{0,1,2}}_temp": "51000|99000|104500",
    }


ORIN_NANO_JETPACK_6 = {
    "/proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super^",
    "/proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005-super^nvidia,tegra234^",
    "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64",
    "/etc/nvpmodel.conf": NVPMODEL,
    "/var/lib/nvpmodel/status": "pmode:0002",
    **_tegra_zone(0, "cpu-thermal", 51250),
    **_tegra_zone(1, "gpu-thermal", -256000),
    **_tegra_zone(8, "tj-thermal", 52125),
    "/sys/class/thermal/thermal_zone9/{type,temp}": "PMIC-Die|100000",
    "/sys/class/thermal/cooling_device{0,1,2}/type": "pwm-fan|cpu-throttle-alert|hot-surface-alert",
    "/sys/class/thermal/cooling_device{0,1,2}/cur_state": "3|0|0",
    "/sys/class/hwmon/hwmon0/{name,temp1_input}": "cpu_thermal|51250",
    "/sys/class/hwmon/hwmon1/{name,in1_label,in2_label,in3_label,in7_label}": (
        "ina3221|VDD_IN|VDD_CPU_GPU_CV|VDD_SOC|sum of shunt voltages"
    ),
    "/sys/class/hwmon/hwmon1/in{1,2,3,7}_input": "5080|5064|5072|6",
    "/sys/class/hwmon/hwmon1/curr{1,2,3}_input": "936|136|280",
    "/sys/class/hwmon/hwmon1/curr1_{max,crit,max_alarm,crit_alarm}": "4976|6000|0|0",
    "/sys/class/hwmon/hwmon3/{name,oc1_event_cnt,oc2_event_cnt,oc3_event_cnt}": "soctherm_oc|0|15|37",
    "/sys/class/devfreq/17000000.gpu/device/{of_node/name,load}": "gpu^|437",
    "/sys/class/devfreq/17000000.gpu/{cur_freq,max_freq,governor}": "612000000|1020000000|nvhost_podgov",
    "/sys/class/devfreq/15340000.vic/{device/of_node/name,cur_freq}": "vic^|115200000",
    "/proc/meminfo": MEMINFO.format(total=7802880, available=5242880, swap=3901440),
    "/proc/pressure/memory": PRESSURE,
    "/sys/block/nvme0n1/stat": STAT.format(sectors=2097152),
    "/sys/block/{mmcblk0,mmcblk0boot0,zram0,loop0}/stat": "|".join(STAT.format(sectors=n) for n in (4096, 8, 9999, 7)),
    "/sys/block/mmcblk0/device/life_time": "0x02 0x03",
}

ORIN_JETPACK_7 = {
    "/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit^",
    "/proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005^nvidia,tegra234^",
    "/etc/nv_tegra_release": "# R38 (release), REVISION: 4.0, GCID: 43000001, BOARD: generic, EABI: aarch64",
    "/etc/nvpmodel.conf": NVPMODEL,
    **_tegra_zone(0, "cpu-thermal", 61000),
    **_tegra_zone(1, "gpu-thermal", 60500),
    "/sys/class/hwmon/hwmon2/{name,in1_label,in2_label,in3_label}": "ina3221|VDD_GPU_SOC|VDD_CPU_CV|VIN_SYS_5V0",
    "/sys/class/hwmon/hwmon2/in{1,2,3}_input": "19944|19952|5048",
    "/sys/class/hwmon/hwmon2/curr{1,2,3}_input": "240|80|904",
    "/sys/class/hwmon/hwmon3/{name,in1_label}": "ina3221|NC",
    "/sys/class/hwmon/hwmon3/{in1_input,curr1_input}": "0|0",
    "/sys/class/devfreq/17000000.gpu/device/{of_node/name,load}": "ga10b^|1000",
    "/sys/class/devfreq/17000000.gpu/{cur_freq,max_freq}": "1300500000|1300500000",
    "/proc/meminfo": MEMINFO.format(total=64349544, available=58720256, swap=0),
    "/sys/block/nvme0n1/stat": STAT.format(sectors=100),
}

THOR = {
    "/proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit^",
    "/proc/device-tree/compatible": "nvidia,p4071-0000+p3834-0008^nvidia,tegra264^",
    "/etc/nv_tegra_release": "# R38 (release), REVISION: 2.0, GCID: 41000000, BOARD: generic, EABI: aarch64",
    "/etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=120W >\n< PM_CONFIG DEFAULT=1 >",
    "/var/lib/nvpmodel/status": "pmode:0001",
    **_tegra_zone(0, "tj-thermal", 45500),
    "/sys/class/hwmon/hwmon4/{name,power1_input,curr1_input,in1_input}": "ina238|31250000|1560|20030",
    "/sys/class/hwmon/hwmon5/{name,in1_label,in1_input,curr1_input}": "ina3221|VDD_GPU|19944|480",
    "/sys/class/devfreq/gpu-gpc-0/{cur_freq,max_freq}": "315000000|1575000000",
    "/proc/meminfo": MEMINFO.format(total=128788736, available=121634816, swap=0),
    "/sys/block/nvme0n1/stat": STAT.format(sectors=2),
}

RASPBERRY_PI_5 = {
    "/proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0^",
    "/proc/device-tree/compatible": "raspberrypi,5-model-b^brcm,bcm2712^",
    "/sys/class/thermal/thermal_zone0/{type,temp}": "cpu-thermal|67850",
    "/sys/class/thermal/thermal_zone0/trip_point_0_{type,temp}": "critical|110000",
    "/sys/class/thermal/cooling_device0/{type,cur_state}": "pwm-fan|2",
    "/sys/class/hwmon/hwmon0/{name,temp1_input}": "cpu_thermal|67850",
    "/sys/devices/platform/soc/soc:firmware/get_throttled": "50005",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand",
    "/proc/meminfo": MEMINFO.format(total=8245024, available=7340032, swap=524272),
    "/sys/block/mmcblk0/stat": STAT.format(sectors=300),
}

LAPTOP = {
    "/sys/devices/virtual/dmi/id/product_name": "20XW00",
    "/sys/class/thermal/thermal_zone{0,1}/type": "acpitz|acpitz",
    "/sys/class/thermal/thermal_zone{0,1}/temp": "48000|27800",
    "/sys/class/thermal/thermal_zone0/trip_point_0_{type,temp}": "critical|128000",
    "/sys/class/thermal/cooling_device{0,1}/type": "Processor|intel_powerclamp",
    "/sys/class/thermal/cooling_device{0,1}/cur_state": "0|-1",
    "/sys/class/hwmon/hwmon6/{name,temp1_label,temp1_input,temp1_max,temp1_crit}": (
        "coretemp|Package id 0|71000|100000|100000"
    ),
    "/sys/class/hwmon/hwmon10/{name,temp1_label,temp1_input,temp1_max,temp1_crit}": (
        "nvme|Composite|38850|84850|65261850"
    ),
    "/sys/class/power_supply/BAT0/{status,power_now}": "Discharging|8120000",
    "/sys/class/power_supply/BAT1/{status,voltage_now,current_now}": "Full|12000000|0",
    "/sys/class/drm/card1/device/gpu_busy_percent": "12",
    "/sys/devices/system/cpu/cpu0/thermal_throttle/{core,package}_throttle_count": "4|9",
    "/sys/firmware/acpi/platform_profile": "balanced",
    "/proc/meminfo": MEMINFO.format(total=32620560, available=20971520, swap=8388604),
    "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    "/proc/self/cgroup": "0::/user.slice/app.slice",
    "/sys/fs/cgroup/user.slice/memory.{max,current}": "max|123456",
    "/sys/block/{nvme0n1,dm-0}/stat": f"{STAT.format(sectors=50)}|{STAT.format(sectors=49)}",
}

LIMITED_CONTAINER = {
    "/proc/meminfo": MEMINFO.format(total=32620560, available=20971520, swap=0),
    "/proc/self/cgroup": "0::/",
    "/sys/fs/cgroup/memory.{max,current}": "2147483648|1610612736",
    "/sys/fs/cgroup/memory.stat": "anon 1\nfile 2\ninactive_file 268435456\nactive_file 3",
}

EMPTY_CONTAINER: dict[str, str] = {}

#: Nothing that it says is of use.
NONSENSE = {
    "/proc/device-tree/model": "",
    "/etc/nvpmodel.conf": "nothing",
    "/var/lib/nvpmodel/status": "pmode:",
    "/sys/class/thermal/thermal_zone{0,1,2}/type": "cpu-thermal||far",
    "/sys/class/thermal/thermal_zone{0,1,2}/temp": "warm|40000|9999999",
    "/sys/class/thermal/thermal_zone0/trip_point_0_{type,temp}": "passive|soon",
    "/sys/class/hwmon/hwmon0/{name,in1_label,in1_input}": "ina3221|VDD_IN|5000",
    "/sys/class/hwmon/hwmon1/{name,oc1_event_cnt}": "soctherm_oc|many",
    "/sys/class/devfreq/17000000.gpu/device/{of_node/name,load}": "gpu|busy",
    "/sys/class/power_supply/BAT0/status": "Discharging",
    "/sys/devices/platform/soc/soc:firmware/get_throttled": "no",
    "/proc/meminfo": "MemTotal: much\nMemAvailable: some kB",
    "/proc/pressure/memory": "none",
    "/sys/block/sda/stat": "1 2 3",
    "/sys/block/sda/device/life_time": "long",
}

TREES = {
    "Orin Nano, JetPack 6": ORIN_NANO_JETPACK_6,
    "Orin, JetPack 7": ORIN_JETPACK_7,
    "Thor": THOR,
    "Raspberry Pi 5": RASPBERRY_PI_5,
    "laptop": LAPTOP,
    "container with a limit": LIMITED_CONTAINER,
    "container with nothing": EMPTY_CONTAINER,
    "nonsense": NONSENSE,
}


def plant(root: Path, tree: dict[str, str]) -> str:
    """Write a tree under the root; which is returned as the sampler takes it."""
    for pattern, content in tree.items():
        paths = _spelt_out(pattern)
        for path, text in zip(paths, content.split("|") if len(paths) > 1 else [content], strict=True):
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("^", "\0"))
    return str(root)


def _spelt_out(pattern: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    return [
        path
        for word in found[1].split(",")
        for path in _spelt_out(pattern[: found.start()] + word + pattern[found.end() :])
    ]
