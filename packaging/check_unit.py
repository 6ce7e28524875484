#!/usr/bin/env python3
"""Prove the systemd unit by letting a real systemd run it, hardening and all.

    python3 packaging/build.py --target x86_64 --python 3.10,3.11,3.12
    python3 packaging/build_deb.py --target x86_64
    python3 packaging/check_unit.py

Boots a Debian 12 of this machine's own architecture in namespaces without network (about a minute to make, then kept),
installs the package, and checks what systemd makes of it: ready, a job done in the service and one in a handler's
process, killed and back, hung and back, stopped with nothing left, installed again with its data, purged. As root; exit
code 3, and a line that begins with SKIPPED, where that cannot be done.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import arm64_rootfs
from arm64_rootfs import CACHE, SUITE, Unavailable
from check_arm64 import DIST, EXIT_SKIPPED, Failed, expect, newest, step

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = "systemd,systemd-sysv,dbus,python3,zlib1g,init-system-helpers"
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
#: The unified hierarchy, where systemd can have a branch of its own.
HIERARCHIES = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
NAMESPACES = (*arm64_rootfs.NAMESPACES, "--cgroup")
PATIENCE_S = 120.0
BOOT = """
mount --bind "$1" "$1" && cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs tmpfs sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --bind /dev dev
"$2" -c 'import sys; sys.path.insert(0, sys.argv[1]); import arm64_rootfs; arm64_rootfs.bring_up_loopback()' "$3"
exec env -i container=jobd PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /sbin/init --show-status=0
"""
HANDLER = """
import os
def ask(payload, ctx):
    groups = [line.split(":")[0] for line in open("/etc/group") if int(line.split(":")[2]) in os.getgroups()]
    return {"groups": sorted(groups), "usr": os.access("/usr", os.W_OK), "home": os.path.exists("/home/there")}
"""
TASKS = """
[tasks.ask]
run = "python"
handler = "mine:ask"
isolate = true
"""
COUNT = """
import json, urllib.request
print(len(json.load(urllib.request.urlopen("http://127.0.0.1:7433/v1/jobs"))["jobs"]))
"""
SHORT_WATCHDOG = "[Service]\nWatchdogSec=5\n"


class Host:
    """A booted Debian."""

    def __init__(self, root: Path) -> None:
        self.root = root
        hierarchy = next((path for path in HIERARCHIES if (path / "cgroup.procs").exists()), None)
        if hierarchy is None:
            raise Unavailable("there is no cgroup v2 hierarchy to give systemd a branch of")
        self._branch = hierarchy / f"jobd-check-{os.getpid()}"
        self._branch.mkdir()
        here = str(Path(__file__).resolve().parent)
        self._outer = subprocess.Popen(
            [*NAMESPACES, "sh", "-ec", BOOT, "sh", str(root), sys.executable, here],
            preexec_fn=lambda: (self._branch / "cgroup.procs").write_text(str(os.getpid())) and None,
        )

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command inside; its output."""
        init = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()[0]
        inside = [
            "nsenter",
            "--target",
            init,
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--uts",
            "--cgroup",
            "--root",
            "--wd",
        ]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run([*inside, *command], env=environment, capture_output=True, text=True)
        wanted = f"`{' '.join(command)}` to succeed; exit code {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
        expect(done.returncode == 0 or not check, wanted)
        return done.stdout.strip()

    def is_up(self) -> bool:
        return self.run("systemctl", "is-system-running", check=False) in ("running", "degraded")

    def unit(self, name: str) -> str:
        return self.run("systemctl", "show", "--property", name, "--value", "jobd.service")

    def processes(self) -> list[str]:
        """The processes of the unit, by their pids outside of the namespace."""
        files = [path for path in self._branch.rglob("cgroup.procs") if "jobd.service" in path.parts]
        return [pid for path in files for pid in path.read_text().split()]

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if is_so():
                    return
            except (OSError, IndexError):
                pass  # not booted so far
            time.sleep(0.3)
        raise Failed(f"expected within {PATIENCE_S:.0f} s that {what}")

    def close(self) -> None:
        self._outer.kill()  # and its child, init, and with that one everything inside
        self._outer.wait()
        folders = sorted(self._branch.rglob("*/"), key=lambda path: len(path.parts), reverse=True)
        deadline = time.monotonic() + 10
        for folder in [*(path for path in folders if path.is_dir()), self._branch]:
            while folder.exists() and time.monotonic() < deadline:
                try:
                    folder.rmdir()
                except OSError:
                    time.sleep(0.1)  # its last process is just going


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, default=DIST, metavar="DIR", help="where the package is (default: dist)")
    options = parser.parse_args()
    architecture = ARCHITECTURES[platform.machine()]
    deb = newest(options.dist, f"jobd_*_{architecture}.deb", "build_deb.py")
    with tempfile.TemporaryDirectory(prefix="jobd-unit-") as scratch:
        try:
            kept = step("root file system", lambda: files(architecture))
            root = Path(scratch, "root")
            subprocess.run(["cp", "--archive", "--reflink=auto", str(kept), str(root)], check=True)
            host = Host(root)
        except Unavailable as error:
            print(f"SKIPPED: the unit was NOT run: {error}", flush=True)
            return EXIT_SKIPPED
        try:
            check(host, deb)
        except Failed as error:
            print(f"failed: {error}", flush=True)
            return 1
        finally:
            host.close()
    print("systemd runs the unit", flush=True)
    return 0


