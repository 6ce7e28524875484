"""Both files, built from the lock: what is in them, that they are the same each time, and that they run.

The aarch64 one runs too, in an emulated arm64 Debian; where that cannot be had, the step says so and is skipped.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import contents
import pytest
from wheels import File

from tests.packaging.serving import run_first_job, served
from tests.support.daemon import TOP

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(600)

#: JetPack 6 and 7, and the Python that it will be run with: this one here, and that of the emulated Debian.
X86_MINORS = sorted({10, 12, sys.version_info.minor})
ARM_MINORS = [10, 11, 12]
#: For two Pythons, and for each one more.
MAX_BYTES, MORE_BYTES = 25_000_000, 2_000_000


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """A copy, so that both builds see the same sources whatever happens to the checkout meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        yield copy_sources(TOP, Path(folder, "sources"))


@pytest.fixture
def x86_64_file(sources: Path) -> Iterator[Path]:
    """For this Python alone, which will run it; in a folder open to all, since the servers are another user."""
    folder = Path(tempfile.mkdtemp(prefix="jobd-dist-"))
    folder.chmod(0o755)
    yield build(sources, folder, "x86_64", [sys.version_info.minor])
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def dist(sources: Path) -> Iterator[Path]:
    """Both files and the arm64 package."""
    folder = Path(tempfile.mkdtemp(prefix="jobd-dist-"))
    for target, minors in {"x86_64": X86_MINORS, "aarch64": ARM_MINORS}.items():
        build(sources, folder, target, minors)
    run_script(sources, "build_deb.py", "--target", "aarch64", "--out", str(folder))
    yield folder
    shutil.rmtree(folder)


def copy_sources(top: Path, to: Path) -> Path:
    to.mkdir()
    for name in ("jobd", "packaging", "config"):
        shutil.copytree(top / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "jobd.toml", "requirements.lock"):
        shutil.copyfile(top / name, to / name)
    return to


def build(sources: Path, out: Path, target: str, minors: list[int], **variables: str) -> Path:
    pythons, wheels = ",".join(f"3.{minor}" for minor in minors), str(TOP / "dist" / "wheels")
    arguments = ["--target", target, "--python", pythons, "--out", str(out), "--wheels", wheels]
    run_script(sources, "build.py", *arguments, **variables)
    return out / f"jobd-{target}.pyz"


