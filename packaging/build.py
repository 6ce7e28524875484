#!/usr/bin/env python3
"""Build jobd's one file, with Postgres, Valkey and every dependency inside, from the hash-pinned lock.

    python3 packaging/build.py --target aarch64                      for JetPack 6 and 7: Python 3.10 and 3.12
    python3 packaging/build.py --target x86_64 --python 3.10,3.11    for other Pythons

Runs on any machine with Python 3.10 or newer and pip; nothing of the target is executed. The same sources and lock
give the same bytes. Wheels are kept in dist/wheels.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import bundle
import contents

TARGETS = ("aarch64", "x86_64")
PYTHONS = "3.10,3.12"


def main() -> int:
    options = arguments()
    trees = {}
    for minor in options.python:
        tree = contents.tree(minor, options.target, options.lock, options.wheels)
        faults = contents.faults(tree, minor, options.target)
        if faults:
            sys.exit("\n".join([f"cannot build for Python 3.{minor} on {options.target}:", *faults]))
        trees[f"cp3{minor}"] = tree
    glibc = max((contents.glibc_needed(tree) for tree in trees.values()), key=lambda text: int(text.split(".")[1]))
    out = options.out / f"jobd-{options.target}.pyz"
    bundle.write(out, trees, version=contents.version(), target=options.target, glibc=glibc)
    pythons = " and ".join(f"3.{minor}" for minor in options.python)
    print(f"{out}  {out.stat().st_size / 1e6:.1f} MB, Python {pythons}, glibc {glibc} or newer")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, choices=TARGETS, help="the machine that it is for")
    parser.add_argument("--python", type=minors, default=PYTHONS, metavar="3.X,3.Y", help=f"default: {PYTHONS}")
    parser.add_argument("--out", type=Path, default=contents.TOP / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--lock", type=Path, default=contents.TOP / "requirements.lock", help=argparse.SUPPRESS)
    parser.add_argument("--wheels", type=Path, default=contents.TOP / "dist" / "wheels", metavar="DIR", help="cache")
    return parser.parse_args()


def minors(text: str) -> list[int]:
    found = [re.fullmatch(r"3\.(\d{2})", part) for part in text.split(",")]
    numbers = sorted({int(match[1]) for match in found if match})
    if not all(found) or numbers[0] < 10:
        raise argparse.ArgumentTypeError(f"{text!r} must be versions from 3.10 up, such as {PYTHONS}")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
