"""Modules of the project forgotten together, so that the next import reads all of them again.

`importlib.reload` would leave names that other modules have imported before. Functions that still run keep the module
that they came from. If the new code cannot be imported, everything is put back.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from jobd.tasks.declared import DECLARED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import ModuleType

    from jobd.tasks.declared import Declared

#: Never forgotten: a checkout of jobd may be the project, and the program itself cannot be.
KEPT = ("jobd", "__main__")


class Forgotten:
    """What was forgotten, to be put back if need be."""

    def __init__(self, folders: Iterable[Path]) -> None:
        roots = tuple(os.path.join(os.path.abspath(folder), "") for folder in folders)
        self._modules: dict[str, ModuleType] = {
            name: module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] not in KEPT and _is_in(module, roots)
        }
        self._declared: list[Declared] = list(DECLARED)
        for name in self._modules:
            del sys.modules[name]
        DECLARED[:] = [declared for declared in DECLARED if declared.module not in self._modules]
        importlib.invalidate_caches()

    def put_back(self) -> None:
        sys.modules.update(self._modules)
        DECLARED[:] = self._declared


def _is_in(module: ModuleType, roots: tuple[str, ...]) -> bool:
    """Whether a module, or a package without a file of its own, comes from one of the folders."""
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", ()))
    paths = [os.path.abspath(place) for place in places if isinstance(place, str)]
    return any(path.startswith(roots) and "site-packages" not in path for path in paths)
