#!/usr/bin/env python3
"""Build what goes to the package index: wheel and sdist of `jobd-client` and of `jobd-server`.

    python3 packaging/distributions.py

`jobd-client` has all of the code, the command `jobd`, and the few dependencies that the client and the commands for a
jobd elsewhere need. `jobd-server` has no code: it requires `jobd-client` of the same version and everything that `jobd
serve` needs. So no file belongs to both but the command, and both can be in one environment and removed again.
`pip install .` in a checkout needs neither: it installs the code with all dependencies, as `jobd-server`.

pyproject.toml is the only source of metadata; setuptools, pinned by requirements-build.lock, does the building. The
same sources give the same bytes (SOURCE_DATE_EPOCH sets the time).
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import contents
from build_deb import epoch

try:
    from packaging.requirements import Requirement
except ImportError:  # wherever pip is, so is its copy
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]
if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

TOP = contents.TOP
LOCK = TOP / "requirements-build.lock"
CLIENT, SERVER = "jobd-client", "jobd-server"
CLIENT_DESCRIPTION = "Client and command line of jobd, a durable job daemon; jobd-server has the daemon itself"
#: setuptools changes sys.argv, so the folder is read first.
BUILD = """\
import sys
from setuptools import build_meta
out = sys.argv[1]
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TOP / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--repository", metavar="URL", help="public address of the sources, for the links of the index")
    options = parser.parse_args()
    for path in build_all(options.out, options.repository):
        print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")
    return 0


def build_all(out: Path, repository: str | None = None) -> list[Path]:
    """Both wheels and both sdists; none of them is there if one cannot be built."""
    with tempfile.TemporaryDirectory() as folder:
        backend, built = Path(folder, "backend"), Path(folder, "built")
        install_backend(backend)
        built.mkdir()
        for name in (CLIENT, SERVER):
            source = Path(folder, name)
            stage(source, name, repository)
            build(source, built, backend)
        for sdist in built.glob("*.tar.gz"):
            sdist.write_bytes(fixed_in_time(sdist.read_bytes()))
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.move(str(path), str(out / path.name))) for path in sorted(built.iterdir())]


def install_backend(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(LOCK), "--target", str(folder)]
    if subprocess.run(command).returncode != 0:
        raise SystemExit(f"pip could not install what {LOCK.name} names (see above)")


def build(source: Path, out: Path, backend: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(backend), "SOURCE_DATE_EPOCH": str(epoch())}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)], cwd=source, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"setuptools could not build {source.name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


# -- what each of them is -------------------------------------------------------------------------------------------


def stage(folder: Path, name: str, repository: str | None) -> None:
    """A folder that setuptools builds the distribution from."""
    folder.mkdir()
    text = (TOP / "pyproject.toml").read_text("utf-8")
    project = project_of(name, read_pyproject(), repository)
    backend = text[: text.index("[project]")]
    if name == CLIENT:
        for path, file in contents.package_files().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(file.content)
        tools = text[text.index("[tool.setuptools.packages.find]") : text.index("[tool.ruff]")]
    else:
        tools = "[tool.setuptools]\npackages = []\n"
    (folder / "pyproject.toml").write_text(f"{backend}{toml_of(project)}\n{tools}", "utf-8")
    for file_name in ("LICENSE", "README.md"):
        shutil.copyfile(TOP / file_name, folder / file_name)


def read_pyproject() -> dict[str, Any]:
    return tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))


def project_of(name: str, pyproject: dict[str, Any], repository: str | None) -> dict[str, Any]:
    """The table [project] of one of the two."""
    project = dict(pyproject["project"])
    if project.pop("dynamic") != ["version"]:
        raise SystemExit("pyproject.toml: only the version may be dynamic; packaging/distributions.py reads the rest")
    version = contents.version()
    of_client = set(pyproject["tool"]["jobd"]["client-dependencies"])
    named = {text: Requirement(text).name for text in project["dependencies"]}
    if strangers := of_client - set(named.values()):
        raise SystemExit(f"pyproject.toml: client-dependencies has {', '.join(strangers)}, which is no dependency")
    if name == CLIENT:
        project["description"] = CLIENT_DESCRIPTION
        project["dependencies"] = [text for text, dependency in named.items() if dependency in of_client]
        project["scripts"] = {"jobd": project["scripts"]["jobd"]}
    else:
        rest = [text for text, dependency in named.items() if dependency not in of_client]
        project["dependencies"] = [f"{CLIENT}=={version}", *rest]
        project.pop("entry-points")  # of the code, so of the client
    if repository:
        project["urls"] = urls_of(repository.rstrip("/"))
    return {**project, "name": name, "version": version}


def urls_of(repository: str) -> dict[str, str]:
    if not re.fullmatch(r"https://[\w.-]+/\S+", repository):
        raise SystemExit(f"--repository must be an address such as https://example.org/group/jobd (got {repository})")
    return {
        "Source": repository,
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": f"{repository}/tree/main/docs",
        "Issues": f"{repository}/issues",
    }


def toml_of(project: dict[str, Any]) -> str:
    """The table [project]; strings and lists of them are written the same in TOML as in JSON."""
    tables = {key: value for key, value in project.items() if isinstance(value, dict)}
    tables |= {f"entry-points.{key}": value for key, value in tables.pop("entry-points", {}).items()}
    lines = ["[project]"]
    for key, value in project.items():
        if key == "authors":
            names = [json.dumps(author["name"], ensure_ascii=False) for author in value]
            lines.append(f"authors = [{', '.join(f'{{ name = {name} }}' for name in names)}]")
        elif not isinstance(value, dict):
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    for key, table in tables.items():
        lines += ["", f"[project.{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def fixed_in_time(sdist: bytes) -> bytes:
    """The same archive with order, owners, modes and times that do not depend on when and where it was made."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist), mode="r:gz") as old,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.mode, member.pax_headers = epoch(), 0o755 if member.isdir() else 0o644, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, content)
    return gzip.compress(out.getvalue(), mtime=0)


if __name__ == "__main__":
    sys.exit(main())
