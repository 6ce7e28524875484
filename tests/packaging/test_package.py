"""The Debian package and the systemd unit in it."""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import build_deb
import bundle
import pytest
from wheels import File

from tests.support.daemon import TOP

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

ROOT = TOP / "packaging" / "root"
UNIT = ROOT / "usr/lib/systemd/system/jobd.service"
WORKER = UNIT.with_name("jobd-worker.service")
SCRIPTS = TOP / "packaging" / "debian"
MAX_EXPOSURE = 20  # tenths
#: A systemd before 254 says that it passes over these.
NEWER = ("Unknown key 'RestartSteps'", "Unknown key 'RestartMaxDelaySec'")


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(tool), reason=f"NOT CHECKED: {tool} is not here")


@pytest.fixture
def deb(tmp_path: Path) -> Path:
    return build(tmp_path / "one", tags=("cp310", "cp312"))


def build(out: Path, tags: tuple[str, ...], **variables: str) -> Path:
    trees = {tag: {"jobd/cli/main.py": File(b"", False)} for tag in tags}
    bundle.write(out / "jobd-aarch64.pyz", trees, version="1.2.dev3", target="aarch64", glibc="2.28")
    command = [sys.executable, str(TOP / "packaging" / "build_deb.py"), "--target", "aarch64", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **variables})
    (made,) = out.glob("*.deb")
    return made


