#!/usr/bin/env python3
"""Make a release: everything that strangers download, checksums, notes, and the tag.

    python3 packaging/release.py --prepare               turn Unreleased of CHANGELOG.md into a section of the version
    python3 packaging/release.py --dry-run               build all of it into dist/release and change nothing else
    python3 packaging/release.py --repository URL        the same, and tag the commit

The version is that of jobd/__init__.py. Nothing is uploaded and the tag is not pushed: the last lines say how. A tree
that is not clean, a version that is tagged already, a changelog without the version, a withdrawn dependency or one with
a known hole stop it before anything is built.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import build
import contents
import distributions
import sbom

HERE = Path(__file__).resolve().parent
#: Those of JetPack 6, Debian 12, JetPack 7 and Debian 13: the files and packages run on all of them.
PYTHONS = "3.10,3.11,3.12,3.13"
UNRELEASED = "## Unreleased"
NOTHING_YET = " Nothing has been released yet."


def main() -> int:
    options = arguments()
    version = contents.version()
    if options.prepare:
        changelog = contents.TOP / "CHANGELOG.md"
        changelog.write_text(prepared(changelog.read_text("utf-8"), version, today()), "utf-8")
        print(f"CHANGELOG.md has a section {version}; read it, commit it, and run this again without --prepare")
        return 0
    text = (contents.TOP / "CHANGELOG.md").read_text("utf-8")
    problems = [*faults_of_version(version, text), *faults_of_tree(contents.TOP, version), *faults_of_lock()]
    for problem in problems:
        print(f"{'would stop a release' if options.dry_run else 'stop'}: {problem}")
    if problems and not options.dry_run:
        return 1
    notes = section(text, version) or section(text, "Unreleased") or ""
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    make(options.out, options.python, options.repository, notes, version)
    for path in sorted(options.out.iterdir()):
        print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")
    if options.dry_run:
        print(f"dry run: v{version} is not tagged")
        return 0
    git(
        contents.TOP,
        "tag",
        "--annotate",
        f"v{version}",
        "--file",
        str(options.out / "NOTES.md"),
        "--cleanup=whitespace",
    )
    print(
        f"tagged v{version}; publish it: git push origin v{version}, then upload {options.out}/* to the release page,"
    )
    print(f"and the wheels and sdists of both distributions to the package index: twine upload {options.out}/jobd_*-*")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="build, and say what would stop a release")
    parser.add_argument("--prepare", action="store_true", help="only rewrite CHANGELOG.md")
    parser.add_argument("--repository", metavar="URL", help="public address of the sources, for the links of the index")
    parser.add_argument("--out", type=Path, default=contents.TOP / "dist" / "release", metavar="DIR")
    parser.add_argument("--python", type=build.minors, default=PYTHONS, metavar="3.X,3.Y", help=f"default: {PYTHONS}")
    return parser.parse_args()


# -- what must be so ------------------------------------------------------------------------------------------------


def faults_of_version(version: str, changelog: str) -> list[str]:
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"{version} in jobd/__init__.py is no release; write it as 0.1.0")
    if section(changelog, version) is None:
        found.append(f"CHANGELOG.md has no section {version}; run packaging/release.py --prepare")
    return found


def faults_of_tree(top: Path, version: str) -> list[str]:
    found = []
    if changed := git(top, "status", "--porcelain").splitlines():
        found.append(f"{len(changed)} files are not committed, {changed[0][3:]} among them; commit or remove them")
    if (branch := git(top, "rev-parse", "--abbrev-ref", "HEAD").strip()) != "main":
        found.append(f"this is branch {branch}; releases are made from main")
    if git(top, "tag", "--list", f"v{version}").strip():
        found.append(f"v{version} is tagged already; raise __version__ in jobd/__init__.py")
    return found


def faults_of_lock() -> list[str]:
    done = subprocess.run([sys.executable, str(HERE / "outdated.py"), "--strict"], capture_output=True, text=True)
    print(done.stdout, end="")
    if done.returncode == 1:
        return ["requirements.lock names a release that was withdrawn or has a known hole (see above)"]
    if done.returncode not in (0, 3):
        return [f"packaging/outdated.py failed: {done.stderr.strip().splitlines()[-1:]}"]
    return []  # 3: something could not be asked, and the list above says what


def git(top: Path, *command: str) -> str:
    done = subprocess.run(["git", "-C", str(top), *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"git {command[0]} failed: {done.stderr.strip()}")
    return done.stdout


# -- the changelog --------------------------------------------------------------------------------------------------


def section(changelog: str, title: str) -> str | None:
    """What stands under `## title`, with or without a date behind it; None if there is no such heading."""
    found = re.search(rf"^## {re.escape(title)}(?: - [\d-]+)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() + "\n" if found else None


def prepared(changelog: str, version: str, date: str) -> str:
    """The changelog with what is unreleased under the version, and an empty Unreleased above it."""
    if section(changelog, version) is not None:
        raise SystemExit(f"CHANGELOG.md has a section {version} already")
    if not (section(changelog, "Unreleased") or "").strip():
        raise SystemExit(f"CHANGELOG.md has nothing under {UNRELEASED}, so there is nothing to release")
    return changelog.replace(NOTHING_YET, "", 1).replace(
        f"{UNRELEASED}\n", f"{UNRELEASED}\n\n## {version} - {date}\n", 1
    )


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


# -- what strangers download ----------------------------------------------------------------------------------------


def make(out: Path, minors: list[int], repository: str | None, notes: str, version: str) -> None:
    pythons = ",".join(f"3.{minor}" for minor in minors)
    for target in build.TARGETS:
        script("build.py", "--target", target, "--python", pythons, "--out", str(out))
        script("build_deb.py", "--target", target, "--out", str(out))
    distributions.build_all(out, repository)
    sbom.write(out / f"jobd-{version}.cdx.json", contents.TOP / "requirements.lock", minors, version)
    (out / "NOTES.md").write_text(f"jobd {version}\n\n{notes}", "utf-8")
    write_sums(out)


def script(name: str, *command: str) -> None:
    if subprocess.run([sys.executable, str(HERE / name), *command]).returncode != 0:
        raise SystemExit(f"packaging/{name} failed (see above)")


def write_sums(out: Path) -> None:
    """SHA256SUMS of all that is downloaded, in the form that `sha256sum --check` reads."""
    files = [path for path in sorted(out.iterdir()) if path.name not in ("NOTES.md", "SHA256SUMS")]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
