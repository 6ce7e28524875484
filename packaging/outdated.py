#!/usr/bin/env python3
"""List what of the lock is outdated, withdrawn or has a known hole, by what the package index says today.

    python3 packaging/outdated.py              a list; always exit code 0, also without a network
    python3 packaging/outdated.py --strict     exit code 1 for a withdrawn release or a known hole, 3 if not all known

A pin is outdated if a newer release runs on the same Python. The index has the lists of releases; known holes come from
its second interface, which mirrors often lack. What could not be asked is said, and never counted as fine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import contents
import wheels

try:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version
except ImportError:  # wherever pip is, so is its copy
    from pip._vendor.packaging.specifiers import InvalidSpecifier, SpecifierSet  # type: ignore[assignment]
    from pip._vendor.packaging.version import InvalidVersion, Version  # type: ignore[assignment]

#: The Pythons of the one file; a pin may differ between them.
MINORS = (10, 12)
#: Seconds that one answer of the index may take.
ANSWER_S = 10.0
#: Questions at once: the index is asked for each package.
AT_ONCE = 8


class NotAsked(Exception):
    """The index did not answer, or has no such interface."""


class Release(NamedTuple):
    """A file of the index."""

    filename: str
    sha256: str
    requires_python: str
    #: Why it was withdrawn; None: it was not.
    yanked: str | None


class Links(HTMLParser):
    """The files of a package as every index and mirror lists them: one link each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Release] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = urllib.parse.urlsplit(values.get("href") or "")
        if tag == "a" and address.path:
            filename = urllib.parse.unquote(address.path.rpartition("/")[2])
            sha256 = address.fragment.removeprefix("sha256=")
            yanked = (values["data-yanked"] or "no reason given") if "data-yanked" in values else None
            self.found.append(Release(filename, sha256, values.get("data-requires-python") or "", yanked))


class Finding(NamedTuple):
    name: str
    version: str
    minor: int
    #: The newest release that runs on this Python; the same as `version` if the pin is current.
    newest: str
    #: Why the release was withdrawn; None: it was not.
    yanked: str | None
    #: Known holes of the pinned release, with the releases that mend them; None: could not be asked.
    holes: tuple[str, ...] | None

    @property
    def is_bad(self) -> bool:
        return self.yanked is not None or bool(self.holes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="fail for what is withdrawn or has a known hole")
    parser.add_argument("--lock", type=Path, default=contents.TOP / "requirements.lock", help=argparse.SUPPRESS)
    options = parser.parse_args()
    pins = {
        (pin.name, pin.version): (pin, minor)
        for minor in reversed(MINORS)
        for pin in wheels.read_lock(options.lock.read_text("utf-8"), minor, "x86_64")
    }
    try:
        findings = examine(list(pins.values()), *index_urls())
    except NotAsked as error:
        print(f"NOT CHECKED: {error}; nothing of {len(pins)} pins was compared")
        return 3 if options.strict else 0
    for line in report(findings):
        print(line)
    if options.strict and any(finding.is_bad for finding in findings):
        return 1
    return 3 if options.strict and any(finding.holes is None for finding in findings) else 0


def index_urls() -> tuple[str, str]:
    """The addresses of both interfaces of the index: that of pip's settings, else pip's own default."""
    from pip._internal.models.index import PyPI

    simple = os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")
    return simple, f"{simple.removesuffix('/simple')}/pypi"


def examine(pins: list[tuple[wheels.Pin, int]], simple: str, details: str) -> list[Finding]:
    """Raises NotAsked if the index does not answer at all, or does not know one of the packages."""
    releases_of(pins[0][0].name, simple)  # alone first: without a network, one failure is enough
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda each: finding_of(each[0], each[1], simple, details), pins))


def finding_of(pin: wheels.Pin, minor: int, simple: str, details: str) -> Finding:
    files = [file for file in releases_of(pin.name, simple) if runs_on(file, minor)]
    ours = [file for file in files if file.sha256 in pin.sha256]
    if not ours:
        raise NotAsked(f"the index at hand does not have {pin.name} {pin.version}")
    fit = [version for file in files if file.yanked is None and (version := version_of(file.filename, pin.name))]
    newest = max([*fit, Version(pin.version)])
    reason = ours[0].yanked if all(file.yanked is not None for file in ours) else None
    try:
        holes = holes_of(pin, details)
    except NotAsked:
        holes = None
    return Finding(pin.name, pin.version, minor, str(newest), reason, holes)


def releases_of(name: str, simple: str) -> list[Release]:
    links = Links()
    links.feed(ask(f"{simple}/{name}/").decode("utf-8", "replace"))
    return links.found


def runs_on(file: Release, minor: int) -> bool:
    try:
        return SpecifierSet(file.requires_python).contains(f"3.{minor}.99")
    except InvalidSpecifier:
        return False


def version_of(filename: str, name: str) -> Version | None:
    """The version in the name of a wheel or sdist; None for a pre-release and for what is neither."""
    parts = filename.removesuffix(".tar.gz").replace("_", "-")[len(name) + 1 :].split("-")
    if not filename.endswith((".whl", ".tar.gz")):
        return None
    try:
        version = Version(parts[0])
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version


def holes_of(pin: wheels.Pin, details: str) -> tuple[str, ...]:
    try:
        known = json.loads(ask(f"{details}/{pin.name}/{pin.version}/json"))["vulnerabilities"]
        return tuple(
            f"{hole['id']} (mended in {', '.join(hole.get('fixed_in') or ['no release yet'])})"
            for hole in known
            if not hole.get("withdrawn")
        )
    except (ValueError, LookupError, TypeError):
        raise NotAsked("the index at hand does not list known holes") from None


def ask(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            found: bytes = answer.read()
    except urllib.error.HTTPError as error:
        raise NotAsked(f"the package index answers {error.code}") from None
    except OSError:
        raise NotAsked("the package index does not answer") from None
    return found


def report(findings: list[Finding]) -> list[str]:
    lines = []
    for finding in sorted(findings):
        pin = f"{finding.name} {finding.version} (Python 3.{finding.minor})"
        if finding.newest != finding.version:
            lines.append(f"outdated   {pin}: {finding.newest}")
        if finding.yanked is not None:
            lines.append(f"WITHDRAWN  {pin}: {finding.yanked}")
        lines += [f"HOLE       {pin}: {hole}" for hole in finding.holes or ()]
    unasked = sum(finding.holes is None for finding in findings)
    if unasked:
        lines.append(f"NOT CHECKED: known holes of {unasked} pins; the index at hand does not list them")
    lines.append(f"{len(findings)} pins compared with the package index")
    return lines


if __name__ == "__main__":
    sys.exit(main())