def dpkg_deb(option: str, deb: Path, *more: str) -> str:
    done = subprocess.run(["dpkg-deb", option, deb, *more], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_package_is_the_same_when_built_again(tmp_path: Path, deb: Path) -> None:
    again = build(tmp_path / "two", ("cp310", "cp312"), TZ="Pacific/Apia", PYTHONHASHSEED="7")

    assert deb.name == "jobd_1.2~dev3_arm64.deb"
    assert deb.read_bytes() == again.read_bytes()


@needs("dpkg-deb")
def test_package_asks_for_exactly_the_pythons_that_it_carries(deb: Path) -> None:
    fields = dpkg_deb("--field", deb)

    assert "Version: 1.2~dev3" in fields
    assert "Architecture: arm64" in fields
    assert (
        "Depends: python3 (>= 3.10), python3 (<< 3.11) | python3 (>= 3.12), python3 (<< 3.13), libc6 (>= 2.28)"
        in fields
    )


@needs("dpkg-deb")
def test_package_installs_every_file_as_roots_with_its_mode(deb: Path) -> None:
    listed = [line.split() for line in dpkg_deb("--contents", deb).splitlines()]
    modes = {line[-1]: line[0] for line in listed}
    wanted = {f"./{path.relative_to(ROOT).as_posix()}" for path in ROOT.rglob("*") if path.is_file()}

    assert {line[1] for line in listed} == {"root/root"}
    assert wanted | {"./usr/lib/jobd/jobd.pyz"} <= set(modes)
    assert modes["./usr/bin/jobd"] == "-rwxr-xr-x"
    assert {mode for path, mode in modes.items() if path.endswith("/")} == {"drwxr-xr-x"}
    assert {mode for path, mode in modes.items() if not path.endswith(("/", "/bin/jobd"))} == {"-rw-r--r--"}


@needs("dpkg-deb")
def test_package_knows_its_checksums_and_keeps_the_configuration(tmp_path: Path, deb: Path) -> None:
    dpkg_deb("--raw-extract", deb, str(tmp_path / "x"))
    control = tmp_path / "x" / "DEBIAN"

    sums = [line.split("  ") for line in (control / "md5sums").read_text().splitlines()]

    assert (control / "conffiles").read_text() == "/etc/jobd/jobd.toml\n"
    assert all(hashlib.md5((tmp_path / "x" / path).read_bytes()).hexdigest() == found for found, path in sums)
    assert {path.name for path in control.iterdir() if path.stat().st_mode & 0o111} == {"postinst", "postrm", "prerm"}


@pytest.mark.parametrize("script", ["postinst", "postrm", "prerm"])
def test_maintainer_script_is_valid_and_stops_at_errors(script: str) -> None:
    path = SCRIPTS / script

    subprocess.run(["sh", "-n", path], check=True)

    assert path.read_text().startswith("#!/bin/sh\n")
    assert "\nset -e\n" in path.read_text()


@pytest.mark.parametrize(
    ("version", "expected"), [("1.0", "1.0"), ("0.1.0.dev0", "0.1.0~dev0"), ("2.0rc1", "2.0~rc1"), ("2.0b3", "2.0~b3")]
)
def test_versions_sort_as_debian_sorts_them(version: str, expected: str) -> None:
    assert build_deb.debian_version(version) == expected


# -- the unit -------------------------------------------------------------------------------------------------------


@needs("systemd-analyze")
@pytest.mark.parametrize("path", [UNIT, WORKER], ids=["jobd", "worker"])
def test_unit_is_understood_whole(tmp_path: Path, path: Path) -> None:
    """It exits 0 on unknown keys and only says so: nothing may be said."""
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/usr/bin/jobd", sys.executable))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )

    complaints = [line for line in (done.stdout + done.stderr).splitlines() if not any(key in line for key in NEWER)]
    assert (done.returncode, complaints) == (0, [])


@needs("systemd-analyze")
def test_unit_with_a_misspelt_key_would_be_noticed(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/bin/jobd", sys.executable).replace("KillMode=", "KilMode="))

    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)

    assert "KilMode" in done.stderr


@needs("systemd-analyze")
@pytest.mark.parametrize("path", [UNIT, WORKER], ids=["jobd", "worker"])
def test_exposure_of_the_unit_is_low(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={MAX_EXPOSURE}"]

    done = subprocess.run([*command, str(path)], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-600:] + done.stderr
    found = re.search(rf"exposure level for {re.escape(path.name)}: ([\d.]+)", done.stdout)
    assert found and float(found[1]) * 10 <= MAX_EXPOSURE


def section(path: Path, name: str) -> dict[str, str]:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    return dict(unit[name])


def test_worker_may_do_what_the_service_may_and_no_more() -> None:
    """Both run the same handlers; a setting that one of them gets must not be forgotten in the other."""
    of_worker = {"EnvironmentFile", "ExecStart", "StateDirectory", "TimeoutStartSec", "RestartPreventExitStatus"}
    of_service = of_worker | {"ExecReload", "RuntimeDirectory", "RuntimeDirectoryMode"}

    service, worker = section(UNIT, "Service"), section(WORKER, "Service")

    assert {key: value for key, value in worker.items() if key not in of_worker} == {
        key: value for key, value in service.items() if key not in of_service
    }


def test_worker_says_where_jobd_is_by_a_file_that_only_root_reads_and_waits_for_it() -> None:
    assert section(WORKER, "Unit")["ConditionPathExists"] == section(WORKER, "Service")["EnvironmentFile"]
    assert "77" in section(WORKER, "Service")["RestartPreventExitStatus"].split()


def test_state_of_the_worker_is_where_the_command_puts_it() -> None:
    from jobd.cli.worker import with_own_folder
    from jobd.config import load as config_load

    config = with_own_folder(config_load.load(ROOT / "etc/jobd/jobd.toml", {}, {}).config, None)

    assert config.data_dir == f"/var/lib/{section(WORKER, 'Service')['StateDirectory']}"


def test_unit_waits_for_the_time_where_something_sets_it() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(UNIT.read_text())

    assert "time-sync.target" in unit["Unit"]["After"].split()
    assert "time-sync.target" in unit["Unit"]["Wants"].split()


def test_stop_timeout_leaves_time_to_drain() -> None:
    drain_s = re.search(r"^drain_s = (\d+)$", (ROOT / "etc/jobd/jobd.toml").read_text(), re.MULTILINE)
    stop_s = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)

    assert drain_s and stop_s and int(drain_s[1]) + 10 <= int(stop_s[1])


def test_shipped_configuration_is_valid() -> None:
    from jobd.config import load as config_load

    loaded = config_load.load(ROOT / "etc/jobd/jobd.toml", {}, {})

    assert loaded.config.data_dir == "/var/lib/jobd"
    assert loaded.notes == []
