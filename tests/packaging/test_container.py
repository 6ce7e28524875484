"""The recipe of the container image.

Nothing here can fetch its base image. So the slow test carries the steps out on an overlay of this machine, where
namespaces can be made; the rest reads the recipe.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobd.config import load as config_load
from tests.packaging.test_files import build, copy_sources
from tests.support.daemon import TOP, Jobd

pytestmark = pytest.mark.timeout(600)

RECIPE = (TOP / "packaging" / "Containerfile").read_text("utf-8")
#: As an image is built: the account is new, the file is there, everything that is written is forgotten afterwards.
ON_AN_OVERLAY = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
for folder in tmp var/cache run; do mount -t tmpfs tmpfs "$1/root/$folder"; done
cp "$2" "$1/root/tmp/jobd-x86_64.pyz"
touch "$1/root/tmp/jobd-aarch64.pyz"
cp "$3" "$1/root/tmp/steps"
ip link set lo up
exec chroot "$1/root" /bin/sh -e /tmp/steps
"""
STEPS = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
userdel jobd 2>/dev/null || true
TARGETARCH=amd64
{run}
cd {workdir}
inside="setpriv --reuid={user} --regid={user} --clear-groups env -i PATH=$PATH HOME=/data {env}"
$inside {entry} serve || echo "without a token: $?"
$inside {entry} token create --name me --scope admin > /dev/null
$inside {entry} serve &
until $inside {health}; do sleep 0.5; kill -0 $!; done 2>/dev/null
echo healthy
kill -{signal} $!
wait $!
echo "stopped: $?"
"""


def instructions() -> dict[str, str]:
    """Each instruction of the recipe with its argument; none but COPY, RUN and ENV need to be there more than once."""
    text = re.sub(r"^#.*\n", "", RECIPE, flags=re.MULTILINE).replace("\\\n", " ")
    pairs = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    assert len({name for name, _ in pairs}) == len(pairs), "an instruction is there twice"
    return dict(pairs)


def variables() -> dict[str, str]:
    return dict(part.split("=", 1) for part in shlex.split(instructions()["ENV"]))


def health_command() -> list[str]:
    found: list[str] = json.loads(instructions()["HEALTHCHECK"].partition("CMD ")[2])
    return found


def test_every_variable_is_an_option_and_the_volume_is_where_the_data_goes() -> None:
    options = {name: value for name, value in variables().items() if name.startswith("JOBD_")}

    config = config_load.load(None, options, {}).config

    assert config.data_dir == instructions()["VOLUME"]
    assert str(config.server.port) == instructions()["EXPOSE"]
    assert not config.server.insecure


def test_it_does_not_run_as_root_and_drains_when_it_is_stopped() -> None:
    assert instructions()["USER"] == "jobd"
    assert instructions()["STOPSIGNAL"] == "SIGTERM"
    assert (json.loads(instructions()["ENTRYPOINT"]), json.loads(instructions()["CMD"])) == (["jobd"], ["serve"])


def test_both_architectures_have_their_file() -> None:
    subprocess.run(["sh", "-n", "-c", instructions()["RUN"]], check=True)

    assert instructions()["COPY"].split()[:2] == ["dist/jobd-x86_64.pyz", "dist/jobd-aarch64.pyz"]
    assert re.search(r"amd64\|x86_64\) machine=x86_64 ;; arm64\|aarch64\) machine=aarch64", instructions()["RUN"])


def test_health_check_passes_with_a_jobd_and_fails_without(folder: Path) -> None:
    shared = Jobd(folder / "data").start().until_ready()
    command = [sys.executable, *health_command()[1:]]
    elsewhere = [part.replace("127.0.0.1:7433", "127.0.0.1:9") for part in command]
    here = [part.replace("127.0.0.1:7433", shared.address) for part in command]

    codes = [subprocess.run(command, capture_output=True).returncode for command in (here, elsewhere)]
    shared.clean_up()

    assert codes[0] == 0
    assert codes[1] != 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="NOT CHECKED: the system has no Python of its own")
def test_steps_of_the_recipe_make_a_jobd_that_serves_without_root(tmp_path: Path) -> None:
    probe = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True)
    if os.geteuid() != 0 or probe.returncode != 0 or not shutil.which("setpriv") or not shutil.which("ip"):
        pytest.skip("NOT CHECKED: the recipe needs root, namespaces, setpriv and ip here")
    minor = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(sys.version_info[1])"], capture_output=True, text=True, check=True
    )
    pyz = build(copy_sources(TOP, tmp_path / "sources"), tmp_path, "x86_64", [int(minor.stdout)])
    known = instructions()
    user = re.search(r"--uid (\d+)", known["RUN"])
    assert user
    steps = STEPS.format(
        run=known["RUN"],
        workdir=known["WORKDIR"],
        user=user[1],
        env=known["ENV"],
        entry=shlex.join(json.loads(known["ENTRYPOINT"])),
        health=shlex.join(health_command()),
        signal=known["STOPSIGNAL"].removeprefix("SIG"),
    )
    (tmp_path / "steps").write_text(steps)
    (tmp_path / "overlay").mkdir()

    arguments = [str(tmp_path / "overlay"), str(pyz), str(tmp_path / "steps")]
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", ON_AN_OVERLAY, "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "without a token: 71" in done.stdout
    assert "healthy\nstopped: 0\n" in re.sub(r"(?m)^(jobd|page|try).*\n", "", done.stdout)
