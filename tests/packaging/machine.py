"""A machine of a test's own for the one file: its /var/cache, /var/tmp, /tmp and home, mounted as the test says.

Each command runs in a mount namespace where folders of the test stand at those paths. As the user it runs in a user
namespace too, where everything of root's belongs to uid 1000 and what another uid owns belongs to nobody.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

#: By the names that tests use for them.
PATHS = {"cache": "/var/cache", "vartmp": "/var/tmp", "tmp": "/tmp", "home": "/home"}
USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
SITE = "/mnt/site"


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pyz = folder / "jobd.pyz"
        for name in (*PATHS, "site"):
            (folder / name).mkdir()
            (folder / name).chmod(0o755)
        #: Options of mount(8) by place: "remount,bind,noexec", "tmpfs:size=64k".
        self.mounts: dict[str, str] = {}

    def at(self, path: str) -> Path:
        """Where a path of the machine is for the test."""
        for name, place in PATHS.items():
            if path.startswith(place + "/"):
                return self.folder / name / path[len(place) + 1 :]
        raise ValueError(path)

    def start(self, *arguments: str, as_root: bool = False, **variables: str) -> subprocess.Popen[str]:
        script = f"mount --bind {shlex.quote(str(self.folder))} /mnt\n"
        script += "".join(self._mount(name, path) for name, path in PATHS.items())
        command = [*(() if as_root else USER), sys.executable, "/mnt/jobd.pyz", *arguments]
        script += f"exec {shlex.join(command)}"
        environment = {"PATH": os.environ["PATH"], "HOME": "/root" if as_root else "/home/me", "PYTHONPATH": SITE}
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", script],
            cwd="/",
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, as_root: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, as_root=as_root, **variables)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def _mount(self, name: str, path: str) -> str:
        options = self.mounts.get(name, "")
        if options.startswith("tmpfs:"):
            return f"mount -t tmpfs -o {options[6:]} tmpfs {path}\n"
        bound = f"mount --bind /mnt/{name} {path}\n"
        return bound + (f"mount -o {options} {path}\n" if options else "")


def new_machine() -> Machine:
    """Skips where namespaces cannot be made."""
    probe = subprocess.run(["unshare", "--mount", *USER, "true"], capture_output=True, text=True)
    if os.geteuid() != 0 or probe.returncode != 0:
        pytest.skip(f"NOT CHECKED: unpacking needs root and namespaces here: {probe.stderr.strip()}")
    if hidden := [path for path in PATHS.values() if sys.executable.startswith(f"{path}/")]:
        pytest.skip(f"NOT CHECKED: the machine of these tests has its own {hidden[0]}, where this Python lies")
    folder = Path(tempfile.mkdtemp(prefix="jobd-machine-"))
    folder.chmod(0o755)
    return Machine(folder)


def remove(machine: Machine) -> None:
    shutil.rmtree(machine.folder)
