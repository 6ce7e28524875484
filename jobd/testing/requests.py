"""What the process of a test and the fork server say to each other: JSON, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

#: Data directory and log in the folder of a start.
DATA, LOG = "data", "jobd.log"


class StartRequest(msgspec.Struct, tag="start", frozen=True, kw_only=True):
    #: Gets the data directory and the log; removed when the daemon was stopped.
    folder: str
    #: Configuration file; None: the defaults.
    config: str | None
    #: Working directory, from which tasks are imported.
    root: str
    #: Options that win over the file, by dotted key.
    settings: dict[str, Any]
    #: Folder that templates of data directories are kept in; None: the cache folder of the user.
    templates: str | None
    #: Environment variables for tasks.
    variables: dict[str, str]


class StopRequest(msgspec.Struct, tag="stop", frozen=True, kw_only=True):
    folder: str


class StartAnswer(msgspec.Struct, frozen=True, kw_only=True):
    #: 0: no process was forked.
    pid: int
    url: str = ""
    #: Why it did not start; empty: it did.
    error: str = ""


def log_of(folder: Path) -> str:
    try:
        return (folder / LOG).read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""
