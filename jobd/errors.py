"""Everything jobd raises on purpose.

    JobdError                   has a stable `code`, and the `exit_code` that a command ends with
    ├── ConfigError        78   a file, variable or flag says something that cannot be
    ├── StartRefused            starting again would not help, so the supervisor does not try
    │   ├── WrongVersion   65   the data was written by a Postgres or jobd that this one cannot read
    │   ├── ServerRefused  69   a configured Postgres or Redis is unfit or may not be used
    │   ├── AddressRefused 71   the HTTP address cannot be bound
    │   ├── ServerMissing  72   an embedded server's program is missing or cannot run
    │   ├── InstallationRefused 72 the package jobd-server is missing, or another jobd is in its place
    │   ├── DataDirRefused 73   the data directory cannot be used
    │   ├── DiskFull       74   too little space to start
    │   ├── HypercornChanged 70 the installed Hypercorn or h11 lacks a private name that jobd relies on
    │   ├── AlreadyRunning 75   another jobd holds the data directory
    │   └── TokenRefused   77   the jobd that was called does not let this worker in
    ├── BackupRefused      65   a file is no backup, or not a whole one
    ├── FileRefused        73   a backup cannot be written there
    ├── GaveUp             70   a service that jobd cannot do without kept failing
    ├── ServerFailed       70   an embedded server ended or would not start
    └── ServerDown         69   a configured server does not answer; it may come back, so nobody gives up on it

A message is one line: the thing, the value, the remedy.
"""

from __future__ import annotations

import sys
from typing import ClassVar

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup


class JobdError(Exception):
    code: str = "error"
    exit_code: ClassVar[int] = 1


class ConfigError(JobdError):
    code = "config"
    exit_code = 78


class StartRefused(JobdError):
    code = "start_refused"
    exit_code = 70


class WrongVersion(StartRefused):
    code = "wrong_version"
    exit_code = 65


class ServerRefused(StartRefused):
    code = "server_refused"
    exit_code = 69


class AddressRefused(StartRefused):
    code = "address_refused"
    exit_code = 71


class ServerMissing(StartRefused):
    code = "server_missing"
    exit_code = 72


class InstallationRefused(StartRefused):
    code = "installation_refused"
    exit_code = 72


class DataDirRefused(StartRefused):
    code = "data_dir_refused"
    exit_code = 73


class DiskFull(StartRefused):
    code = "disk_full"
    exit_code = 74


class HypercornChanged(StartRefused):
    code = "hypercorn_changed"


class AlreadyRunning(StartRefused):
    code = "already_running"
    exit_code = 75


class BackupRefused(JobdError):
    code = "backup_refused"
    exit_code = 65


class FileRefused(JobdError):
    code = "file_refused"
    exit_code = 73


class TokenRefused(StartRefused):
    code = "token_refused"
    exit_code = 77


class GaveUp(JobdError):
    code = "gave_up"
    exit_code = 70


class ServerFailed(JobdError):
    code = "server_failed"
    exit_code = 70


class ServerDown(JobdError):
    code = "server_down"
    exit_code = 69


def root_cause(error: Exception) -> Exception:
    """What a task group's error is about: the refusal in it if there is one, else its first leaf."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [root_cause(inner) for inner in error.exceptions if isinstance(inner, Exception)]
    return next((leaf for leaf in leaves if isinstance(leaf, StartRefused)), leaves[0])