def files(architecture: str) -> Path:
    if os.geteuid() != 0:
        raise Unavailable("it takes root to boot a system in namespaces")
    if not shutil.which("mmdebstrap"):
        arm64_rootfs.install(["mmdebstrap"])
    folder = CACHE / f"{SUITE}-{architecture}-systemd"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".new-") as staging:
            command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", SUITE, f"{staging}/root"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise Unavailable(f"mmdebstrap failed: {done.stderr.strip()[-300:]}")
            Path(staging, "root", "etc", "machine-id").write_text("")
            Path(staging, "root").rename(folder)
    return folder


def check(host: Host, deb: Path) -> None:
    shutil.copy(deb, host.root / "root" / "jobd.deb")
    (host.root / "home" / "there").mkdir()
    step("boot", lambda: host.until("systemd is up", host.is_up))
    step("install", lambda: host.run("dpkg", "--install", "/root/jobd.deb"))
    expect(host.unit("ActiveState") == "active", f"the service active, not {host.unit('ActiveState')}")
    step("a job in the service", lambda: submit(host, "chat"))
    step("a job in a handler's process", lambda: check_handler(host))
    step("killed and back", lambda: check_comes_back(host, "KILL"))
    drop_in = host.root / "etc/systemd/system/jobd.service.d"
    drop_in.mkdir()
    (drop_in / "watchdog.conf").write_text(SHORT_WATCHDOG)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "jobd")
    step("hung and back", lambda: check_comes_back(host, "STOP"))
    step("reload", lambda: host.run("systemctl", "reload", "jobd"))
    step("install again", lambda: host.run("dpkg", "--install", "/root/jobd.deb"))
    expect(int(host.run("python3", "-c", COUNT)) >= 4, "all jobs still there")
    step("stop", lambda: host.run("systemctl", "stop", "jobd"))
    expect(host.unit("Result") == "success", f"a clean stop, not {host.unit('Result')}")
    expect(not host.processes(), f"no process left of the unit, and there are {host.processes()}")
    step("purge", lambda: host.run("dpkg", "--purge", "jobd"))
    expect(not (host.root / "var/lib/jobd").exists(), "no data left by a purge")


def submit(host: Host, task: str) -> str:
    return host.run("jobd", "submit", task, "--payload", "{}", "--wait")


def check_handler(host: Host) -> None:
    (host.root / "usr/local/lib/jobd/mine.py").write_text(HANDLER)
    with (host.root / "etc/jobd/jobd.toml").open("a") as config:
        config.write(TASKS)
    host.run("systemctl", "restart", "jobd")
    answer = json.loads(submit(host, "ask"))
    wanted = {"groups": ["jobd", "render", "video"], "usr": False, "home": False}
    expect(answer == wanted, f"a handler to see {wanted}, not {answer}")


def check_comes_back(host: Host, signal: str) -> None:
    """However its process ends or hangs, systemd starts it again, and the servers that were left are dealt with."""
    before = host.unit("MainPID")
    host.run("systemctl", "kill", f"--signal={signal}", "--kill-who=main", "jobd")
    host.until("it is back", lambda: host.unit("MainPID") not in ("0", before) and host.unit("ActiveState") == "active")
    submit(host, "chat")


if __name__ == "__main__":
    sys.exit(main())
