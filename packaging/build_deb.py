#!/usr/bin/env python3
"""Build jobd's Debian package around its one file; the same input gives the same bytes, and no dpkg is needed.

    python3 packaging/build.py --target aarch64 && python3 packaging/build_deb.py --target aarch64

Files come from root/, which mirrors the installed tree, and maintainer scripts from debian/. Owners, order, modes and
times are fixed (SOURCE_DATE_EPOCH sets the time).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import contents

HERE = Path(__file__).resolve().parent
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
#: Time of every file in seconds since 1970: the start of 1980, as in a zip file; dpkg warns of 1970.
EPOCH = 315532800
CONTROL = """\
Package: jobd
Version: {version}
Architecture: {architecture}
Maintainer: jobd <root@localhost>
Installed-Size: {kibibytes}
Depends: {pythons}, libc6 (>= {glibc}), zlib1g, passwd
Section: admin
Priority: optional
Description: durable job daemon in one file
 One service that carries jobs from a queue to their end without losing one or
 running it twice at once. PostgreSQL, Valkey and every dependency are inside.
"""
COPYRIGHT = """\
Copyright: the authors of jobd
License: Apache-2.0, see /usr/share/common-licenses/Apache-2.0

PostgreSQL, Valkey and the Python packages inside jobd.pyz have licenses of their
own: after the first start, /var/cache/jobd/jobd-*/*.dist-info/ holds them.
"""


class Entry(NamedTuple):
    content: bytes
    mode: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, choices=ARCHITECTURES)
    parser.add_argument("--out", type=Path, default=contents.TOP / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--pyz", type=Path, metavar="FILE", help="default: jobd-TARGET.pyz in --out")
    options = parser.parse_args()
    pyz = options.pyz or options.out / f"jobd-{options.target}.pyz"
    if not pyz.is_file():
        sys.exit(f"{pyz} is not there; build it first: python3 packaging/build.py --target {options.target}")
    about = about_of(pyz)
    if about["target"] != options.target:
        sys.exit(f"{pyz} is for {about['target']}, not {options.target}")
    version = debian_version(about["version"])
    out = options.out / f"jobd_{version}_{ARCHITECTURES[options.target]}.deb"
    files = installed_files(pyz)
    options.out.mkdir(parents=True, exist_ok=True)
    out.write_bytes(package(control_files(about, version, files), files))
    print(f"{out}  {out.stat().st_size / 1e6:.1f} MB")
    return 0


def about_of(pyz: Path) -> dict[str, Any]:
    with zipfile.ZipFile(pyz) as archive:
        found: dict[str, Any] = json.loads(archive.read("_jobd_about.py").partition(b"=")[2])
    return found


def debian_version(version: str) -> str:
    """A development release sorts before the release, which Debian writes with a tilde."""
    return re.sub(r"\.?(dev|a|b|rc)(\d+)", r"~\1\2", version)


# -- what is in it ------------------------------------------------------------------------------------------------


def installed_files(pyz: Path) -> dict[str, Entry]:
    root, top = HERE / "root", contents.TOP
    files = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            is_program = path.parent.name == "bin"
            files[path.relative_to(root).as_posix()] = Entry(path.read_bytes(), 0o755 if is_program else 0o644)
    files["usr/lib/jobd/jobd.pyz"] = Entry(pyz.read_bytes(), 0o644)
    documents = {
        "README.md": (top / "README.md").read_bytes(),
        "changelog.gz": gzip.compress((top / "CHANGELOG.md").read_bytes(), mtime=0),
        "copyright": COPYRIGHT.encode(),
        "jetson.toml": (top / "config" / "jetson.toml").read_bytes(),
        "jobd.toml": (top / "jobd.toml").read_bytes(),
    }
    files |= {f"usr/share/doc/jobd/{name}": Entry(content, 0o644) for name, content in documents.items()}
    return dict(sorted(files.items()))


def python_packages(minors: list[int]) -> str:
    """Exactly the Pythons that the file carries trees for."""
    gaps = [minor for minor in range(minors[0], minors[-1]) if minor not in minors]
    between = [f"python3 (<< 3.{minor}) | python3 (>= 3.{minor + 1})" for minor in gaps]
    return ", ".join([f"python3 (>= 3.{minors[0]})", *between, f"python3 (<< 3.{minors[-1] + 1})"])


def control_files(about: dict[str, Any], version: str, files: dict[str, Entry]) -> dict[str, Entry]:
    control = CONTROL.format(
        version=version,
        architecture=ARCHITECTURES[about["target"]],
        kibibytes=sum(-(-len(entry.content) // 1024) for entry in files.values()),
        pythons=python_packages(sorted(int(tag[3:]) for tag in about["trees"])),
        glibc=about["glibc"],
    )
    sums = "".join(f"{hashlib.md5(entry.content).hexdigest()}  {path}\n" for path, entry in files.items())
    texts = {"control": control, "md5sums": sums, "conffiles": "/etc/jobd/jobd.toml\n"}
    scripts = {path.name: Entry(path.read_bytes(), 0o755) for path in sorted((HERE / "debian").iterdir())}
    return {**{name: Entry(text.encode(), 0o644) for name, text in texts.items()}, **scripts}


# -- the format: an ar archive of three members --------------------------------------------------------------------


def package(control: dict[str, Entry], files: dict[str, Entry]) -> bytes:
    members = {"debian-binary": b"2.0\n", "control.tar.gz": packed(control), "data.tar.gz": packed(files)}
    archive = b"!<arch>\n"
    for name, content in members.items():
        archive += f"{name:<16}{epoch():<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        archive += content + b"\n" * (len(content) % 2)
    return archive


def packed(files: dict[str, Entry]) -> bytes:
    """A tar archive with every folder before what is in it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for folder in sorted({parent for path in files for parent in Path(path).parents}):
            archive.addfile(member(folder.as_posix(), tarfile.DIRTYPE, 0o755))
        for path, entry in sorted(files.items()):
            info = member(path, tarfile.REGTYPE, entry.mode)
            info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content))
    return gzip.compress(out.getvalue(), mtime=0)


def member(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo("./" if path == "." else f"./{path}")
    info.type, info.mode, info.mtime = kind, mode, epoch()
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))


if __name__ == "__main__":
    sys.exit(main())