def run_script(sources: Path, name: str, *arguments: str, **variables: str) -> None:
    command = [sys.executable, str(sources / "packaging" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stdout + done.stderr


def trees_of(pyz: Path) -> dict[int, dict[str, File]]:
    """Every file by Python and path, read by the format's own rules."""
    with zipfile.ZipFile(pyz) as archive:
        assert archive.testzip() is None
        manifest, payload = json.loads(archive.read("manifest.json")), io.BytesIO(archive.read("files.bin"))
        about = json.loads(archive.read("_jobd_about.py").partition(b"=")[2])
    trees: dict[int, dict[str, File]] = {int(tag[3:]): {} for tag in about["trees"]}
    for tag, path, mode, offset, packed, _, _ in manifest:
        payload.seek(offset)
        file = File(zlib.decompress(payload.read(packed)), bool(mode & stat.S_IXUSR))
        for minor in trees if tag == "all" else [int(tag[3:])]:
            trees[minor][path] = file
    return trees


# -- what is in them ------------------------------------------------------------------------------------------------


@pytest.mark.of_build
@pytest.mark.parametrize("target", ["aarch64", "x86_64"])
def test_file_is_small_and_every_program_in_it_fits_its_target(dist: Path, target: str) -> None:
    pyz = dist / f"jobd-{target}.pyz"

    trees = trees_of(pyz)

    assert {10, 12} <= set(trees)
    assert pyz.stat().st_size <= MAX_BYTES + MORE_BYTES * (len(trees) - 2)
    for minor, files in trees.items():
        assert contents.faults(files, minor, target) == []
        servers = [path for path in files if path.endswith(("/bin/postgres", "/bin/initdb", "/valkey-server"))]
        assert len(servers) == 3
        assert all(files[path].executable for path in servers)
        assert any(f".cpython-3{minor}-" in path for path in files)
        assert ("tomli/__init__.py" in files) == (minor == 10)


@pytest.mark.of_build
def test_file_built_again_elsewhere_is_the_same_to_the_byte(sources: Path, dist: Path, tmp_path: Path) -> None:
    elsewhere = copy_sources(sources, tmp_path / "elsewhere")
    for path in elsewhere.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o700)

    again = build(elsewhere, tmp_path, "x86_64", X86_MINORS, TZ="Pacific/Apia", PYTHONHASHSEED="7")

    assert again.read_bytes() == (dist / again.name).read_bytes()


# -- they run -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT CHECKED: this machine cannot run the x86_64 file")
def test_x86_64_file_serves_a_job_and_stops_cleanly(x86_64_file: Path, tmp_path: Path) -> None:
    home = x86_64_file.parent / "run"
    home.mkdir(mode=0o755)
    command = [
        sys.executable,
        str(x86_64_file),
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(home / "data"),
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    with served(command, environment, tmp_path / "log") as address:
        assert run_first_job(address) == "done"


@pytest.mark.of_build
def test_aarch64_package_runs_in_an_emulated_arm64_debian(dist: Path) -> None:
    """Install, serve a job as the unit would, SIGTERM, install again, remove, purge."""
    run_check("check_arm64.py", "--dist", str(dist), "--only", "deb", says="the aarch64 file runs")


@pytest.mark.slow
@pytest.mark.parametrize("python", [[], ["--python", "3.10,3.12"]], ids=["debian", "jetpack"])
def test_aarch64_file_alone_runs_in_an_emulated_arm64_debian(dist: Path, python: list[str]) -> None:
    run_check("check_arm64.py", "--dist", str(dist), "--only", "pyz", *python, says="the aarch64 file runs")


@pytest.mark.slow
def test_whole_arm64_machine_tells_of_a_file_that_does_not_run(tmp_path: Path) -> None:
    """Booted because a container's root may not let qemu run single programs."""
    (tmp_path / "jobd-aarch64.pyz").write_text("raise SystemExit('this is no jobd')")

    done = check_in_a_container("--dist", str(tmp_path), "--only", "pyz")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "booting a whole arm64 machine: qemu cannot be registered with the kernel" in done.stdout
    assert "`/usr/bin/python3 /root/jobd.pyz version` to succeed; exit code 1: this is no jobd" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_aarch64_package_runs_on_a_whole_arm64_machine(dist: Path) -> None:
    done = check_in_a_container("--dist", str(dist), "--only", "deb")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the aarch64 file runs" in done.stdout


def check_in_a_container(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Where root is not allowed to mount anything, and nobody has mounted binfmt_misc."""
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("NOT CHECKED: no whole arm64 machine was booted, which takes unshare and root")
    cage = "if mountpoint -q $0; then umount -l $0; fi; exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin $@"
    check = [sys.executable, str(TOP / "packaging" / "check_arm64.py"), *arguments]
    command = ["unshare", "--mount", "sh", "-c", cage, "/proc/sys/fs/binfmt_misc", *check]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    return done


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="NOT CHECKED: this machine cannot run the x86_64 package")
def test_real_systemd_runs_the_unit(sources: Path, tmp_path: Path) -> None:
    """Under all of its hardening: jobs done, killed, hung and back, stopped with nothing left."""
    build(sources, tmp_path, "x86_64", [11])
    run_script(sources, "build_deb.py", "--target", "x86_64", "--out", str(tmp_path))

    run_check("check_unit.py", "--dist", str(tmp_path), says="systemd runs the unit")


def run_check(name: str, *arguments: str, says: str) -> None:
    command = [sys.executable, str(TOP / "packaging" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert says in done.stdout
