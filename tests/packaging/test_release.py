"""A release: what stops it, its notes, its checksums and its list of parts; the slow test makes one without a tag."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import release
import sbom
import wheels

import jobd
from jobd.servers import postgres, valkey
from tests.support.daemon import TOP

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(900)

CHANGELOG = """# Changelog

In a form. Nothing has been released yet. *Do* marks what to do.

## Unreleased

### Added
- A thing.

## 0.0.9 - 2026-01-02

### Fixed
- Another.
"""


# -- notes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("Unreleased", "### Added\n- A thing.\n"),
        ("0.0.9", "### Fixed\n- Another.\n"),
        ("0.0", None),
        ("0.0.90", None),
    ],
)
def test_notes_are_the_section_of_the_version(title: str, found: str | None) -> None:
    assert release.section(CHANGELOG, title) == found


def test_prepared_changelog_has_the_version_below_an_empty_unreleased() -> None:
    text = release.prepared(CHANGELOG, "0.1.0", "2026-11-18")

    assert "\n## Unreleased\n\n## 0.1.0 - 2026-11-18\n\n### Added\n" in text
    assert release.section(text, "0.1.0") == "### Added\n- A thing.\n"
    assert "In a form. *Do* marks" in text
    with pytest.raises(SystemExit, match="has a section"):
        release.prepared(text, "0.1.0", "2026-11-18")
    with pytest.raises(SystemExit, match="nothing to release"):
        release.prepared(text, "0.2.0", "2026-11-18")


def test_real_changelog_can_be_prepared() -> None:
    text = (TOP / "CHANGELOG.md").read_text("utf-8")
    if not (release.section(text, "Unreleased") or "").strip():
        pytest.skip("nothing is unreleased")

    notes = release.section(release.prepared(text, "99.0.0", "2026-11-18"), "99.0.0")

    assert notes == release.section(text, "Unreleased")


# -- what stops it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "complaints"),
    [
        ("0.0.9", []),
        ("0.1.0", ["CHANGELOG.md has no section 0.1.0"]),
        ("0.1.0.dev0", ["0.1.0.dev0 in jobd/__init__.py is no release", "CHANGELOG.md has no section 0.1.0.dev0"]),
    ],
)
def test_version_must_be_a_release_that_the_changelog_knows(version: str, complaints: list[str]) -> None:
    found = release.faults_of_version(version, CHANGELOG)

    assert len(found) == len(complaints)
    assert all(fault.startswith(complaint) for fault, complaint in zip(found, complaints, strict=True))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("true", None),
        ("echo > stray", "1 files are not committed, stray among them"),
        ("git tag v0.1.0", "v0.1.0 is tagged already"),
        ("git checkout -q -b feature", "this is branch feature"),
    ],
)
def test_tree_must_be_clean_on_main_and_not_tagged(tmp_path: Path, change: str, complaint: str | None) -> None:
    author = "-c user.name=a -c user.email=a@example.org"
    setup = f"git init -q -b main && git {author} commit -q --allow-empty -m one && {change}"
    subprocess.run(["sh", "-c", setup], cwd=tmp_path, check=True)

    found = release.faults_of_tree(tmp_path, "0.1.0")

    assert len(found) == (1 if complaint else 0)
    assert complaint is None or found[0].startswith(complaint)


# -- what is made ---------------------------------------------------------------------------------------------------


def test_checksums_are_of_everything_but_the_notes_and_found_by_the_usual_tool(tmp_path: Path) -> None:
    for name in ("a.pyz", "b.deb", "NOTES.md"):
        (tmp_path / name).write_text(name)

    release.write_sums(tmp_path)
    release.write_sums(tmp_path)  # once more: the list is not in itself

    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a.pyz: OK\nb.deb: OK\n"


def test_list_of_parts_has_every_pin_with_its_hashes() -> None:
    lock = (TOP / "requirements.lock").read_text("utf-8")

    made = sbom.document(lock, [10, 12], jobd.__version__)

    pins = {(pin.name, pin.version): pin for minor in (10, 12) for pin in wheels.read_lock(lock, minor, "x86_64")}
    listed = {(part["name"], part["version"]): part for part in made["components"]}
    references = [part["bom-ref"] for part in made["components"]]
    assert listed.keys() == pins.keys()
    assert all(
        {entry["content"] for entry in part["hashes"]} == pins[key].sha256
        and part["purl"] == f"pkg:pypi/{'@'.join(key)}"
        for key, part in listed.items()
    )
    assert made["dependencies"] == [{"ref": made["metadata"]["component"]["bom-ref"], "dependsOn": references}]
    assert len(set(references)) == len(references)
    assert made == sbom.document(lock, [10, 12], jobd.__version__)
    inside = {inner["name"]: inner["version"] for part in made["components"] for inner in part.get("components", [])}
    for name, program in {"postgresql": postgres.PROGRAM, "valkey": valkey.PROGRAM}.items():
        said = subprocess.run([program.installed(), "--version"], capture_output=True, text=True, check=True).stdout
        assert re.search(rf"[ =]{re.escape(inside.pop(name))}\s", said), said
    assert inside == {}
    assert {listed[key]["properties"][0]["value"] for key in listed if key[0] == "psutil"} == {"false"}


@pytest.mark.slow
def test_dry_run_makes_everything_and_tags_nothing(tmp_path: Path) -> None:
    before = subprocess.run(["git", "tag"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    command = [sys.executable, str(TOP / "packaging" / "release.py"), "--dry-run", "--python", "3.10"]

    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    version = re.escape(jobd.__version__)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    wanted = [
        *("NOTES.md", "SHA256SUMS", rf"jobd-{version}\.cdx\.json", r"jobd-aarch64\.pyz", r"jobd-x86_64\.pyz"),
        *(rf"jobd_{version}_amd64\.deb", rf"jobd_{version}_arm64\.deb"),
        *(rf"jobd_client-{version}-py3-none-any\.whl", rf"jobd_client-{version}\.tar\.gz"),
        *(rf"jobd_server-{version}-py3-none-any\.whl", rf"jobd_server-{version}\.tar\.gz"),
    ]
    assert len(names) == len(wanted), names
    assert all(re.fullmatch(pattern, name) for pattern, name in zip(wanted, names, strict=True)), names
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=tmp_path / "out", check=True)
    assert json.loads((tmp_path / "out" / f"jobd-{jobd.__version__}.cdx.json").read_text())["bomFormat"] == "CycloneDX"
    assert subprocess.run(["git", "tag"], cwd=TOP, capture_output=True, text=True, check=True).stdout == before
