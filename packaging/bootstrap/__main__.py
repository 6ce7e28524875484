"""Where jobd's one file begins: find its unpacked tree, or unpack it, and start jobd from there.

It must be readable by old Pythons, if only to tell them that they are too old, and imports little: every start pays.
"""

from __future__ import annotations

import os
import sys

import _jobd_tree
from _jobd_about import ABOUT

TYPE_CHECKING = False  # to import typing for it would cost every start some milliseconds
if TYPE_CHECKING:
    from typing import NoReturn

EXIT_DAMAGED, EXIT_NO_PLACE, EXIT_DISK_FULL, EXIT_UNFIT = 72, 73, 74, 78


def main() -> None:
    refuse_unfit()
    pyz = os.path.abspath(os.path.dirname(__file__))
    try:
        tree = _jobd_tree.find_or_unpack(pyz)
    except _jobd_tree.Damaged as error:
        leave(EXIT_DAMAGED, f"{pyz} is damaged: {error}; copy it here again")
    except _jobd_tree.NoPlace as error:
        leave(EXIT_DISK_FULL if error.is_full else EXIT_NO_PLACE, str(error))
    if sys.argv[1:] == ["--unpack"]:
        print(tree)
        import _jobd_unpack

        _jobd_unpack.compile_all(tree)
        _jobd_unpack.sweep(os.path.dirname(tree))
    else:
        start(tree)


def start(tree: str) -> None:
    sys.path[0] = tree
    # Children that run `python -m jobd...` find it too; the commands of tasks get an environment of their own.
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != tree]
    os.environ["PYTHONPATH"] = os.pathsep.join([tree, *known])
    from jobd.cli.main import main as run

    run()


def refuse_unfit() -> None:
    machine, offered = os.uname().machine, sorted(ABOUT["trees"])
    if machine != ABOUT["target"] or sys.maxsize < 2**32:
        leave(EXIT_UNFIT, f"this file is for 64-bit {ABOUT['target']} and this is {machine}; take the file for that")
    if _jobd_tree.TAG not in offered:
        told = " or ".join(f"3.{tag[3:]}" for tag in sorted(offered, key=len))
        leave(
            EXIT_UNFIT,
            f"this file runs on Python {told} and this is {sys.version.split()[0]} ({sys.executable}); "
            "start it with one of those, or build it with --python for this one",
        )
    found = libc()
    if found is None or found < numbers(ABOUT["glibc"]):
        told = ".".join(map(str, found)) if found else "no glibc"
        leave(EXIT_UNFIT, f"this file needs glibc {ABOUT['glibc']} or newer and this system has {told}")


def libc() -> list[int] | None:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return None
    return numbers(version) if name == "glibc" else None


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def leave(code: int, message: str) -> NoReturn:
    print(f"jobd: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
