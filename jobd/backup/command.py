"""`jobd backup`: with the Postgres of a running jobd, or its own for as long as it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobd.backup.make import Backup, Summary
from jobd.backup.offline import connected
from jobd.backup.output import check_target, new_file, standard_output
from jobd.backup.restore import refuse_external
from jobd.errors import DataDirRefused
from jobd.host.account import server_account
from jobd.host.data_dir import DataDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobd.config.model import Config


async def back_up(config: Config, file: Path | None, force: bool, progress: Callable[[str], None]) -> Summary:
    """Back the configured data directory up to `file`, or to standard output."""
    refuse_external(config, "backed up")
    data_dir = DataDir(Path(config.data_dir), server_account())
    if not data_dir.cluster.exists():
        raise DataDirRefused(f"data directory {data_dir.path} has no jobd in it yet; name another with --data-dir")
    if file is not None:
        check_target(file, force=force)
    async with connected(config):
        with standard_output() if file is None else new_file(file, force=force) as sink:
            summary = await Backup(data_dir, config, progress).write(sink, with_results=True)
    return summary if file is None else msgspec.structs.replace(summary, file=str(file))
