#!/usr/bin/env python3
"""Prove the aarch64 file and package by running them: arm64 Debian, emulated, without network.

    python3 packaging/build.py --target aarch64 --python 3.10,3.11,3.12
    python3 packaging/build_deb.py --target aarch64
    python3 packaging/check_arm64.py                  both; with --only pyz or --only deb, that one
    python3 packaging/check_arm64.py --only pyz --python 3.10,3.12     with these instead of Debian's own

Debian's Python there is 3.11, so the file must be built for it too; see arm64_python.py for the others, and
arm64_rootfs.py for what it needs besides root. Where the kernel does not let qemu run single programs, a whole machine
is emulated (arm64_machine.py). Exit code 3, and a line that begins with SKIPPED, where neither can be had.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import arm64_machine
import arm64_python
import arm64_rootfs
from arm64_rootfs import CPU, NAMESPACES, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

DIST = Path(__file__).resolve().parent.parent / "dist"
EXIT_SKIPPED = 3
START_S, JOB_S, STOP_S = 180.0, 60.0, 60.0
PORT = 7433
SERVE = ("serve", "--config", "/etc/jobd/jobd.toml")
#: By path, what the package must leave behind: mode and owner.
INSTALLED = {
    "usr/bin/jobd": ("-rwxr-xr-x", "root"),
    "usr/lib/jobd/jobd.pyz": ("-rw-r--r--", "root"),
    "usr/lib/systemd/system/jobd.service": ("-rw-r--r--", "root"),
    "etc/jobd/jobd.toml": ("-rw-r--r--", "root"),
    "etc/systemd/system/multi-user.target.wants/jobd.service": ("lrwxrwxrwx", "root"),
    "var/lib/jobd": ("drwx------", "jobd"),
    "var/cache/jobd": ("drwxr-xr-x", "root"),
    "usr/local/lib/jobd": ("drwxr-xr-x", "root"),
}


class Failed(Exception):
    """What was expected and what was found."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("pyz", "deb"))
    parser.add_argument("--dist", type=Path, default=DIST, metavar="DIR", help="where both are (default: dist)")
    parser.add_argument("--python", metavar="3.X,3.Y", default="", help="run the file alone with these")
    parser.add_argument("--machine", action="store_true", help="boot a whole emulated machine, whatever else works")
    parser.add_argument("--view", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        return check(options, options.view)
    if options.root:
        return inside(options)
    try:
        return outside(options)
    except Unavailable as error:
        print(f"SKIPPED: the aarch64 file was NOT run: {error}", flush=True)
        return EXIT_SKIPPED


def outside(options: argparse.Namespace) -> int:
    root = step("root file system", arm64_rootfs.files)
    pythons = {minor: step(f"Python 3.{minor}", partial(arm64_python.prepare, minor)) for minor in minors(options)}
    try:
        if options.machine:
            raise Unavailable("a whole machine is asked for")
        arm64_rootfs.register()
    except Unavailable as error:
        print(f"booting a whole arm64 machine: {error}", flush=True)
        return boot(options, root, pythons.values())
    command = [sys.executable, __file__, *sys.argv[1:], "--root", str(root)]
    return subprocess.run([*NAMESPACES, *command]).returncode


def boot(options: argparse.Namespace, root: Path, pythons: Iterable[Path]) -> int:
    given = ["--view", "/", "--dist", arm64_machine.DIST]
    given += ["--only", options.only] if options.only else []
    given += ["--python", options.python] if options.python else []
    wanted = [pyz_of(options.dist)] if options.only != "deb" else []
    wanted += [deb_of(options.dist)] if options.only != "pyz" else []
    files = {f"{arm64_machine.DIST}/{file.name}": file for file in wanted}
    return arm64_machine.run(
        root, {**files, **{f"/root/.cache/jobd-check/{made.name}": made for made in pythons}}, given
    )


def inside(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return check(options, arm64_rootfs.mount(options.root, Path(scratch)))
        finally:
            subprocess.run(["umount", "--lazy", scratch])


def check(options: argparse.Namespace, view: Path) -> int:
    try:
        if options.only != "deb":
            for python in [install_python(view, minor) for minor in minors(options)] or ["/usr/bin/python3"]:
                check_pyz(view, pyz_of(options.dist), python)
        if options.only != "pyz":
            check_deb(view, deb_of(options.dist))
    except Failed as error:
        print(f"failed: {error}", flush=True)
        return 1
    print("the aarch64 file runs", flush=True)
    return 0


def minors(options: argparse.Namespace) -> list[int]:
    return [int(python.removeprefix("3.")) for python in options.python.split(",") if python]


def install_python(view: Path, minor: int) -> str:
    folder = Path("opt") / f"python-3.{minor}"
    shutil.copytree(arm64_python.prepare(minor), view / folder)
    return f"/{folder}/{arm64_python.PROGRAM}"


def pyz_of(dist: Path) -> Path:
    return newest(dist, "jobd-aarch64.pyz", "build.py")


def deb_of(dist: Path) -> Path:
    return newest(dist, "jobd_*_arm64.deb", "build_deb.py")


def newest(dist: Path, pattern: str, maker: str) -> Path:
    found = sorted(dist.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit(f"no {pattern} in {dist}; make it first with packaging/{maker}")
    return found[-1]


# -- the file alone -------------------------------------------------------------------------------------------------


def check_pyz(view: Path, pyz: Path, python: str) -> None:
    """As root on a bare system: unpack, start, run a job with both servers as another user, stop."""
    shutil.copy(pyz, view / "root" / "jobd.pyz")
    start = [python, "/root/jobd.pyz"]
    output = step(f"first start ({python})", lambda: chroot(view, *start, "version"))
    expect("aarch64" in output and "Postgres 18" in output, f"`version` said {output!r}")
    step("serve, a job, stop", lambda: serve_one_job(view, [*start, "serve"]))
    trees = os.listdir(view / "var/cache/jobd")
    expect(len(trees) == 1, f"one tree in /var/cache/jobd, not {trees}")
    shutil.rmtree(view / "var/cache/jobd")
    shutil.rmtree(view / "var/lib/jobd")


def serve_one_job(view: Path, command: list[str], *, user: str = "root:root") -> None:
    daemon = subprocess.Popen(
        ["chroot", f"--userspec={user}", str(view), *command], env=environment(), stdout=sys.stderr
    )
    try:
        wait_for("/readyz answers", lambda: call("/readyz"), START_S, daemon)
        job = call("/v1/jobs", {"task": "chat", "payload": {"text": "hello"}})
        where = f"/v1/jobs/{job['job_id']}"
        wait_for("the job is done", lambda: call(where)["status"] == "done", JOB_S, daemon)
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(STOP_S)
    finally:
        daemon.kill()
    expect(code == 0, f"exit code 0 after SIGTERM, not {code}")


def call(path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def wait_for(what: str, is_so: Any, within_s: float, daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        expect(daemon.poll() is None, f"jobd to run until {what}, and it ended with exit code {daemon.returncode}")
        try:
            if is_so():
                return
        except OSError:
            pass  # not there yet, or not ready
        time.sleep(0.3)
    raise Failed(f"expected within {within_s:.0f} s that {what}")


# -- the package ----------------------------------------------------------------------------------------------------


def check_deb(view: Path, deb: Path) -> None:
    """Install, run as the unit would, install again, remove, purge."""
    shutil.copy(deb, view / "root" / "jobd.deb")
    step("dpkg --install", lambda: chroot(view, "dpkg", "--install", "/root/jobd.deb"))
    check_installed(view)
    (view / "run/jobd").mkdir(exist_ok=True)  # systemd would, by RuntimeDirectory
    os.chown(view / "run/jobd", (view / "var/lib/jobd").stat().st_uid, -1)
    step("serve as jobd, a job, stop", lambda: serve_one_job(view, ["/usr/bin/jobd", *SERVE], user="jobd:jobd"))
    expect((view / "var/lib/jobd/postgres/PG_VERSION").exists(), "data in /var/lib/jobd")
    step("dpkg --install again", lambda: chroot(view, "dpkg", "--install", "/root/jobd.deb"))
    step("dpkg --remove", lambda: chroot(view, "dpkg", "--remove", "jobd"))
    expect((view / "var/lib/jobd/postgres/PG_VERSION").exists(), "data kept by a removal")
    expect((view / "etc/jobd/jobd.toml").exists(), "configuration kept by a removal")
    expect(not (view / "var/cache/jobd").exists(), "no unpacked program after a removal")
    step("dpkg --purge", lambda: chroot(view, "dpkg", "--purge", "jobd"))
    left = [path for path in INSTALLED if os.path.lexists(view / path)]
    expect(not left, f"nothing left by a purge, and there is {left}")


def check_installed(view: Path) -> None:
    chroot(view, "dpkg", "--verify", "jobd")
    accounts = (view / "etc/passwd").read_text()
    uids = {line.split(":")[2]: line.split(":")[0] for line in accounts.splitlines()}
    for path, wanted in INSTALLED.items():
        expect(os.path.lexists(view / path), f"/{path} to be there")
        info = (view / path).lstat()
        found = stat.filemode(info.st_mode), uids[str(info.st_uid)]
        expect(found == wanted, f"/{path} to be {wanted}, not {found}")
    groups = [line for line in (view / "etc/group").read_text().splitlines() if line.startswith(("video:", "render:"))]
    expect(all("jobd" in line for line in groups) and len(groups) == 2, f"jobd in video and render, not {groups}")


# -- helpers --------------------------------------------------------------------------------------------------------


def chroot(view: Path, *command: str) -> str:
    done = subprocess.run(
        ["chroot", str(view), *command], env=environment(), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    output = (done.stdout + done.stderr).strip()
    expect(done.returncode == 0, f"`{' '.join(command)}` to succeed; exit code {done.returncode}: {output[-1500:]}")
    return output


def environment() -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "DEBIAN_FRONTEND": "noninteractive",
        # Else zoneinfo asks sysconfig, whose data the assembled Python lacks; the Pythons of a board have them.
        "PYTHONTZPATH": "/usr/share/zoneinfo",
        **CPU,
    }


def step(name: str, do: Any) -> Any:
    started = time.monotonic()
    result = do()
    print(f"ok  {name}  ({time.monotonic() - started:.0f} s)", flush=True)
    return result


def expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise Failed(f"expected {what}")


if __name__ == "__main__":
    sys.exit(main())
