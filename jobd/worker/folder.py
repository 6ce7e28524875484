"""A folder for what tasks keep on disk while they run, of one worker alone, though several may run on a machine.

    0/        one worker's         0.lock    held while it runs

The first that is free is taken, so a worker that starts again finds, and clears away, what a killed one left there.
"""

from __future__ import annotations

import contextlib
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from jobd.errors import DataDirRefused
from jobd.host import locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobd.config.model import Config


@contextlib.contextmanager
def own_folder(config: Config) -> Iterator[Path]:
    """A folder in `data_dir` that no other worker uses meanwhile; made only if a task may need it."""
    root = Path(config.data_dir)
    if not any(task.run == "command" or task.isolate for task in config.tasks.values()):
        yield root
        return
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, lock = next((n, fd) for n in count() if (fd := locks.take(root / f"{n}.lock")) is not None)
    except OSError as error:
        raise DataDirRefused(
            f"the folder {root} cannot be used: {error.strerror}; name another one with --data-dir"
        ) from error
    try:
        yield root / str(number)
    finally:
        os.close(lock)
